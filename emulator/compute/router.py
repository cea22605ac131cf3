"""The router of a mixture of experts: which experts compute a token, and their weights."""

from typing import Final

import numpy as np

from emulator.arrays import Float32s, Int64s
from emulator.compute.architecture import RouterScore, Routing
from emulator.compute.feed_forward_kernel import ExpertChoice, RouterArrays
from emulator.compute.layer_kernel import choose, route
from emulator.compute.mapped_matrix import MappedMatrix
from emulator.compute.tiled_matmul import are_compiled, tiled_matmul
from emulator.compute.weights import RouterWeights
from emulator.formats.product_formats import FP32_PRODUCTS, ProductFormat

_NO_DIVISION_BY_ZERO: Final = 1e-20  # as DeepSeek-V3's own code
_NO_MATRIX: Final = np.zeros((0, 0, 0), dtype=np.float32)
_NO_BIAS: Final = np.zeros(0, dtype=np.float32)


class Router:
    """A layer's router, whose products are of `products`."""

    __slots__ = ("_arrays", "_choice", "_is_compiled", "_matrix", "_products")

    def __init__(
        self,
        weights: RouterWeights,
        *,
        experts_per_token: int,
        routing: Routing,
        products: ProductFormat = FP32_PRODUCTS,
    ) -> None:
        self._matrix = weights.matrix
        self._products = products
        self._is_compiled = are_compiled(weights.matrix, products)
        self._arrays = RouterArrays(
            matrix=_NO_MATRIX if isinstance(weights.matrix, MappedMatrix) else weights.matrix[None],
            bias=_NO_BIAS if weights.bias is None else weights.bias,
            choice_bias=_NO_BIAS if weights.choice_bias is None else weights.choice_bias,
        )
        self._choice = ExpertChoice(
            by_sigmoid=routing.score is RouterScore.SIGMOID,
            chosen=experts_per_token,
            normalise=routing.normalise,
            groups=routing.groups,
            groups_chosen=routing.groups_chosen,
            scale=float(routing.scale),
            least=_NO_DIVISION_BY_ZERO,
        )

    @property
    def compiled(self) -> tuple[RouterArrays, ExpertChoice] | None:
        """What the kernel `route` takes, where it multiplies."""
        return (self._arrays, self._choice) if self._is_compiled else None

    def route(self, hidden: Float32s) -> tuple[Int64s, Float32s]:
        """Choose experts for `hidden` [tokens, hidden].

        Returns expert ids and weights [tokens, k]. Ids ascend, because outputs are added in this
        order and a sum must not depend on scores.
        """
        arrays = self._arrays
        if self._is_compiled:
            return route(hidden, arrays, self._choice)
        logits = tiled_matmul(hidden, self._matrix, self._products)  # [tokens, experts]
        return choose(logits, arrays.bias, arrays.choice_bias, self._choice)

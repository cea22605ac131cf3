"""The router of a mixture of experts: which experts compute a token, and their weights."""

from typing import Final

import numpy as np

from emulator.arrays import Float32s, Int64s
from emulator.compute.architecture import RouterScore, Routing
from emulator.compute.feed_forward_kernel import Choice, choose_by_sigmoid, choose_by_softmax
from emulator.compute.tiled_matmul import tiled_matmul
from emulator.compute.weights import RouterWeights
from emulator.formats.product_formats import FP32_PRODUCTS, ProductFormat

_NO_DIVISION_BY_ZERO: Final = 1e-20  # as DeepSeek-V3's own code
_NO_BIAS: Final = np.zeros(0, dtype=np.float32)


def route(
    hidden: Float32s,
    router: RouterWeights,
    *,
    experts_per_token: int,
    routing: Routing,
    products: ProductFormat = FP32_PRODUCTS,
) -> tuple[Int64s, Float32s]:
    """Choose experts for `hidden` [tokens, hidden].

    Returns expert ids and weights [tokens, k]. Ids ascend, because outputs are added in this order
    and a sum must not depend on scores.
    """
    logits = tiled_matmul(hidden, router.matrix, products)  # [tokens, experts]
    bias = _NO_BIAS if router.bias is None else router.bias
    if routing.score is RouterScore.SOFTMAX:
        return choose_by_softmax(logits, bias, experts_per_token, routing.normalise)
    return choose_by_sigmoid(
        logits,
        bias,
        _NO_BIAS if router.choice_bias is None else router.choice_bias,
        Choice(
            count=experts_per_token,
            normalise=routing.normalise,
            groups=routing.groups,
            groups_chosen=routing.groups_chosen,
            scale=float(routing.scale),
            least=_NO_DIVISION_BY_ZERO,
        ),
    )

"""Tiling of a backward pass's products on one chip's matrix engines.

The gradient of a forward product's input is the same product with contraction and outputs
exchanged. The gradient of its weights contracts over the tokens: one side of the matrix stays in
tiles, the other streams past, whichever is issued faster. A rank is one chip, divided as in
issue_shape.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from emulator.arrays import Float64s
from emulator.specs import model_tensors
from emulator.specs.chip import ChipSpec
from emulator.specs.matrix_engine import MatrixEngine
from emulator.specs.model import ModelSpec
from emulator.specs.model_tensors import Tensor
from emulator.specs.weight_format import WeightFormat
from emulator.timing.matrix_time import contraction_rows, moving_rows, output_columns, tile_macs
from emulator.timing.product_rate import ProductRate, product_rate

_DIVIDED_BY_CONTRACTION: Final = ("output", "down")


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientProduct:
    """The two backward products of some matrices: `sides` (outputs, contraction) on each core."""

    rate: ProductRate
    engine: MatrixEngine
    cores: int
    sides: tuple[tuple[float, float], ...]

    def issued_macs(self, tokens: Float64s) -> Float64s:
        """Issued MACs of both products over `tokens`: [...] -> [...].

        Of a chip, with partial tiles and rows counted as full.
        """
        macs = np.zeros(np.shape(tokens))
        rows = moving_rows(self.engine, tokens)
        for outputs, contraction in self.sides:
            of_inputs = tile_macs(
                self.engine, contraction=outputs, outputs=contraction, mx=self.rate.quantised
            )
            macs = macs + of_inputs * rows + self._of_weights(outputs, contraction, tokens)
        issued: Float64s = self.cores * macs
        return issued

    def _of_weights(self, outputs: float, contraction: float, tokens: Float64s) -> Float64s:
        contracted = contraction_rows(self.engine, np.asarray(tokens), mx=self.rate.quantised)
        area = min(
            float(output_columns(self.engine, np.array(still)))
            * float(moving_rows(self.engine, np.array(moving)))
            for still, moving in ((outputs, contraction), (contraction, outputs))
        )
        macs: Float64s = contracted * area
        return macs


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientShape:
    """The backward products of a model's matrices on one chip; of one expert, and of all heads."""

    query: GradientProduct
    kv: GradientProduct
    kv_up: GradientProduct
    latent: GradientProduct
    router: GradientProduct
    dense: GradientProduct
    shared: GradientProduct
    expert: GradientProduct
    lm_head: GradientProduct

    @classmethod
    def of(cls, model: ModelSpec, chip: ChipSpec, *, cores: int) -> Self:
        """The shape on a chip with `cores` logical cores."""

        def product(
            tensors: Iterable[Tensor], parts: float, storage: WeightFormat
        ) -> GradientProduct:
            return GradientProduct(
                rate=product_rate(storage, chip, model.sparsity),
                engine=chip.matrix,
                cores=cores,
                sides=tuple(_sides(tensor, parts) for tensor in tensors if tensor.rows > 1),
            )

        queries = model_tensors.query_tensors(model)
        ups = tuple(tensor for tensor in queries if tensor.name == "kv_up")
        head_parts = model.heads / -(-model.heads // cores)
        kv_parts = model.kv_heads / -(-model.kv_heads // cores)
        projections, plain = model.projection_format, model.plain_format
        head = (Tensor(name="lm_head", rows=model.vocab, columns=model.hidden, storage=plain),)
        return cls(
            query=product([each for each in queries if each not in ups], head_parts, projections),
            kv=product(model_tensors.kv_tensors(model), kv_parts, projections),
            kv_up=product(ups, head_parts, plain),
            latent=product(model_tensors.latent_tensors(model), cores, projections),
            router=product(model_tensors.router_tensors(model), cores, plain),
            dense=product(model_tensors.dense_tensors(model), cores, projections),
            shared=product(model_tensors.shared_tensors(model), cores, projections),
            expert=product(model_tensors.expert_tensors(model), cores, model.expert_format),
            lm_head=product(head, cores, plain),
        )


def _sides(tensor: Tensor, parts: float) -> tuple[float, float]:
    if tensor.name in _DIVIDED_BY_CONTRACTION:
        return float(tensor.rows), tensor.columns / parts
    return tensor.rows / parts, float(tensor.columns)

"""Tiling of a model's products on one chip's matrix engines: rates, and filled tiles.

Dividing a rank's weights narrows each core's products, whose last tiles are not full. Computed once
per model and partition.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

from emulator.specs import model_tensors
from emulator.specs.attention_split import AttentionSplit
from emulator.specs.chip import ChipSpec
from emulator.specs.matrix_engine import MatrixEngine
from emulator.specs.model import ModelSpec
from emulator.specs.model_tensors import Tensor
from emulator.specs.weight_format import WeightFormat
from emulator.timing.core_attention import CoreAttention
from emulator.timing.head_split import heads_per_part
from emulator.timing.matrix_time import tile_macs
from emulator.timing.product_rate import ProductRate, cache_rate, product_rate

_DIVIDED_BY_CONTRACTION = ("output", "down")  # the others are divided by their outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightProduct:
    """Products with some weights on one chip: `macs` charged per moving row, at `rate`."""

    rate: ProductRate
    macs: float


@dataclass(frozen=True, slots=True, kw_only=True)
class IssueShape:
    """A model's products on each chip of a rank, and its attention: of prompts, and of decodes.

    `beside_bytes`: memory beside the engines. `kv_up_macs`: per row of one head.
    """

    engine: MatrixEngine
    query: WeightProduct
    kv: WeightProduct
    kv_up_macs: float
    latent: WeightProduct
    router: WeightProduct
    dense: WeightProduct
    shared: WeightProduct
    expert: WeightProduct
    lm_head: WeightProduct
    joining: WeightProduct
    cache_rate: ProductRate
    beside_bytes: float
    prompts: CoreAttention
    decodes: CoreAttention

    @classmethod
    @lru_cache(maxsize=64)
    def of(
        cls,
        model: ModelSpec,
        chip: ChipSpec,
        *,
        tp: int,
        cores: int,
        expert_tp: int = 1,
        split: AttentionSplit = AttentionSplit.HEADS,
    ) -> Self:
        """On one of `tp` chips with `cores` logical cores, experts over `expert_tp` chips."""

        def attention(split: AttentionSplit) -> CoreAttention:
            return CoreAttention.of(model, chip, tp=tp, cores=cores, split=split)

        on = _Placing(model=model, chip=chip, cores=cores)
        parts = tp * cores
        query_heads = heads_per_part(model.heads, parts)
        kv_heads = heads_per_part(model.kv_heads, parts)
        projections, plain = model.projection_format, model.plain_format
        queries = [
            tensor for tensor in model_tensors.query_tensors(model) if tensor.name != "kv_up"
        ]
        head_parts, kv_parts = model.heads / query_heads, model.kv_heads / kv_heads
        experts = model_tensors.expert_tensors(model)
        head = (Tensor(name="lm_head", rows=model.vocab, columns=model.hidden, storage=plain),)
        joined = (Tensor(name="join", rows=model.hidden, columns=2 * model.hidden, storage=plain),)
        return cls(
            engine=chip.matrix,
            query=on.product(queries, head_parts, projections),
            kv=on.product(model_tensors.kv_tensors(model), kv_parts, projections),
            kv_up_macs=_kv_up_macs(model, chip.matrix),
            latent=on.product(model_tensors.latent_tensors(model), cores, projections),
            router=on.product(model_tensors.router_tensors(model), cores, plain),
            dense=on.product(model_tensors.dense_tensors(model), parts, projections),
            shared=on.product(model_tensors.shared_tensors(model), parts, projections),
            expert=on.product(experts, expert_tp * cores, model.expert_format),
            lm_head=on.product(head, parts, plain),
            joining=on.product(joined, parts, plain),
            cache_rate=cache_rate(model, chip),
            beside_bytes=chip.sbuf_bytes.value,
            prompts=attention(AttentionSplit.HEADS),
            decodes=attention(split),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placing:
    model: ModelSpec
    chip: ChipSpec
    cores: int

    def product(
        self, tensors: Iterable[Tensor], parts: float, storage: WeightFormat
    ) -> WeightProduct:
        """Products of matrices divided into `parts`, one on each of a chip's cores."""
        rate = product_rate(storage, self.chip, self.model.sparsity)
        macs = 0.0
        for tensor in tensors:
            if tensor.rows == 1:
                continue
            contracted = tensor.name in _DIVIDED_BY_CONTRACTION
            macs += tile_macs(
                self.chip.matrix,
                contraction=tensor.columns / (parts if contracted else 1),
                outputs=tensor.rows / (1 if contracted else parts),
                mx=rate.quantised,
            )
        return WeightProduct(rate=rate, macs=self.cores * macs)


def _kv_up_macs(model: ModelSpec, engine: MatrixEngine) -> float:
    """Per head and row: keys and values from a latent, or queries and values folded."""
    latent = model.latent
    if latent is None:
        return 0.0
    into = tile_macs(engine, contraction=latent.nope_dim, outputs=latent.kv_rank)
    out = tile_macs(engine, contraction=latent.kv_rank, outputs=latent.value_dim)
    return into + out

"""Work of recomputing selected activations before a backward pass (`Recompute.SELECTIVE`).

Norms, gated products, and a latent's queries, keys and values. What a backward pass reads is
written first, and as many bytes are read for it.
"""

from typing import Final

import numpy as np

from emulator.arrays import Float64s
from emulator.specs.model import ModelSpec
from emulator.specs.model_tensors import parameters_of, query_tensors
from emulator.specs.saved_activations import SavedActivations
from emulator.specs.training_recipe import Recompute
from emulator.timing.product_rate import ProductRate
from emulator.timing.rank_totals import RankTotals
from emulator.timing.work import FLOPS_PER_MAC, NORM_FLOPS, SWIGLU_FLOPS, EngineWork

_READ_AND_WRITTEN: Final = 2


def recomputed_work(model: ModelSpec, totals: RankTotals, part: str) -> EngineWork:
    """Of one row of each rank, [ranks]; nothing of the ends."""
    tokens = totals.tokens
    lacking = _lacking(model)
    match part:
        case "attention":
            ups = [each for each in query_tensors(model) if each.name in ("query_up", "kv_up")]
            macs = parameters_of(ups) * tokens
            return EngineWork.of(
                flops={ProductRate.PLAIN: FLOPS_PER_MAC * macs},
                vector_flops=NORM_FLOPS * model.hidden * tokens,
                hbm_bytes=_READ_AND_WRITTEN * lacking.attention * tokens,
            )
        case "dense":
            return _gated(model, model.dense_intermediate, tokens, lacking.dense)
        case "router":
            width = model.shared_experts * model.expert_intermediate
            return _gated(model, width, tokens, lacking.router)
    return EngineWork.of(flops={ProductRate.PLAIN: np.zeros_like(tokens)})


def recomputed_pairs(model: ModelSpec, pairs: Float64s) -> EngineWork:
    """Gated products of routed experts' `pairs` on a chip: fields of their shape."""
    activated = model.expert_intermediate * pairs
    return EngineWork.of(
        flops={ProductRate.PLAIN: np.zeros_like(pairs)},
        vector_flops=SWIGLU_FLOPS * activated,
        scalar_ops=activated,
        hbm_bytes=_READ_AND_WRITTEN * _lacking(model).expert_pair * pairs,
    )


def _gated(model: ModelSpec, width: int, tokens: Float64s, lacking_bytes: int) -> EngineWork:
    activated = width * tokens
    return EngineWork.of(
        flops={ProductRate.PLAIN: np.zeros_like(tokens)},
        vector_flops=NORM_FLOPS * model.hidden * tokens + SWIGLU_FLOPS * activated,
        scalar_ops=activated,
        hbm_bytes=_READ_AND_WRITTEN * lacking_bytes * tokens,
    )


def _lacking(model: ModelSpec) -> SavedActivations:
    """Bytes that are not kept."""
    whole = SavedActivations.of(model)
    kept = SavedActivations.of(model, Recompute.SELECTIVE)
    return SavedActivations(
        layer_input=0,
        attention=whole.attention - kept.attention,
        dense=whole.dense - kept.dense,
        router=whole.router - kept.router,
        expert_pair=whole.expert_pair - kept.expert_pair,
    )

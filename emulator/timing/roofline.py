"""The roofline: how long work keeps each engine of a chip busy, and how long it takes together.

Assumptions, each a ceiling and so on the optimistic side:
- every engine runs at its peak rate whenever it has work (no issue intervals, no clock throttle);
- engines overlap perfectly inside a phase (attention, or a chip's experts), weights are prefetched:
  a phase lasts as long as its busiest engine;
- of a layer's DMA transfers, double buffering hides every start-up but EXPOSED_DMA_STARTS.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from emulator.specs.chip import ChipSpec
from emulator.timing.work import Float64s, Work
from emulator.units import NS_PER_S

ENGINES: Final = ("tensor", "vector", "scalar", "dma")
EXPOSED_DMA_STARTS: Final = 1  # per layer; assumed: the first transfer has nothing to hide behind


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRates:
    """Peak work per ns of one chip; the matrix engine has a rate for each kind of product."""

    tensor_flops: float
    mx_flops: float
    vector_flops: float
    scalar_ops: float
    hbm_bytes: float


def engine_rates(chip: ChipSpec, dtype: str) -> EngineRates:
    """Rates of `chip` with plain products in `dtype`.

    MXFP4 weights run at the MXFP8 rate: they are turned into MXFP8 before the array (AWS Neuron SDK
    docs, trainium3_arch.rst), and 4-bit weights with 8-bit activations are the intended way to
    decode (SemiAnalysis, AWS Trainium3 Deep Dive).
    """
    return EngineRates(
        tensor_flops=chip.tensor_flops_per_s(dtype) / NS_PER_S,
        mx_flops=chip.tensor_mxfp8_flops_per_s.value / NS_PER_S,
        vector_flops=chip.vector_flops_per_s.value / NS_PER_S,
        scalar_ops=chip.scalar_ops_per_s.value / NS_PER_S,
        hbm_bytes=chip.memory_bytes_per_s / NS_PER_S,
    )


def busy_ns(work: Work, rates: EngineRates) -> Float64s:
    """Nanoseconds that `work` keeps each engine busy: fields of shape [...] -> [engines, ...]."""
    rows = (
        work.tensor_flops / rates.tensor_flops + work.mx_flops / rates.mx_flops,
        work.vector_flops / rates.vector_flops,
        work.scalar_ops / rates.scalar_ops,
        work.hbm_bytes / rates.hbm_bytes,
    )
    return np.array(np.broadcast_arrays(*rows))


def overlapped_ns(busy: Float64s) -> Float64s:
    """How long overlapped engines take together: [engines, ...] -> [...]."""
    longest: Float64s = busy.max(axis=0)
    return longest


def exposed_start_ns(chip: ChipSpec) -> float:
    """DMA start-up of one layer that nothing hides."""
    return EXPOSED_DMA_STARTS * chip.dma_start_ns.value

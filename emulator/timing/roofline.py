"""The roofline: how long work keeps each engine of a chip busy, and how long it takes together.

Assumptions, each a ceiling and so on the optimistic side:
- every engine runs at its peak rate whenever it has work (no issue intervals, no clock throttle);
- engines overlap perfectly inside a layer, weights are prefetched: a layer lasts as long as its
  busiest engine;
- of a layer's DMA transfers, double buffering hides every start-up but EXPOSED_DMA_STARTS.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from emulator.specs.chip import ChipSpec
from emulator.timing.work import Float64s, Work
from emulator.units import NS_PER_S

ENGINES: Final = ("tensor", "vector", "scalar", "dma")
EXPOSED_DMA_STARTS: Final = 1  # per layer; assumed: the first transfer has nothing to hide behind


def engine_rates(chip: ChipSpec, dtype: str) -> NDArray[np.float64]:
    """Peak work per ns of each engine, in the order of ENGINES, float64[engines, 1]."""
    rates = (
        chip.tensor_flops_per_s(dtype),
        chip.vector_flops_per_s.value,
        chip.scalar_ops_per_s.value,
        chip.memory_bytes_per_s,
    )
    return np.array(rates)[:, None] / NS_PER_S


def busy_ns(work: Work, rates: NDArray[np.float64]) -> Float64s:
    """Nanoseconds that `work` keeps each engine busy: [ranks] by resource -> [engines, ranks]."""
    rows = (work.tensor_flops, work.vector_flops, work.scalar_ops, work.hbm_bytes)
    return np.array(rows) / rates


def overlapped_ns(busy: Float64s) -> Float64s:
    """How long overlapped engines take together: [engines, ranks] -> [ranks]."""
    longest: Float64s = busy.max(axis=0)
    return longest


def exposed_start_ns(chip: ChipSpec) -> float:
    """DMA start-up of one layer that nothing hides."""
    return EXPOSED_DMA_STARTS * chip.dma_start_ns.value

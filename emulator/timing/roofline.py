"""The roofline: busy time of each engine of a chip at peak rates.

The matrix engine is occupied for issued work (matrix_time), and starts slowly (clock_ramp). The
overlap of engines is a calibration's.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from emulator.arrays import Float64s
from emulator.specs.chip import ChipSpec
from emulator.timing.product_rate import flops_per_ns
from emulator.timing.work import EngineWork
from emulator.units import NS_PER_S

ENGINES: Final = ("tensor", "vector", "scalar", "gpsimd", "dma")
TENSOR: Final = ENGINES.index("tensor")
DMA: Final = ENGINES.index("dma")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EngineRates:
    """Peak work per ns of one chip; the matrix engine has a rate for each kind of product.

    Without GPSIMD engines the vector engines do their work, one operation a flop.
    """

    flops: Float64s  # [rates]
    vector_flops: float
    scalar_ops: float
    gpsimd_ops: float | None
    hbm_bytes: float


def engine_rates(chip: ChipSpec, dtype: str) -> EngineRates:
    """Rates of `chip` with plain products in `dtype`."""
    gpsimd = chip.gpsimd_ops_per_s
    return EngineRates(
        flops=flops_per_ns(chip, dtype),
        vector_flops=chip.vector_flops_per_s.value / NS_PER_S,
        scalar_ops=chip.scalar_ops_per_s.value / NS_PER_S,
        gpsimd_ops=None if gpsimd is None else gpsimd.value / NS_PER_S,
        hbm_bytes=chip.memory_bytes_per_s / NS_PER_S,
    )


def busy_ns(work: EngineWork, rates: EngineRates) -> Float64s:
    """Busy nanoseconds of each engine for `work`: fields of shape [...] -> [engines, ...]."""
    vector, gpsimd = work.vector_flops, work.gpsimd_ops
    if rates.gpsimd_ops is None:
        vector, gpsimd = vector + gpsimd, np.zeros_like(gpsimd)
    # Not a product of matrices: its roundings depend on how many columns there are.
    tensor = (1 / rates.flops).reshape(-1, *[1] * (work.issued_flops.ndim - 1))
    rows = (
        (tensor * work.issued_flops).sum(axis=0),
        vector / rates.vector_flops,
        work.scalar_ops / rates.scalar_ops,
        gpsimd / (rates.gpsimd_ops or 1.0),
        (work.hbm_bytes + work.lost_bytes) / rates.hbm_bytes,
    )
    return np.array(np.broadcast_arrays(*rows))

"""Bytes of a kernel: streamed from HBM, or left in the memory beside the engines (a GPU's L2).

A benchmark that runs one kernel in a loop finds in near memory what did not fall out of it since
the last run. A model's weights and caches never do: between two uses lies a whole step.
"""

import numpy as np

from emulator.arrays import Float64s
from emulator.timing.laws.silicon import Constant, Silicon

_STEEPNESS = 4  # assumed: of the change from staying to falling out, around the memory's size


def overlapped_ns(exponent: Constant, *busy_ns: Float64s) -> Float64s:
    """Times of engines that partly overlap: their norm, 1 for taking turns; [kernels] each.

    At least the longest, at most the sum.
    """
    longest = np.maximum.reduce(np.broadcast_arrays(*busy_ns))
    least = np.maximum(longest, np.finfo(float).tiny)
    powers = sum((each / least) ** exponent for each in busy_ns)
    total: Float64s = longest * powers ** (1 / exponent)
    return total


def kept_share(kept_bytes: Float64s, silicon: Silicon, *, copies: Constant) -> Float64s:
    """Share of `kept_bytes` that a loop over `copies` of them finds in near memory, [kernels]."""
    fitting = np.asarray(silicon.near_bytes, dtype=float) ** _STEEPNESS
    share: Float64s = fitting / (fitting + (copies * kept_bytes) ** _STEEPNESS)
    return share


def near_ns(moved_bytes: Float64s, silicon: Silicon, *, core_bytes: Constant) -> Float64s:
    """Bytes that other kernels just wrote: from near memory, the rest beyond its size from HBM.

    `core_bytes`: a core's rate from near memory per ns; [kernels] -> [kernels].
    """
    beyond = np.maximum(0.0, moved_bytes - silicon.near_bytes)
    spilled: Float64s = moved_bytes / (silicon.cores * core_bytes) + beyond / silicon.hbm_bytes
    return spilled

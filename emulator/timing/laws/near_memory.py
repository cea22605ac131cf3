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


def stored_ns(
    stored_bytes: Float64s,
    kept: Float64s | float,
    silicon: Silicon,
    *,
    memory_share: Constant,
    core_bytes: Constant,
) -> Float64s:
    """Weights or caches, loaded by all cores: the `kept` share from near memory, else from HBM.

    `memory_share`: of HBM's rate; `core_bytes`: as in `near_ns`; [kernels].
    """
    streamed_ns = (1 - kept) / (silicon.hbm_bytes * memory_share)
    near = kept / (silicon.cores * core_bytes)
    total: Float64s = stored_bytes * (streamed_ns + near)
    return total


def least_ns(flops: Float64s, stored_bytes: Float64s, silicon: Silicon) -> Float64s:
    """At peak rates, with near memory full of what is stored: no kernel is faster; [kernels]."""
    streamed = np.maximum(0.0, stored_bytes - silicon.near_bytes)
    least: Float64s = np.maximum(flops / silicon.flops, streamed / silicon.hbm_bytes)
    return least


def near_ns(moved_bytes: Float64s, silicon: Silicon, *, core_bytes: Constant) -> Float64s:
    """Bytes that other kernels just wrote: from near memory, the rest beyond its size from HBM.

    `core_bytes`: a core's rate from near memory per ns; [kernels] -> [kernels].
    """
    beyond = np.maximum(0.0, moved_bytes - silicon.near_bytes)
    spilled: Float64s = moved_bytes / (silicon.cores * core_bytes) + beyond / silicon.hbm_bytes
    return spilled

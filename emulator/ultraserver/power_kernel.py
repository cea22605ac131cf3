"""Adds power to a timed step and rounds it, compiled: whole nanoseconds, watts, busy times.

The arithmetic is that of `power.draw`. A slow chip draws for its work, not for its time (assumed:
it does each operation once, as a throttled chip). Where a chip would exceed its budget, or its even
part of its rack's, the whole step is stretched: chips wait for each other.
"""

from typing import NamedTuple

import numpy as np

from emulator.arrays import Float64s, Int64s
from emulator.ultraserver.compiled import compiled
from emulator.ultraserver.step_time import ROUNDING
from emulator.ultraserver.terms_layout import ENGINE_COUNT, RATES
from emulator.ultraserver.time_kernel import (
    WORK_DISPATCHED,
    WORK_FLOPS,
    WORK_HBM,
    WORK_LINK_BYTES,
    WORK_LINK_NS,
)


class PowerTables(NamedTuple):
    """`watts` are those above idle for each of a chip's work, [columns of work]: by nanosecond for
    engines and links, by flop for products, 0 for the rest.
    """

    watts: Float64s
    idle_watts: float
    cap_watts: float


class Rounded(NamedTuple):
    """See `StepCost`; `busy_ns` are the engines' and the links'."""

    duration_ns: int
    throttled_ns: float
    rank_ns: Int64s  # [ranks]
    busy_ns: Int64s  # [engines + 1, chips]
    chip_watts: Float64s  # [chips]
    watts: float  # of all chips
    flops: Float64s  # [chips]
    hbm_bytes: Float64s  # [chips]
    link_bytes: Float64s  # [chips]
    dispatched_bytes: Float64s  # [chips]


@compiled
def rounded(
    tables: PowerTables, duration_ns: float, rank_ns: Float64s, work: Float64s, slow: Float64s
) -> Rounded:
    """A step that takes `duration_ns` at full rate, and its ranks `rank_ns` [ranks].

    `work` is [chips, columns of work]. Times are rounded up, busy times down.
    """
    chips = len(work)
    busy_ns = np.empty((ENGINE_COUNT + 1, chips), dtype=np.int64)
    dynamic, flops, chip_watts = np.empty(chips), np.zeros(chips), np.empty(chips)
    factor, watts_sum = 1.0, 0.0
    for chip in range(chips):
        watts = 0.0
        for column in range(len(tables.watts)):
            watts += tables.watts[column] * work[chip, column]
        dynamic[chip] = watts / duration_ns
        factor = max(factor, dynamic[chip] / (tables.cap_watts - tables.idle_watts))
        for rate in range(RATES):
            flops[chip] += work[chip, WORK_FLOPS + rate]
        for engine in range(ENGINE_COUNT):
            busy_ns[engine, chip] = int(slow[chip] * work[chip, engine] * (1 + ROUNDING))
        busy_ns[ENGINE_COUNT, chip] = int(work[chip, WORK_LINK_NS] * (1 + ROUNDING))
    for chip in range(chips):
        chip_watts[chip] = tables.idle_watts + dynamic[chip] / factor
        watts_sum += chip_watts[chip]
    whole_ns = np.empty(len(rank_ns), dtype=np.int64)
    for rank in range(len(rank_ns)):
        whole_ns[rank] = int(np.ceil(factor * rank_ns[rank] * (1 - ROUNDING)))
    return Rounded(
        duration_ns=int(np.ceil(factor * duration_ns * (1 - ROUNDING))),
        throttled_ns=(factor - 1) * duration_ns,
        rank_ns=whole_ns,
        busy_ns=busy_ns,
        chip_watts=chip_watts,
        watts=watts_sum,
        flops=flops,
        hbm_bytes=work[:, WORK_HBM].copy(),
        link_bytes=work[:, WORK_LINK_BYTES].copy(),
        dispatched_bytes=work[:, WORK_DISPATCHED].copy(),
    )

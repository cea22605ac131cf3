"""Adds power to a timed step and rounds it, compiled: whole nanoseconds, watts, busy times.

The arithmetic is that of `power.draw`. A slow chip draws for its work, not for its time (assumed:
it does each operation once, as a throttled chip). Where a chip would exceed its budget, or its even
part of its rack's, the whole step is stretched: chips wait for each other.
"""

from typing import NamedTuple

import numpy as np

from emulator.arrays import Float64s, Int64s
from emulator.compiled import allocating, inlined
from emulator.ultraserver.step_time import ROUNDING
from emulator.ultraserver.terms_layout import ENGINE_COUNT, RATES
from emulator.ultraserver.work_kernel import (
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


class Drawn(NamedTuple):
    """A step of all chips; see `StepCost`."""

    duration_ns: int
    throttled_ns: float
    watts: float


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


@inlined
def dynamic_energy(tables: PowerTables, work: Float64s, chip: int) -> float:
    """Above idle, of a chip of `work` [chips, columns of work], in W ns."""
    energy = 0.0
    for column in range(len(tables.watts)):
        energy += tables.watts[column] * work[chip, column]
    return energy


@inlined
def _stretch(tables: PowerTables, duration_ns: float, energy: Float64s) -> float:
    """By how much power limits stretch a step; `energy` [chips] as `dynamic_energy`."""
    most = energy[0]
    for chip in range(1, len(energy)):
        most = max(most, energy[chip])
    return float(max(1.0, most / duration_ns / (tables.cap_watts - tables.idle_watts)))


@inlined
def drawn(tables: PowerTables, duration_ns: float, energy: Float64s) -> Drawn:
    """A step that takes `duration_ns` at full rate; `energy` [chips] as `dynamic_energy`."""
    factor, watts = _stretch(tables, duration_ns, energy), 0.0
    if factor == 1.0:
        for chip in range(len(energy)):
            watts += tables.idle_watts + energy[chip] / duration_ns
    else:
        for chip in range(len(energy)):
            watts += tables.idle_watts + energy[chip] / duration_ns / factor
    return Drawn(
        duration_ns=int(np.ceil(factor * duration_ns * (1 - ROUNDING))),
        throttled_ns=(factor - 1) * duration_ns,
        watts=watts,
    )


@allocating
def rounded(
    tables: PowerTables, duration_ns: float, rank_ns: Float64s, work: Float64s, slow: Float64s
) -> Rounded:
    """`drawn`, and each rank and chip; ranks take `rank_ns` [ranks] at full rate.

    `work` is [chips, columns of work]. Times are rounded up, busy times down.
    """
    chips = len(work)
    energy = np.empty(chips)
    for chip in range(chips):
        energy[chip] = dynamic_energy(tables, work, chip)
    factor = _stretch(tables, duration_ns, energy)
    busy_ns = np.empty((ENGINE_COUNT + 1, chips), dtype=np.int64)
    flops, chip_watts = np.zeros(chips), np.empty(chips)
    for chip in range(chips):
        for rate in range(RATES):
            flops[chip] += work[chip, WORK_FLOPS + rate]
        for engine in range(ENGINE_COUNT):
            busy_ns[engine, chip] = int(slow[chip] * work[chip, engine] * (1 + ROUNDING))
        busy_ns[ENGINE_COUNT, chip] = int(work[chip, WORK_LINK_NS] * (1 + ROUNDING))
        chip_watts[chip] = tables.idle_watts + energy[chip] / duration_ns / factor
    whole_ns = np.empty(len(rank_ns), dtype=np.int64)
    for rank in range(len(rank_ns)):
        whole_ns[rank] = int(np.ceil(factor * rank_ns[rank] * (1 - ROUNDING)))
    whole = drawn(tables, duration_ns, energy)
    return Rounded(
        duration_ns=whole.duration_ns,
        throttled_ns=whole.throttled_ns,
        rank_ns=whole_ns,
        busy_ns=busy_ns,
        chip_watts=chip_watts,
        watts=whole.watts,
        flops=flops,
        hbm_bytes=work[:, WORK_HBM].copy(),
        link_bytes=work[:, WORK_LINK_BYTES].copy(),
        dispatched_bytes=work[:, WORK_DISPATCHED].copy(),
    )

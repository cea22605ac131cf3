"""The compiled functions that Python calls: a whole step in one, or its passes one by one.

Each is kept on disk; see `compiled`.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from emulator.arrays import Float64s, Int64s
from emulator.ultraserver import (
    count_kernel,
    overlap_kernel,
    power_kernel,
    request_kernel,
    terms_layout,
    time_kernel,
)
from emulator.ultraserver.compiled import kept, sources_of
from emulator.ultraserver.count_kernel import CountTables, GivenExperts, StepCounts, count
from emulator.ultraserver.overlap_kernel import time_halves, time_overlapped
from emulator.ultraserver.power_kernel import PowerTables, Rounded, rounded
from emulator.ultraserver.time_kernel import Passed, TimeTables, time_alone

Batch = tuple[Int64s, Int64s, Int64s, Int64s]  # as `count` has it


class CostKernel(NamedTuple):
    """The functions; what each does, the compiled one of its name says."""

    step: Callable[..., tuple[Rounded, Float64s, Int64s]]
    counted: Callable[[CountTables, GivenExperts, Batch], StepCounts]
    alone: Callable[[TimeTables, StepCounts, Float64s], Passed]
    overlapped: Callable[[TimeTables, StepCounts, Float64s], Passed]
    halves: Callable[[TimeTables, StepCounts, tuple[StepCounts, StepCounts], Float64s], Passed]
    rounded: Callable[[PowerTables, float, Float64s, Float64s, Float64s], Rounded]


def _cost_kernel(sources: int) -> CostKernel:
    """Made of what is in `sources`."""

    @kept
    def step(
        tables: tuple[CountTables, TimeTables, PowerTables],
        given: GivenExperts,
        batch: Batch,
        slow: Float64s,
    ) -> tuple[Rounded, Float64s, Int64s]:
        """A step without overlap or drafts: rounded, with the parts and bounds of `Passed`."""
        assert sources >= 0
        passed = time_alone(tables[1], count(tables[0], given, batch), slow)
        whole = rounded(tables[2], passed.duration_ns, passed.rank_ns, passed.work, slow)
        return whole, passed.parts_ns, passed.bound

    @kept
    def counted(tables: CountTables, given: GivenExperts, batch: Batch) -> StepCounts:
        assert sources >= 0
        return count(tables, given, batch)

    @kept
    def alone(tables: TimeTables, counted: StepCounts, slow: Float64s) -> Passed:
        assert sources >= 0
        return time_alone(tables, counted, slow)

    @kept
    def overlapped(tables: TimeTables, counted: StepCounts, slow: Float64s) -> Passed:
        assert sources >= 0
        return time_overlapped(tables, counted, slow)

    @kept
    def halves(
        tables: TimeTables,
        counted: StepCounts,
        pair: tuple[StepCounts, StepCounts],
        slow: Float64s,
    ) -> Passed:
        assert sources >= 0
        return time_halves(tables, counted, pair, slow)

    @kept
    def whole(
        tables: PowerTables, duration_ns: float, rank_ns: Float64s, work: Float64s, slow: Float64s
    ) -> Rounded:
        assert sources >= 0
        return rounded(tables, duration_ns, rank_ns, work, slow)

    return CostKernel(step, counted, alone, overlapped, halves, whole)


KERNEL: Final = _cost_kernel(
    sources_of(
        terms_layout, request_kernel, count_kernel, time_kernel, overlap_kernel, power_kernel
    )
)

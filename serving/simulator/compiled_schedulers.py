"""The scheduler's functions that Python calls. Each is kept on disk; see `compiled`."""

from collections.abc import Callable
from typing import Final, NamedTuple

from emulator.ultraserver.compiled import kept, sources_of
from serving.simulator import kv_blocks, rank_queues, scheduler_arrays
from serving.simulator import scheduler_kernel as made_of
from serving.simulator.scheduler_arrays import (
    Int32s,
    Int64s,
    PrefixCache,
    SchedulerArrays,
    SchedulerBounds,
)

Cache = PrefixCache | None


class SchedulerKernel(NamedTuple):
    """The functions; what each does, the compiled one of its name says."""

    admit: Callable[[SchedulerArrays, SchedulerBounds, Cache, int, int], int]
    send: Callable[[SchedulerArrays, SchedulerBounds, Cache, int], None]
    most_hit_tokens: Callable[[SchedulerArrays, SchedulerBounds, Cache, int], int]
    demand: Callable[[SchedulerArrays, SchedulerBounds, int, Int64s, Int64s], None]
    schedule: Callable[[SchedulerArrays, SchedulerBounds, Cache, Int64s, Int64s], int]
    give_tokens: Callable[[SchedulerArrays, Cache, int, int, Int32s], tuple[int, int]]
    abort: Callable[[SchedulerArrays, Cache, int], None]


def _scheduler_kernel(sources: int) -> SchedulerKernel:
    """Made of what is in `sources`."""

    @kept
    def admit(s: SchedulerArrays, bounds: SchedulerBounds, c: Cache, first: int, now: int) -> int:
        assert sources >= 0
        return made_of.admit(s, bounds, c, first, now)

    @kept
    def send(s: SchedulerArrays, bounds: SchedulerBounds, c: Cache, request: int) -> None:
        assert sources >= 0
        made_of.send(s, bounds, c, request)

    @kept
    def most_hit_tokens(s: SchedulerArrays, bounds: SchedulerBounds, c: Cache, request: int) -> int:
        assert sources >= 0
        return rank_queues.most_hit_tokens(s, bounds, c, request)

    @kept
    def demand(
        s: SchedulerArrays, bounds: SchedulerBounds, enough: int, pending: Int64s, decodes: Int64s
    ) -> None:
        assert sources >= 0
        made_of.demand(s, bounds, enough, pending, decodes)

    @kept
    def schedule(
        s: SchedulerArrays, bounds: SchedulerBounds, c: Cache, budgets: Int64s, decodes: Int64s
    ) -> int:
        assert sources >= 0
        return made_of.schedule(s, bounds, c, budgets, decodes)

    @kept
    def give_tokens(
        s: SchedulerArrays, c: Cache, rows: int, end_ns: int, given: Int32s
    ) -> tuple[int, int]:
        assert sources >= 0
        return made_of.give_tokens(s, c, rows, end_ns, given)

    @kept
    def abort(s: SchedulerArrays, c: Cache, request: int) -> None:
        assert sources >= 0
        made_of.abort(s, c, request)

    return SchedulerKernel(admit, send, most_hit_tokens, demand, schedule, give_tokens, abort)


KERNEL: Final = _scheduler_kernel(sources_of(scheduler_arrays, kv_blocks, rank_queues, made_of))

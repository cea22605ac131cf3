"""The scheduler's functions that Python calls. Each is kept on disk; see `compiled`."""

from typing import Final

from emulator.arrays import Int32s, Int64s
from emulator.compiled import kept, sources_of
from emulator.ultraserver import cost_kernel
from serving.policy import prefill_throttle
from serving.simulator import (
    aborted_requests,
    costed_steps,
    kv_blocks,
    kv_on_way,
    pool_run_kernel,
    rank_queues,
    scheduler_arrays,
    standing_decodes,
    step_run_kernel,
    step_run_record,
    verified_drafts,
)
from serving.simulator import scheduler_kernel as kernel
from serving.simulator.scheduler_arrays import (
    Acceptance,
    PrefixCache,
    SchedulerArrays,
    SchedulerBounds,
)

Cache = PrefixCache | None

SOURCES: Final = sources_of(
    *(scheduler_arrays, kv_blocks, kv_on_way, rank_queues),
    *(verified_drafts, kernel, aborted_requests),
)


@kept(SOURCES)
def admit(s: SchedulerArrays, bounds: SchedulerBounds, c: Cache, first: int, now_ns: int) -> int:
    """`scheduler_kernel.admit`."""
    return kernel.admit(s, bounds, c, first, now_ns)


@kept(SOURCES)
def send(s: SchedulerArrays, bounds: SchedulerBounds, c: Cache, requests: Int64s) -> None:
    """`scheduler_kernel.send`."""
    kernel.send(s, bounds, c, requests)


@kept(SOURCES)
def weigh(
    s: SchedulerArrays,
    bounds: SchedulerBounds,
    c: Cache,
    request: int,
    figures: tuple[Int64s, Int64s, Int64s],
) -> None:
    """`rank_queues.hit_tokens`, and both of `rank_queues.loads`: each [ranks]."""
    rank_queues.hit_tokens(s, bounds, c, request, figures[0])
    rank_queues.loads(s, request, figures[1], figures[2])


@kept(SOURCES)
def put_in(s: SchedulerArrays, bounds: SchedulerBounds, request: int, rank: int) -> None:
    """`rank_queues.put_in`."""
    rank_queues.put_in(s, bounds, request, rank)


@kept(SOURCES)
def held_tokens(s: SchedulerArrays) -> int:
    """`rank_queues.held_tokens`."""
    return rank_queues.held_tokens(s)


@kept(SOURCES)
def tokens_left(s: SchedulerArrays, bounds: SchedulerBounds, c: Cache, request: int) -> int:
    """`held_tokens`, less `rank_queues.most_hit_tokens`."""
    return rank_queues.held_tokens(s) - rank_queues.most_hit_tokens(s, bounds, c, request)


@kept(SOURCES)
def demand(
    s: SchedulerArrays, bounds: SchedulerBounds, enough: int, pending: Int64s, decodes: Int64s
) -> None:
    """`scheduler_kernel.demand`."""
    kernel.demand(s, bounds, enough, pending, decodes)


@kept(SOURCES)
def schedule(
    s: SchedulerArrays,
    bounds: SchedulerBounds,
    c: Cache,
    budgets: Int64s,
    decodes: Int64s,
    now_ns: int,
) -> int:
    """`scheduler_kernel.schedule`."""
    return kernel.schedule(s, bounds, c, budgets, decodes, now_ns)


@kept(SOURCES)
def next_kv_ns(s: SchedulerArrays, now_ns: int) -> int:
    """`kv_on_way.next_kv_ns`."""
    return kv_on_way.next_kv_ns(s, now_ns)


@kept(SOURCES)
def give_tokens(
    s: SchedulerArrays,
    c: Cache,
    acceptance: Acceptance | None,
    rows: int,
    end_ns: int,
    given: Int32s,
) -> tuple[int, int]:
    """`scheduler_kernel.give_tokens`."""
    return kernel.give_tokens(s, c, acceptance, rows, end_ns, given)


@kept(SOURCES)
def may_preempt(s: SchedulerArrays, bounds: SchedulerBounds) -> bool:
    """`scheduler_kernel.may_preempt`."""
    return kernel.may_preempt(s, bounds)


@kept(SOURCES)
def fill_cache(s: SchedulerArrays, c: PrefixCache, block_tokens: int) -> None:
    """`kv_blocks.fill`."""
    kv_blocks.fill(s, c, block_tokens)


run_steps = kept(
    sources_of(
        *(step_run_kernel, step_run_record, costed_steps),
        *(standing_decodes, prefill_throttle, cost_kernel),
    )
    ^ SOURCES
    ^ cost_kernel.SOURCES
)(step_run_kernel.run_steps)


run_pool = kept(
    sources_of(
        *(pool_run_kernel, step_run_kernel, step_run_record, costed_steps),
        *(standing_decodes, prefill_throttle, cost_kernel),
    )
    ^ SOURCES
    ^ cost_kernel.SOURCES
)(pool_run_kernel.run_pool)


@kept(SOURCES)
def let_go(s: SchedulerArrays, c: PrefixCache, rank: int, blocks: Int32s) -> None:
    """`kv_blocks.let_go` of `blocks` [1, 1, blocks]."""
    kv_blocks.let_go(s, c, rank, blocks, (0, 0), blocks.shape[2])


@kept(SOURCES)
def abort(s: SchedulerArrays, c: Cache, request: int) -> None:
    """`aborted_requests.abort`."""
    aborted_requests.abort(s, c, request)


@kept(SOURCES)
def abort_due(s: SchedulerArrays, c: Cache, now_ns: int) -> Int32s:
    """`aborted_requests.abort_due`."""
    return aborted_requests.abort_due(s, c, now_ns)

"""A closed loop over one or two pools of engines whose steps take given times, compiled.

The ranks' schedulers are those of every simulation; the times of steps come from a short table, so
that a benchmark's whole run takes a fraction of a second. What it leaves out: faults, priorities,
prefix caches, energy.
"""

# mypy: no-warn-return-any
# Fields of records have no type that mypy knows.

from typing import Final, NamedTuple

import numpy as np

from emulator.arrays import Float64s, Int32s, Int64s
from emulator.compiled import allocating, compiled, kept
from serving.simulator.compiled_schedulers import SOURCES
from serving.simulator.rank_queues import chosen_rank, put_in
from serving.simulator.scheduler_arrays import (
    NEVER_NS,
    NONE,
    Acceptance,
    Records,
    SchedulerArrays,
    SchedulerBounds,
)
from serving.simulator.scheduler_kernel import demand, give_tokens, schedule


class StepTable(NamedTuple):
    """Times of an engine's steps.

    Decoding `batches` sequences takes `decode_ns`, [grid] each, linear between them. Of prompts,
    one takes `solo_ns` and `full_prompts` take `full_ns`; beside decodes they add `solo_added_ns`
    or `full_added_ns`. Prompts are counted by their tokens, `prompt_tokens` to one.
    """

    batches: Float64s
    decode_ns: Float64s
    prompt_tokens: float
    full_prompts: float
    solo_ns: float
    full_ns: float
    solo_added_ns: float
    full_added_ns: float


class StackRules(NamedTuple):
    """What an engine does otherwise than vLLM.

    `take_steps`: decode steps after which it looks for new requests. `together_steps`: steps for
    which prompts wait until every rank has one, while all decode; 0 for no waiting.
    `prompts_first`: a step's prompts have their tokens before its decodes begin. `ahead`: a step is
    decided when the one before it begins, so that what comes during a step waits for two ends.
    """

    take_steps: int
    together_steps: int
    prompts_first: bool
    ahead: bool


class EnginePoolState(NamedTuple):
    """Equal engines: rank and row arrays are engine by engine."""

    s: SchedulerArrays
    bounds: SchedulerBounds
    acceptance: Acceptance
    table: StepTable
    rules: StackRules
    prompt_tokens: int  # of a rank in a step, beside its decodes
    received: bool  # prompts come computed
    end_ns: Int64s  # of the step under way, or NEVER_NS: [engines]
    rows: Int64s  # of the step under way, [engines]
    decode_ns: Int64s  # its part for decodes, [engines]
    held: Int64s  # requests that wait, run, or are not looked at: [engines]
    untaken: Int64s  # steps since it looked for requests, [engines]
    waited: Int64s  # steps for which prompts waited for each other, [engines]
    inbox: Int64s  # first and last request that is not looked at, [engines, 2]
    behind: Int64s  # the one after each of them, [requests]
    came_ns: Int64s  # when each came to its engine, [requests]
    begun_ns: Int64s  # of the last step, [engines]
    given: Int32s  # room for a step's tokens
    by_rank: Int64s  # room for budgets, pending tokens and decodes: [3, ranks]


class ClientTimes(NamedTuple):
    """`request_ns`: from a user to the engines. `token_ns`: back. `transfer_ns`: of a prompt's keys
    and values to the pool that decodes.
    """

    users: int
    request_ns: int
    token_ns: int
    transfer_ns: int


@allocating
def _engine(pool: EnginePoolState, engine: int) -> SchedulerArrays:
    """Its part of the pool's arrays."""
    s = pool.s
    ranks = len(s.ranks) // len(pool.end_ns)
    rows = len(s.rows) // len(pool.end_ns)
    first, last = engine * ranks, (engine + 1) * ranks
    return SchedulerArrays(
        s.requests,
        s.ranks[first:last],
        s.rows[engine * rows : (engine + 1) * rows],
        s.running[first:last],
        s.waiting_tokens[first:last],
        s.waiting_requests[first:last],
    )


@compiled
def _route(pool: EnginePoolState, request: int, now_ns: int) -> None:
    """To the engine with the fewest requests, the first of several."""
    engine = 0
    for other in range(1, len(pool.held)):
        if pool.held[other] < pool.held[engine]:
            engine = other
    pool.held[engine] += 1
    pool.behind[request] = NONE
    pool.came_ns[request] = now_ns
    if pool.inbox[engine, 0] == NONE:
        pool.inbox[engine, 0] = request
    else:
        pool.behind[pool.inbox[engine, 1]] = request
    pool.inbox[engine, 1] = request


@compiled
def _prompts_ns(table: StepTable, tokens: int, added: bool) -> float:
    """Time of prompts of so many tokens together."""
    solo_ns = table.solo_added_ns if added else table.solo_ns
    full_ns = table.full_added_ns if added else table.full_ns
    prompts, full = tokens / table.prompt_tokens, table.full_prompts
    if prompts <= 1 or full <= 1:
        return solo_ns * prompts
    if prompts >= full:
        return full_ns * prompts / full
    return solo_ns + (full_ns - solo_ns) * (prompts - 1) / (full - 1)


@compiled
def _decode_ns(table: StepTable, batch: int) -> float:
    grid = table.batches
    if batch <= grid[0]:
        return table.decode_ns[0]
    upper = 1
    while upper < len(grid) - 1 and grid[upper] < batch:
        upper += 1
    if upper == len(grid) or grid[upper] <= grid[upper - 1]:
        return table.decode_ns[upper - 1]
    share = min(1.0, (batch - grid[upper - 1]) / (grid[upper] - grid[upper - 1]))
    return table.decode_ns[upper - 1] + share * (
        table.decode_ns[upper] - table.decode_ns[upper - 1]
    )


@compiled
def _holds_prompts(pool: EnginePoolState, s: SchedulerArrays, engine: int) -> bool:
    """Whether prompts wait for those of other ranks; `by_rank` has what is pending."""
    if not pool.rules.together_steps:
        return False
    pending, decodes = pool.by_rank[1], pool.by_rank[2]
    all_have, all_decode = True, True
    for rank in range(len(s.ranks)):
        all_have &= pending[rank] > 0
        all_decode &= decodes[rank] > 0
    pool.waited[engine] += 1
    if all_have or not all_decode or pool.waited[engine] >= pool.rules.together_steps:
        pool.waited[engine] = 0
        return False
    return True


@compiled
def _begin(pool: EnginePoolState, s: SchedulerArrays, engine: int, now_ns: int) -> None:
    """Look for requests, and begin a step if any runs."""
    looks = pool.untaken[engine] >= pool.rules.take_steps
    running = 0
    for rank in range(len(s.ranks)):
        running += s.ranks[rank].running_count + s.ranks[rank].waiting_count
    if looks or not running:
        pool.untaken[engine] = 0
        seen_ns = pool.begun_ns[engine] if pool.rules.ahead and running else now_ns
        request = pool.inbox[engine, 0]
        while request != NONE and pool.came_ns[request] <= seen_ns:
            put_in(s, pool.bounds, request, chosen_rank(s, pool.bounds, None, request))
            running += 1
            request = pool.behind[request]
        pool.inbox[engine, 0] = request
    if not running:
        return
    pool.begun_ns[engine] = now_ns
    demand(s, pool.bounds, 1, pool.by_rank[1], pool.by_rank[2])
    pool.by_rank[0, :] = 0 if _holds_prompts(pool, s, engine) else pool.prompt_tokens
    rows = schedule(s, pool.bounds, None, pool.by_rank[0], pool.by_rank[2], now_ns)
    tokens = decodes = 0
    for row in range(rows):
        request = s.rows[row].request
        is_first = s.requests[request].first_token_ns == NONE and not pool.received
        if is_first or s.rows[row].new > 1 + pool.bounds.speculative_tokens:
            tokens += s.rows[row].new
        else:
            decodes += 1
    decode_ns = _decode_ns(pool.table, decodes) if decodes else 0.0
    prompts_ns = _prompts_ns(pool.table, tokens, decodes > 0) if tokens else 0.0
    pool.untaken[engine] = pool.rules.take_steps if tokens else pool.untaken[engine] + 1
    pool.rows[engine] = rows
    pool.decode_ns[engine] = round(decode_ns)
    pool.end_ns[engine] = now_ns + max(1, round(decode_ns + prompts_ns))


@compiled
def _finish(pool: EnginePoolState, s: SchedulerArrays, engine: int, now_ns: int) -> int:
    """End a step; returns its tokens, whose requests are in `given`."""
    tokens, ended = give_tokens(s, None, pool.acceptance, pool.rows[engine], now_ns, pool.given)
    pool.end_ns[engine] = NEVER_NS
    pool.held[engine] -= ended
    if pool.rules.prompts_first and not pool.received:
        for place in range(tokens):
            request = pool.given[place]
            if s.requests[request].first_token_ns == now_ns:
                s.requests[request].first_token_ns = now_ns - pool.decode_ns[engine]
    return tokens


COUNTS: Final = np.dtype(
    [
        ("begun", np.int64),  # requests that users have sent
        ("coming", np.int64),  # of them, that engines have
        ("sending", np.int64),  # whose prompts were sent on
        ("arriving", np.int64),  # of them, that have arrived
        ("done", np.int64),
    ]
)


class _Loop(NamedTuple):
    """Where a run is.

    `counts`: one COUNTS. `sent`: requests between the pools and when they arrive, in the order of
    both, [requests, 2].
    """

    pools: tuple[EnginePoolState, EnginePoolState]
    times: ClientTimes
    counts: Records
    sent: Int64s


@compiled
def _next_ns(loop: _Loop) -> int:
    """When a step ends or a request comes; NEVER_NS if nothing does."""
    at, next_ns = loop.counts[0], NEVER_NS
    if at.coming < at.begun:
        next_ns = loop.pools[1].s.requests[at.coming].arrival_ns + loop.times.request_ns
    if at.arriving < at.sending:
        next_ns = min(next_ns, loop.sent[at.arriving, 1])
    for pool in loop.pools:
        for engine in range(len(pool.end_ns)):
            next_ns = min(next_ns, pool.end_ns[engine])
    return next_ns


@compiled
def _go_on(loop: _Loop, request: int, now_ns: int, is_sent: bool) -> None:
    """What follows a request that a pool is done with."""
    at, requests = loop.counts[0], loop.pools[1].s.requests
    if is_sent:
        loop.sent[at.sending, 0] = request
        loop.sent[at.sending, 1] = now_ns + loop.times.transfer_ns
        at.sending += 1
        return
    at.done += 1
    if at.begun < len(requests):
        requests[at.begun].arrival_ns = now_ns + loop.times.token_ns
        at.begun += 1


@allocating
def _finish_due(loop: _Loop, pool: EnginePoolState, now_ns: int, is_sent: bool) -> None:
    """End the pool's steps that end now; `is_sent`: its requests go to another pool."""
    for engine in range(len(pool.end_ns)):
        if pool.end_ns[engine] != now_ns:
            continue
        s = _engine(pool, engine)
        tokens, before = _finish(pool, s, engine, now_ns), NONE
        for place in range(tokens):
            request = pool.given[place]
            if s.requests[request].tokens_left == 0 and request != before:
                _go_on(loop, request, now_ns, is_sent)
                before = request


@compiled
def _take_arrived(loop: _Loop, now_ns: int) -> None:
    """Route what has come to its pool by now."""
    at, (first, last) = loop.counts[0], loop.pools
    while at.coming < at.begun and (
        last.s.requests[at.coming].arrival_ns + loop.times.request_ns <= now_ns
    ):
        _route(first, at.coming, now_ns)
        at.coming += 1
    while at.arriving < at.sending and loop.sent[at.arriving, 1] <= now_ns:
        _route(last, loop.sent[at.arriving, 0], now_ns)
        at.arriving += 1


@allocating
def _begin_idle(pool: EnginePoolState, now_ns: int) -> None:
    for engine in range(len(pool.end_ns)):
        if pool.end_ns[engine] == NEVER_NS and pool.held[engine]:
            _begin(pool, _engine(pool, engine), engine, now_ns)


@kept(SOURCES)
def run_closed_loop(
    pools: tuple[EnginePoolState, EnginePoolState],
    times: ClientTimes,
    counts: Records,
    sent: Int64s,
) -> None:
    """Serve all requests, in order, `users` at a time.

    `pools`: where requests come, and where their tokens do; the same one twice if engines compute
    their own prompts. `counts` is one COUNTS of zeros, `sent` room for requests between pools,
    [requests, 2]. Requests of the second pool then have their times, `arrival_ns` as users see it.
    """
    loop = _Loop(pools, times, counts, sent)
    first, last = pools
    total = len(last.s.requests)
    counts[0].begun = min(times.users, total)
    while counts[0].done < total:
        now_ns = _next_ns(loop)
        if now_ns == NEVER_NS:
            return  # what is left can never run
        if last.received:
            _finish_due(loop, first, now_ns, True)
        _finish_due(loop, last, now_ns, False)
        _take_arrived(loop, now_ns)
        _begin_idle(first, now_ns)
        if last.received:
            _begin_idle(last, now_ns)

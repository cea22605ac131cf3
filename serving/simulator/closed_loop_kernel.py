"""A closed loop over one or two pools of engines whose steps take given times, compiled.

The ranks' schedulers are those of every simulation; the times of steps come from a short table, so
that a benchmark's whole run takes a fraction of a second. What it leaves out: faults, priorities,
prefix caches, energy.
"""

# mypy: no-warn-return-any
# Fields of records have no type that mypy knows.

from typing import NamedTuple

import numpy as np

from emulator.arrays import Float64s, Int32s, Int64s
from emulator.ultraserver.compiled import allocating, compiled, kept
from serving.simulator.compiled_schedulers import SOURCES
from serving.simulator.rank_queues import chosen_rank, put_in
from serving.simulator.scheduler_arrays import (
    NEVER_NS,
    NONE,
    Acceptance,
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
    `prompts_first`: a step's prompts have their tokens before its decodes begin.
    """

    take_steps: int
    together_steps: int
    prompts_first: bool


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
def _route(pool: EnginePoolState, request: int) -> None:
    """To the engine with the fewest requests, the first of several."""
    engine = 0
    for other in range(1, len(pool.held)):
        if pool.held[other] < pool.held[engine]:
            engine = other
    pool.held[engine] += 1
    pool.behind[request] = NONE
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
    return table.decode_ns[upper - 1] + share * (table.decode_ns[upper] - table.decode_ns[upper - 1])


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
        request = pool.inbox[engine, 0]
        while request != NONE:
            put_in(s, pool.bounds, request, chosen_rank(s, pool.bounds, None, request))
            running += 1
            request = pool.behind[request]
        pool.inbox[engine, 0] = NONE
    if not running:
        return
    demand(s, pool.bounds, 1, pool.by_rank[1], pool.by_rank[2])
    pool.by_rank[0, :] = 0 if _holds_prompts(pool, s, engine) else pool.prompt_tokens
    rows = schedule(s, pool.bounds, None, pool.by_rank[0], pool.by_rank[2])
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


@kept(SOURCES)
def run_closed_loop(
    pools: tuple[EnginePoolState, EnginePoolState], times: ClientTimes, sent: Int64s
) -> None:
    """Serve all requests, in order, `users` at a time.

    `pools`: where requests come, and where their tokens do; the same one twice if engines compute
    their own prompts. `sent` is room for requests on their way between pools, [requests, 2].
    Requests of the second pool then have their times, `arrival_ns` as users see it.
    """
    first, last = pools
    apart = last.received
    arrival_ns = last.s.requests
    total = len(last.s.requests)
    begun = min(times.users, total)
    coming = done = sending = arriving = now_ns = 0
    while done < total:
        next_ns = NEVER_NS
        if coming < begun:
            next_ns = arrival_ns[coming].arrival_ns + times.request_ns
        if arriving < sending:
            next_ns = min(next_ns, sent[arriving, 1])
        for pool in pools:
            for engine in range(len(pool.end_ns)):
                next_ns = min(next_ns, pool.end_ns[engine])
        if next_ns == NEVER_NS:
            return  # what is left can never run
        now_ns = next_ns
        for place in range(2 if apart else 1):
            pool = pools[place]
            for engine in range(len(pool.end_ns)):
                if pool.end_ns[engine] != now_ns:
                    continue
                s = _engine(pool, engine)
                tokens = _finish(pool, s, engine, now_ns)
                before = NONE
                for each in range(tokens):
                    request = pool.given[each]
                    if s.requests[request].tokens_left or request == before:
                        continue
                    before = request
                    if apart and place == 0:
                        sent[sending, 0], sent[sending, 1] = request, now_ns + times.transfer_ns
                        sending += 1
                        continue
                    done += 1
                    if begun < total:
                        arrival_ns[begun].arrival_ns = now_ns + times.token_ns
                        begun += 1
        while coming < begun and arrival_ns[coming].arrival_ns + times.request_ns <= now_ns:
            _route(first, coming)
            coming += 1
        while arriving < sending and sent[arriving, 1] <= now_ns:
            _route(last, sent[arriving, 0])
            arriving += 1
        for place in range(2 if apart else 1):
            pool = pools[place]
            for engine in range(len(pool.end_ns)):
                if pool.end_ns[engine] == NEVER_NS and pool.held[engine]:
                    _begin(pool, _engine(pool, engine), engine, now_ns)

"""Steps of one engine, one after another, compiled: decided, costed, and their tokens given out.

What `SimulatedEngine` does step by step, as long as nothing but new requests concerns the engine.
"""

# mypy: no-warn-return-any
# Fields of records have no type that mypy knows.

from emulator.arrays import Bools, Int64s
from emulator.compiled import compiled, inlined
from emulator.ultraserver.request_kernel import STANDING
from serving.policy import prefill_throttle
from serving.simulator.costed_steps import are_known, begin_step
from serving.simulator.kv_blocks import index_full_blocks
from serving.simulator.kv_on_way import next_kv_ns
from serving.simulator.rank_queues import chosen_rank, put_in
from serving.simulator.scheduler_arrays import (
    NEVER_NS,
    NONE,
    PrefixCache,
    SchedulerArrays,
    SchedulerBounds,
)
from serving.simulator.scheduler_kernel import (
    demand,
    give_tokens,
    may_preempt,
    schedule,
    take,
)
from serving.simulator.standing_decodes import (
    LONGER_PATIENCE,
    StandingDecodes,
    demand_beside,
    finish,
    schedule_beside,
    settle,
    stand,
    write_given,
)
from serving.simulator.step_run_record import (
    EMPTY,
    FULL,
    GO_ON,
    ON_WAY,
    STOPPED,
    UNDER_WAY,
    UNKNOWN,
    WAITS,
    Coming,
    StepRoom,
    StepRules,
    StepRunRecord,
    Stops,
)

_level = compiled(prefill_throttle.even_level)


@inlined
def _budget(rules: StepRules, ranks: int) -> int:
    """Of each rank, by the demand in `room`."""
    room, longest, decodes = rules.room, 0, 0
    for rank in range(ranks):
        longest = max(longest, room.pending[rank])
        decodes = max(decodes, room.decodes[rank])
    if longest > 0 and decodes > 0:
        return _level(longest, rules.level)
    return prefill_throttle.UNLIMITED


@inlined
def _decide(
    s: SchedulerArrays,
    bounds: SchedulerBounds,
    c: PrefixCache | None,
    rules: StepRules,
    r: StepRunRecord,
) -> None:
    """`LockstepSchedulers.schedule`."""
    room, budget = rules.room, prefill_throttle.UNLIMITED
    if rules.pending_enough:
        demand(s, bounds, rules.pending_enough, room.pending, room.decodes)
        budget = _budget(rules, len(s.ranks))
    room.budgets[:] = budget
    rows = schedule(s, bounds, c, room.budgets, room.decodes, r.run[0].now_ns)
    _note_decided(s, room, r, room.nothing, rows)


@inlined
def _note_decided(
    s: SchedulerArrays, room: StepRoom, r: StepRunRecord, totals: Int64s, rows: int
) -> None:
    """Lay out the step that is decided, of so many `s.rows` beside standing requests, with their
    `totals`, to be costed.
    """
    all_rows = rows
    for rank in range(len(s.ranks)):
        standing = totals[rank, STANDING]
        all_rows += standing
        room.pending[rank] = standing  # now: new tokens of each rank
        room.rows[rank] = 0
        room.logit_rows[rank] = s.ranks[rank].logit_rows
        r.run[0].free_blocks_min = min(r.run[0].free_blocks_min, s.ranks[rank].free_blocks)
    for row in range(rows):
        room.new[row], room.context[row] = s.rows[row].new, s.rows[row].context
        room.pending[s.rows[row].rank] += s.rows[row].new
        room.rows[s.rows[row].rank] += 1
    r.run[0].rows = all_rows
    if all_rows:
        for rank in range(len(s.ranks)):
            if not room.pending[rank] and s.ranks[rank].is_open:  # those that are closed are down
                r.run[0].empty_rank_steps += 1


@inlined
def _decide_beside(
    s: SchedulerArrays,
    bounds: SchedulerBounds,
    rules: StepRules,
    st: StandingDecodes,
    r: StepRunRecord,
) -> bool:
    """`_decide` where requests stand; False, and nothing is decided, where they cannot."""
    room, budget = rules.room, prefill_throttle.UNLIMITED
    if rules.pending_enough:
        demand_beside(s, bounds, st, rules.pending_enough, room.pending, room.decodes)
        budget = _budget(rules, len(s.ranks))
    for rank in range(len(s.ranks)):
        room.budgets[rank] = budget
    if not schedule_beside(s, bounds, st, room.budgets, room.decodes, r.run[0].now_ns):
        return False
    _note_decided(s, room, r, st.totals, st.other_rows[0])
    return True


@inlined
def _finish(s: SchedulerArrays, c: PrefixCache | None, judged: Bools, r: StepRunRecord) -> bool:
    """Give out the tokens of the step under way; returns whether each row got one and goes on."""
    first, rows = r.counts[1], r.run[0].rows
    end_ns = r.run[0].end_ns
    tokens, ended = give_tokens(s, c, None, rows, end_ns, r.given[first:])
    if ended:
        for place in range(first, first + tokens):
            request = r.given[place]
            if s.requests[request].tokens_left == 0 and judged[request]:
                r.run[0].judged_left -= 1
    _note_end(r, tokens, ended)
    return tokens == rows and not ended


@inlined
def _note_end(r: StepRunRecord, tokens: int, ended: int) -> None:
    """The step under way is over; it gave so many tokens, and ended so many requests."""
    r.steps[r.counts[0]].tokens = tokens
    r.counts[0] += 1
    if r.run[0].logs_tokens:
        r.counts[1] += tokens
    r.run[0].now_ns, r.run[0].end_ns, r.run[0].rows = r.run[0].end_ns, NONE, 0
    r.run[0].requests -= ended
    r.run[0].done += ended
    r.run[0].ended = ended


@inlined
def _finish_beside(
    s: SchedulerArrays,
    bounds: SchedulerBounds,
    st: StandingDecodes,
    judged: Bools,
    r: StepRunRecord,
) -> None:
    """`_finish` where requests stand."""
    tokens = 0
    if r.run[0].logs_tokens:
        tokens = write_given(s, st, r.given[r.counts[1] :])
    else:
        for rank in range(len(s.ranks)):
            tokens += s.ranks[rank].logit_rows
    ended, ended_judged = finish(s, bounds, st, r.run[0].end_ns, judged)
    r.run[0].judged_left -= ended_judged
    _note_end(r, tokens, ended)


@inlined
def _rows_again(s: SchedulerArrays, bounds: SchedulerBounds, room: StepRoom) -> tuple[int, int]:
    """Fill `room` with a step in which each running request decodes, as in the one before.

    Returns the rows, and for how many such steps none of them ends; 0 rows where a request that
    waits could join, or a running one would do something else.
    """
    rows, steps = 0, NEVER_NS
    for rank in range(len(s.ranks)):
        if s.ranks[rank].waiting_count and s.ranks[rank].running_count < bounds.seats:
            return 0, 0
        if s.ranks[rank].running_count > bounds.step_tokens:
            return 0, 0
        room.logit_rows[rank] = s.ranks[rank].running_count
        for place in range(s.ranks[rank].running_count):
            request = s.running[rank, place]
            if s.requests[request].is_prefill:
                return 0, 0
            context = s.requests[request].computed
            room.rank[rows], room.new[rows], room.context[rows] = rank, 1, context
            room.request[rows] = request
            room.block_left[rows] = s.requests[request].blocks * bounds.block_tokens - context
            steps = min(steps, s.requests[request].tokens_left - 1)
            rows += 1
    return rows, steps


@inlined
def _take_blocks(
    s: SchedulerArrays, bounds: SchedulerBounds, c: PrefixCache | None, room: StepRoom, rows: int
) -> bool:
    """`Scheduler.schedule`'s blocks for one more token of each row.

    False, and nothing is taken, where a rank has fewer free ones than requests.
    """
    for rank in range(len(s.ranks)):
        if s.ranks[rank].free_blocks < s.ranks[rank].running_count:
            return False
    for row in range(rows):
        if room.block_left[row] > 1:
            continue
        rank, request = room.rank[row], room.request[row]
        if room.block_left[row] == 0:
            take(s, bounds, c, rank, request, 1, room.context[row])
            room.block_left[row] = bounds.block_tokens
        if c is not None and room.block_left[row] == 1:
            index_full_blocks(s, c, rank, request, room.context[row] + 1, bounds.block_tokens)
    return True


@inlined
def _repeat(
    s: SchedulerArrays,
    bounds: SchedulerBounds,
    c: PrefixCache | None,
    rules: StepRules,
    r: StepRunRecord,
    until_ns: int,
    steps_max: int,
) -> None:
    """Steps after one in which each running request got a token and went on: as long as none ends,
    joins or lacks a block, at most until `until_ns`, before which all but the last end, and
    `steps_max` have ended.

    They are what `_decide`, `begin_step` and `_finish` would make of them.
    """
    room = rules.room
    rows, steps = _rows_again(s, bounds, room)
    steps = min(steps, steps_max - r.counts[0])
    for rank in range(len(s.ranks)):
        room.pending[rank] = room.rows[rank] = room.logit_rows[rank]
    if rows == 0 or not are_known(rules.costs, room):
        return
    begun = 0
    while begun < steps and r.run[0].now_ns < until_ns and _take_blocks(s, bounds, c, room, rows):
        r.run[0].rows = rows
        begin_step(rules, r, room.nothing, rows)
        begun += 1
        if r.run[0].end_ns > until_ns:
            break
        first = r.counts[1]
        for row in range(rows):
            r.given[first + row] = room.request[row]
            room.context[row] += 1
            room.block_left[row] -= 1
        r.steps[r.counts[0]].tokens = rows
        r.counts[0] += 1
        if r.run[0].logs_tokens:
            r.counts[1] += rows
        r.run[0].now_ns, r.run[0].end_ns, r.run[0].rows = r.run[0].end_ns, NONE, 0
    ended = begun - (r.run[0].end_ns != NONE)
    for row in range(rows):
        request = room.request[row]
        s.requests[request].computed += begun
        s.requests[request].tokens += ended
        s.requests[request].tokens_left -= ended
        s.ranks[room.rank[row]].running_tokens += ended
        s.rows[row].context = room.context[row]
        s.rows[row].rank, s.rows[row].request = room.rank[row], request
        s.rows[row].new, s.rows[row].drafts = 1, 0
    for rank in range(len(s.ranks)):
        r.run[0].free_blocks_min = min(r.run[0].free_blocks_min, s.ranks[rank].free_blocks)
        if rows and not s.ranks[rank].running_count and s.ranks[rank].is_open:
            r.run[0].empty_rank_steps += begun


@inlined
def _next_arrival_ns(coming: Coming, r: StepRunRecord) -> int:
    if r.run[0].taken == len(coming.at_ns):
        return NEVER_NS
    return coming.at_ns[r.run[0].taken]


@inlined
def _take_arrived(
    s: SchedulerArrays,
    bounds: SchedulerBounds,
    c: PrefixCache | None,
    coming: Coming,
    r: StepRunRecord,
) -> None:
    """`admit` those of `coming` that have arrived by now."""
    while _next_arrival_ns(coming, r) <= r.run[0].now_ns:
        request = coming.request[r.run[0].taken]
        put_in(s, bounds, request, chosen_rank(s, bounds, c, request))
        r.run[0].taken += 1
        r.run[0].requests += 1


@inlined
def _has_begun(
    s: SchedulerArrays,
    bounds: SchedulerBounds,
    c: PrefixCache | None,
    coming: Coming,
    r: StepRunRecord,
    until_ns: int,
) -> bool:
    """Whether a step begins before `until_ns`; without requests it does when the next one comes."""
    if r.run[0].requests == 0 and r.run[0].now_ns < until_ns:
        next_ns = _next_arrival_ns(coming, r)
        if next_ns >= until_ns:
            return False
        r.run[0].now_ns = next_ns
        _take_arrived(s, bounds, c, coming, r)
    return r.run[0].now_ns < until_ns


@inlined
def _stand_or_settle(
    s: SchedulerArrays,
    bounds: SchedulerBounds,
    rules: StepRules,
    st: StandingDecodes,
    r: StepRunRecord,
) -> None:
    """Decide a step where requests stand, unless they cannot; then none does for a while."""
    if not r.run[0].stands and r.run[0].patience <= 0:
        stand(s, st)
        r.run[0].stands = True
    r.run[0].patience -= 1
    if r.run[0].stands and not _decide_beside(s, bounds, rules, st, r):
        settle(s, bounds, st, 0)
        r.run[0].stands, r.run[0].patience = False, LONGER_PATIENCE


@inlined
def _end(
    s: SchedulerArrays,
    bounds: SchedulerBounds,
    c: PrefixCache | None,
    st: StandingDecodes | None,
    judged: Bools,
    r: StepRunRecord,
) -> bool:
    """End the step under way; returns whether `_repeat` may follow."""
    if not r.run[0].stands:
        return _finish(s, c, judged, r)
    if st is not None:
        _finish_beside(s, bounds, st, judged, r)
    return False


@inlined
def _is_over(r: StepRunRecord, stops: Stops) -> bool:
    """Whether a run stops after a step."""
    is_over = r.run[0].judged_left == 0 or r.counts[0] >= stops.steps
    return is_over or (stops.at_ends and r.run[0].ended > 0)


@inlined
def _decided(
    s: SchedulerArrays,
    bounds: SchedulerBounds,
    c: PrefixCache | None,
    rules: StepRules,
    st: StandingDecodes | None,
    coming: Coming,
    r: StepRunRecord,
    until_ns: int,
) -> int:
    """Decide a step, unless one is; returns GO_ON, or why none begins."""
    if r.run[0].rows:
        return _what_follows(s, rules, r)
    if not _has_begun(s, bounds, c, coming, r, until_ns):
        return WAITS
    if st is not None:
        _stand_or_settle(s, bounds, rules, st, r)
    if r.run[0].lacks_cache and not r.run[0].stands and may_preempt(s, bounds):
        return FULL
    if not r.run[0].stands:
        _decide(s, bounds, c, rules, r)
    return _what_follows(s, rules, r)


@inlined
def _what_follows(s: SchedulerArrays, rules: StepRules, r: StepRunRecord) -> int:
    """Of a decision: GO_ON, or why no step begins."""
    if r.run[0].rows:
        return GO_ON if are_known(rules.costs, rules.room) else UNKNOWN
    there_ns = next_kv_ns(s, r.run[0].now_ns)
    if there_ns == NEVER_NS:
        return EMPTY
    r.run[0].now_ns = there_ns
    return ON_WAY


@compiled
def step_on(
    s: SchedulerArrays,
    bounds: SchedulerBounds,
    c: PrefixCache | None,
    rules: StepRules,
    st: StandingDecodes | None,
    requests: tuple[Coming, Bools],
    r: StepRunRecord,
    stops: Stops,
) -> int:
    """`run_steps`, after which requests may stand."""
    (coming, judged), until_ns = requests, stops.until_ns
    while True:
        repeats = False
        if r.run[0].end_ns != NONE:
            if r.run[0].end_ns > until_ns:
                return UNDER_WAY
            repeats = _end(s, bounds, c, st, judged, r)
            if _is_over(r, stops):
                return STOPPED
        if r.run[0].now_ns < until_ns:
            _take_arrived(s, bounds, c, coming, r)
        if st is None and repeats:
            before_ns = min(until_ns, _next_arrival_ns(coming, r))
            _repeat(s, bounds, c, rules, r, before_ns, stops.steps - 1)
            continue
        code = _decided(s, bounds, c, rules, st, coming, r, until_ns)
        if code == ON_WAY:
            continue
        if code != GO_ON:
            return code
        totals, rows = rules.room.nothing, r.run[0].rows
        if st is not None:
            totals = st.totals  # 0 where none stands
            rows = st.other_rows[0] if r.run[0].stands else rows
        begin_step(rules, r, totals, rows)


def run_steps(
    s: SchedulerArrays,
    bounds: SchedulerBounds,
    c: PrefixCache | None,
    rules: StepRules,
    st: StandingDecodes | None,
    requests: tuple[Coming, Bools],
    r: StepRunRecord,
    stops: Stops,
) -> int:
    """Step until `stops` says; returns why it ends there or before.

    `st` without a cache of prefixes: requests that decode are counted together. `requests`: those
    that come, beside which nothing comes until then, and the mask of those that are judged,
    [requests].
    """
    code = step_on(s, bounds, c, rules, st, requests, r, stops)
    if st is not None and r.run[0].stands and code != UNKNOWN:
        settle(s, bounds, st, r.run[0].rows)
        r.run[0].stands = False
    return code

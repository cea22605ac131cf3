"""Requests that decode a token in every step, compiled: counted together, not one by one.

As long as such a request stands, its tokens and context grow by one a step, it takes a block
whenever its last one is full, and the step of its end is known. So a step is costed and decided
from totals of each rank, in which as much changes as there are requests that pass a border: of a
tile, of a block, of the window, of their end. Requests are counted by the step in which they will
pass each. Records of standing requests have their `computed`, `tokens` and `tokens_left` less the
steps since all began to stand, and `settle` puts them right. KV blocks are counted, without a cache
of prefixes.
"""

# mypy: no-warn-return-any
# Fields of records have no type that mypy knows.

from typing import Final, NamedTuple

import numpy as np

from emulator.arrays import Bools, Int32s, Int64s
from emulator.compiled import compiled, inlined
from emulator.ultraserver.request_kernel import (
    COLUMNS,
    COLUMNS_MAGIC,
    CONTEXTS,
    DECODE_TOTALS,
    DECODED_TILES,
    DECODES_FROM,
    ROWS,
    ROWS_MAGIC,
    SHIFT,
    STANDING,
    TILE_COLUMNS,
    TILE_ROWS,
    WINDOW,
    WINDOW_COLUMNS,
    WINDOW_CONTEXTS,
    WINDOW_ROWS,
)
from serving.simulator.scheduler_arrays import NONE, SchedulerArrays, SchedulerBounds
from serving.simulator.scheduler_kernel import (
    add_row,
    add_waiting,
    new_blocks,
    note_rows,
    piece_max,
    schedule_waiting,
    step_tokens,
    stop_running,
    take,
)

PATIENCE: Final = 4
"""Steps request by request before requests stand, which is worth it for some steps at least."""
LONGER_PATIENCE: Final = 16
"""Where they stood and lacked tokens or blocks."""


class StandingDecodes(NamedTuple):
    """Standing requests of each rank, and the others that run.

    What is counted by a phase is, before step n, at n more than the phase, modulo the axis' length.
    """

    numbers: Int64s  # of a head, as in `HeadTables`
    steps: Int64s  # since they began to stand, [1]
    totals: Int64s  # [ranks, DECODE_TOTALS]
    growing: Int64s  # standing requests that are shorter than the window, [ranks]
    by_column: Int32s  # standing requests by the phase of their context, [ranks, tile of keys]
    by_row: Int32s  # the same by the tile of values
    growing_by_column: Int32s  # those that are shorter than the window
    growing_by_row: Int32s
    by_block: Int32s  # [ranks, tokens of a block]
    reaching: Int32s  # by the step after which they are as long as the window, [ranks, window]
    ends: Int32s  # by the step of their end: the last to come, the first of a chain; [slots]
    others: Int64s  # that run and do not stand, in vLLM's order, [ranks, seats]
    other_count: Int64s  # [ranks]
    other_rows: Int64s  # of the step under way, [1]
    mixed: Int64s  # 1 where a standing request may run behind one of the others, [ranks]


def nothing_stands(
    numbers: Int64s, arrays: SchedulerArrays, bounds: SchedulerBounds
) -> StandingDecodes:
    """With room for all requests of `arrays`; `numbers` of `HeadTables`."""
    ranks = len(arrays.ranks)
    longest = int(arrays.requests["tokens_left"].max(initial=0))
    tiles = [int(numbers[DECODED_TILES + each]) for each in (TILE_COLUMNS, TILE_ROWS)]

    def by(phases: int) -> Int32s:
        return np.zeros((ranks, phases), dtype=np.int32)

    return StandingDecodes(
        numbers=numbers,
        steps=np.zeros(1, dtype=np.int64),
        totals=np.zeros((ranks, DECODE_TOTALS), dtype=np.int64),
        growing=np.zeros(ranks, dtype=np.int64),
        by_column=by(tiles[0]),
        by_row=by(tiles[1]),
        growing_by_column=by(tiles[0]),
        growing_by_row=by(tiles[1]),
        by_block=by(bounds.block_tokens),
        reaching=by(max(1, int(numbers[WINDOW]))),
        ends=np.full(1 << longest.bit_length(), NONE, dtype=np.int32),
        others=np.zeros((ranks, bounds.seats), dtype=np.int64),
        other_count=np.zeros(ranks, dtype=np.int64),
        other_rows=np.zeros(1, dtype=np.int64),
        mixed=np.zeros(ranks, dtype=np.int64),
    )


@compiled
def _count(st: StandingDecodes, rank: int, context: int, one: int) -> None:
    """Count a request with so many tokens computed: once more for 1, not any more for -1."""
    numbers, steps, totals = st.numbers, st.steps[0], st.totals
    columns_magic = numbers[DECODED_TILES + COLUMNS_MAGIC]
    rows_magic = numbers[DECODED_TILES + ROWS_MAGIC]
    column = (context - steps) % st.by_column.shape[1]
    row = (context - steps) % st.by_row.shape[1]
    totals[rank, STANDING] += one
    totals[rank, CONTEXTS] += one * context
    totals[rank, COLUMNS] += one * ((context * columns_magic) >> SHIFT)
    totals[rank, ROWS] += one * ((context * rows_magic) >> SHIFT)
    st.by_column[rank, column] += one
    st.by_row[rank, row] += one
    st.by_block[rank, (context - steps) % st.by_block.shape[1]] += one
    window = numbers[WINDOW]
    if window > 0:
        seen = min(context, window - 1)
        totals[rank, WINDOW_CONTEXTS] += one * seen
        totals[rank, WINDOW_COLUMNS] += one * ((seen * columns_magic) >> SHIFT)
        totals[rank, WINDOW_ROWS] += one * ((seen * rows_magic) >> SHIFT)
        if context < window - 1:
            st.growing[rank] += one
            st.growing_by_column[rank, column] += one
            st.growing_by_row[rank, row] += one
            st.reaching[rank, (steps + window - 1 - context) % window] += one


@compiled
def _join(s: SchedulerArrays, st: StandingDecodes, rank: int, request: int) -> None:
    """From the next step on, a request stands."""
    steps = st.steps[0]
    _count(st, rank, s.requests[request].computed, 1)
    s.requests[request].computed -= steps
    s.requests[request].tokens -= steps
    end = steps + s.requests[request].tokens_left
    s.requests[request].tokens_left = end
    slot = end & (len(st.ends) - 1)
    s.requests[request].waiting_next = st.ends[slot]
    st.ends[slot] = request


@compiled
def _leave(
    s: SchedulerArrays, bounds: SchedulerBounds, st: StandingDecodes, rank: int, request: int
) -> None:
    """Between two steps, a request stands no more."""
    steps = st.steps[0]
    s.requests[request].computed += steps
    s.requests[request].tokens += steps
    s.requests[request].tokens_left -= steps
    context = s.requests[request].computed
    s.requests[request].blocks = -(-context // bounds.block_tokens)
    _count(st, rank, context, -1)


@compiled
def _stands(s: SchedulerArrays, st: StandingDecodes, request: int) -> bool:
    """Whether a running request can, between two steps."""
    enough = s.requests[request].computed >= st.numbers[DECODES_FROM]
    return not s.requests[request].is_prefill and enough


@compiled
def stand(s: SchedulerArrays, st: StandingDecodes) -> None:
    """Between two steps, let all running requests stand that can; none does yet."""
    for rank in range(len(s.ranks)):
        for place in range(s.ranks[rank].running_count):
            request = s.running[rank, place]
            if _stands(s, st, request):
                _join(s, st, rank, request)
                st.mixed[rank] |= st.other_count[rank] > 0
            else:
                st.others[rank, st.other_count[rank]] = request
                st.other_count[rank] += 1


@compiled
def settle(s: SchedulerArrays, bounds: SchedulerBounds, st: StandingDecodes, rows: int) -> None:
    """Let no request stand any more: between two steps, or in one under way that has `rows`.

    `s.rows`, which have those of the others, get all, in vLLM's order.
    """
    other_row, row = st.other_rows[0] - 1, rows - 1
    for rank in range(len(s.ranks) - 1, -1, -1):
        other = st.other_count[rank] - 1
        for place in range(s.ranks[rank].running_count - 1, -1, -1):
            request = s.running[rank, place]
            if other >= 0 and st.others[rank, other] == request:
                other -= 1
                if other_row >= 0 and s.rows[other_row].request == request:
                    s.rows[row].rank, s.rows[row].request = rank, request
                    s.rows[row].new = s.rows[other_row].new
                    s.rows[row].context = s.rows[other_row].context
                    s.rows[row].drafts = 0
                    other_row -= 1
                    row -= 1
                continue
            st.ends[s.requests[request].tokens_left & (len(st.ends) - 1)] = NONE
            _leave(s, bounds, st, rank, request)
            if rows:
                context = s.requests[request].computed
                s.rows[row].rank, s.rows[row].request = rank, request
                s.rows[row].new, s.rows[row].context, s.rows[row].drafts = 1, context, 0
                row -= 1
                s.requests[request].computed = context + 1
                s.requests[request].blocks = context // bounds.block_tokens + 1
        st.other_count[rank] = st.mixed[rank] = 0
    st.steps[0] = st.other_rows[0] = 0


@inlined
def _advance(st: StandingDecodes) -> None:
    """Each standing request has computed a token."""
    numbers, totals = st.numbers, st.totals
    growing, reaching = st.growing, st.reaching
    by_column, by_row = st.by_column, st.by_row
    growing_by_column, growing_by_row = st.growing_by_column, st.growing_by_row
    st.steps[0] += 1
    steps, window = st.steps[0], numbers[WINDOW]
    column, row = -steps % by_column.shape[1], -steps % by_row.shape[1]
    for rank in range(len(totals)):
        totals[rank, CONTEXTS] += totals[rank, STANDING]
        totals[rank, COLUMNS] += by_column[rank, column]
        totals[rank, ROWS] += by_row[rank, row]
        if growing[rank] == 0:
            continue
        totals[rank, WINDOW_CONTEXTS] += growing[rank]
        totals[rank, WINDOW_COLUMNS] += growing_by_column[rank, column]
        totals[rank, WINDOW_ROWS] += growing_by_row[rank, row]
        reached = reaching[rank, steps % window]
        if reached:
            growing[rank] -= reached
            reaching[rank, steps % window] = 0
            growing_by_column[rank, (window - 1 - steps) % by_column.shape[1]] -= reached
            growing_by_row[rank, (window - 1 - steps) % by_row.shape[1]] -= reached


@inlined
def finish(
    s: SchedulerArrays, bounds: SchedulerBounds, st: StandingDecodes, end_ns: int, judged: Bools
) -> tuple[int, int]:
    """Give out the tokens of a step that ends at `end_ns`; returns the requests that end, and how
    many of them are `judged` [requests]. What `give_tokens` does.
    """
    for rank in range(len(s.ranks)):
        s.ranks[rank].running_tokens += st.totals[rank, STANDING]
    _advance(st)
    ended = ended_judged = 0
    for row in range(st.other_rows[0]):
        request, rank = s.rows[row].request, s.rows[row].rank
        if s.requests[request].is_prefill:
            continue
        if s.requests[request].first_token_ns == NONE:
            s.requests[request].first_token_ns = end_ns
        s.requests[request].tokens += 1
        s.requests[request].tokens_left -= 1
        s.ranks[rank].running_tokens += 1
        if s.requests[request].tokens_left == 0:
            _forget_other(st, rank, request)
            _end(s, rank, request, end_ns)
            ended += 1
            ended_judged += judged[request]
        elif s.requests[request].computed >= st.numbers[DECODES_FROM]:
            st.mixed[rank] |= _forget_other(st, rank, request) > 0
            _join(s, st, rank, request)
    slot = st.steps[0] & (len(st.ends) - 1)
    request = st.ends[slot]
    st.ends[slot] = NONE
    while request != NONE:
        behind, rank = s.requests[request].waiting_next, s.requests[request].rank
        _leave(s, bounds, st, rank, request)
        _end(s, rank, request, end_ns)
        ended += 1
        ended_judged += judged[request]
        request = behind
    st.other_rows[0] = 0
    return ended, ended_judged


@compiled
def _end(s: SchedulerArrays, rank: int, request: int, end_ns: int) -> None:
    s.requests[request].last_token_ns = end_ns
    s.requests[request].ended_on = s.ranks[rank].number
    stop_running(s, None, rank, request)
    s.requests[request].rank = NONE


@compiled
def _forget_other(st: StandingDecodes, rank: int, request: int) -> int:
    """Take a request out of the others of its rank; returns how many stay before it."""
    before = 0
    while st.others[rank, before] != request:
        before += 1
    st.other_count[rank] -= 1
    for place in range(before, st.other_count[rank]):
        st.others[rank, place] = st.others[rank, place + 1]
    if st.other_count[rank] == 0:
        st.mixed[rank] = 0
    return before


@inlined
def write_given(s: SchedulerArrays, st: StandingDecodes, given: Int32s) -> int:
    """Write the requests that get a token by the step under way, in its order; returns how many."""
    tokens = row = 0
    for rank in range(len(s.ranks)):
        other, count = 0, st.other_count[rank]
        for place in range(s.ranks[rank].running_count):
            request = s.running[rank, place]
            if other < count and st.others[rank, other] == request:
                other += 1
                if row == st.other_rows[0] or s.rows[row].request != request:
                    continue
                row += 1
                if s.requests[request].is_prefill:
                    continue
            given[tokens] = request
            tokens += 1
    return tokens


@inlined
def demand_beside(
    s: SchedulerArrays,
    bounds: SchedulerBounds,
    st: StandingDecodes,
    enough: int,
    pending: Int64s,
    decodes: Int64s,
) -> None:
    """`demand`."""
    for rank in range(len(s.ranks)):
        pending[rank], prefills = 0, 0
        for place in range(st.other_count[rank]):
            request = st.others[rank, place]
            if s.requests[request].is_prefill:
                pending[rank] += s.requests[request].tokens - s.requests[request].computed
                prefills += 1
        decodes[rank] = s.ranks[rank].running_count - prefills
        add_waiting(s, bounds, rank, enough, pending)


@inlined
def schedule_beside(
    s: SchedulerArrays,
    bounds: SchedulerBounds,
    st: StandingDecodes,
    budgets: Int64s,
    decodes: Int64s,
    now_ns: int,
) -> bool:
    """`schedule` with the rows of the others alone; False, and nothing is changed, where requests
    may lack tokens or blocks.
    """
    for rank in range(len(s.ranks)):
        tokens = step_tokens(bounds, budgets[rank], decodes[rank])
        if not _has_room(s, bounds, st, rank, budgets[rank], tokens):
            return False
    rows, block = 0, -st.steps[0] % st.by_block.shape[1]
    for rank in range(len(s.ranks)):
        budget, standing = budgets[rank], st.totals[rank, STANDING]
        tokens = step_tokens(bounds, budget, decodes[rank]) - standing
        s.ranks[rank].free_blocks -= st.by_block[rank, block]
        first, place, piece = rows, 0, piece_max(s, bounds, rank, budget)
        while place < st.other_count[rank] and tokens > 0:
            request = st.others[rank, place]
            context = s.requests[request].computed
            new = min(_wanted(s, bounds, request, piece), tokens)
            take(s, bounds, None, rank, request, new_blocks(s, bounds, request, context + new), 0)
            rows = add_row(s, rank, request, new, context, rows)
            tokens -= new
            place += 1
        running_rows = rows
        rows = schedule_waiting(s, bounds, None, rank, budget, tokens, (first, rows), now_ns)
        for row in range(running_rows, rows):
            st.others[rank, st.other_count[rank]] = s.rows[row].request
            st.other_count[rank] += 1
        note_rows(s, rank, first, rows)
        s.ranks[rank].logit_rows += standing
    st.other_rows[0] = rows
    return True


@inlined
def _wanted(s: SchedulerArrays, bounds: SchedulerBounds, request: int, piece: int) -> int:
    """Tokens that one of the others gets in a step that has enough."""
    context = s.requests[request].computed
    new = s.requests[request].tokens - context
    if 0 < piece < new:
        new = piece
    return min(new, bounds.context_tokens - 1 - context)


@inlined
def _has_room(
    s: SchedulerArrays,
    bounds: SchedulerBounds,
    st: StandingDecodes,
    rank: int,
    budget: int,
    tokens: int,
) -> bool:
    """Whether all requests of a rank have the tokens and blocks for which they do not wait."""
    if s.ranks[rank].running_count == 0:
        return True
    left = tokens - st.totals[rank, STANDING]
    free = s.ranks[rank].free_blocks - st.by_block[rank, -st.steps[0] % st.by_block.shape[1]]
    piece, wanted = piece_max(s, bounds, rank, budget), 0
    for place in range(st.other_count[rank]):
        request = st.others[rank, place]
        wanted += _wanted(s, bounds, request, piece)
        whole = -(-s.requests[request].tokens // bounds.block_tokens)
        free -= whole - s.requests[request].blocks
    if left < 0 or free < 0:
        return False
    return st.mixed[rank] == 0 or wanted <= left

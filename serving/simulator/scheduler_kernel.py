"""vLLM 0.32's `Scheduler` on all ranks of a lockstep, compiled: queues, budgets, preemption.

Each function follows the one of vLLM's scheduler, or of ours around it, that its docstring names;
differential tests hold them against those. What it does not follow (grammars, LoRA, multimodal
input, KV connectors but for KV that comes from other engines) has no arrays here.
"""

# mypy: no-warn-return-any
# Fields of records have no type that mypy knows.

from emulator.arrays import Int32s, Int64s
from emulator.compiled import compiled
from serving.policy.prefill_throttle import UNLIMITED
from serving.simulator.kv_blocks import (
    free_hit_blocks,
    give_back,
    hit_blocks,
    index_full_blocks,
    take_hits,
    take_new,
)
from serving.simulator.kv_on_way import behind_awaited, let_go_kept
from serving.simulator.rank_queues import (
    chosen_rank,
    link,
    put_in,
    unlink_after,
)
from serving.simulator.scheduler_arrays import (
    NONE,
    Acceptance,
    PrefixCache,
    SchedulerArrays,
    SchedulerBounds,
)
from serving.simulator.verified_drafts import accepted_drafts


@compiled
def admit(
    s: SchedulerArrays, bounds: SchedulerBounds, c: PrefixCache | None, first: int, now_ns: int
) -> int:
    """Send requests from `first` on that have arrived by now to ranks; returns the next to come.

    At least one rank is open.
    """
    while first < len(s.requests) and s.requests[first].arrival_ns <= now_ns:
        put_in(s, bounds, first, chosen_rank(s, bounds, c, first))
        first += 1
    return first


@compiled
def send(
    s: SchedulerArrays, bounds: SchedulerBounds, c: PrefixCache | None, requests: Int64s
) -> None:
    """Send requests to ranks; at least one rank is open."""
    for request in requests:
        put_in(s, bounds, request, chosen_rank(s, bounds, c, request))


@compiled
def demand(
    s: SchedulerArrays, bounds: SchedulerBounds, enough: int, pending: Int64s, decodes: Int64s
) -> None:
    """`rank_demand` of each rank: tokens it could prefill, up to `enough`, and its decodes."""
    for rank in range(len(s.ranks)):
        pending[rank] = decodes[rank] = 0
        for row in range(s.ranks[rank].running_count):
            request = s.running[rank, row]
            if s.requests[request].is_prefill:
                pending[rank] += s.requests[request].tokens - s.requests[request].computed
            else:
                decodes[rank] += 1
        add_waiting(s, bounds, rank, enough, pending)


@compiled
def add_waiting(
    s: SchedulerArrays, bounds: SchedulerBounds, rank: int, enough: int, pending: Int64s
) -> None:
    """Add to the `pending` tokens of a rank, [ranks], those of waiting requests, up to `enough`."""
    waiting, request = 0, s.ranks[rank].waiting_first
    for _ in range(bounds.seats - s.ranks[rank].running_count):
        if request == NONE:
            break
        waiting += s.requests[request].tokens - s.requests[request].received
        if pending[rank] + waiting >= enough:
            break
        request = s.requests[request].waiting_next
    waiting = min(waiting, s.ranks[rank].free_blocks * bounds.block_tokens)
    pending[rank] = min(pending[rank] + waiting, enough)


@compiled
def schedule(
    s: SchedulerArrays,
    bounds: SchedulerBounds,
    c: PrefixCache | None,
    budgets: Int64s,
    decodes: Int64s,
    now_ns: int,
) -> int:
    """`Scheduler.schedule` of each rank within its prefill budget; returns the rows of the step.

    `budgets` [ranks] are in tokens, UNLIMITED or 0 for decodes alone; `decodes` as from `demand`.
    """
    rows = 0
    for rank in range(len(s.ranks)):
        budget, first = budgets[rank], rows
        tokens = step_tokens(bounds, budget, decodes[rank])
        rows, tokens, preempted = _schedule_running(s, bounds, c, rank, budget, tokens, rows)
        if not preempted:
            rows = schedule_waiting(s, bounds, c, rank, budget, tokens, (first, rows), now_ns)
        note_rows(s, rank, first, rows)
    return rows


@compiled
def step_tokens(bounds: SchedulerBounds, budget: int, decodes: int) -> int:
    """Tokens of a rank in a step at most, within its prefill budget."""
    if budget == UNLIMITED:
        return bounds.step_tokens
    return min(bounds.step_tokens, decodes * (1 + bounds.speculative_tokens) + budget)


@compiled
def note_rows(s: SchedulerArrays, rank: int, first: int, end: int) -> None:
    """What a rank's rows of a step, [first, end), make of their requests."""
    s.ranks[rank].logit_rows = 0
    for row in range(first, end):
        request = s.rows[row].request
        s.requests[request].computed = s.rows[row].context + s.rows[row].new
        s.requests[request].is_prefill = s.requests[request].computed < s.requests[request].tokens
        s.ranks[rank].logit_rows += not s.requests[request].is_prefill


@compiled
def piece_max(s: SchedulerArrays, bounds: SchedulerBounds, rank: int, budget: int) -> int:
    """Tokens of one prefill in a step at most; 0 is no limit, as for a rank's only request."""
    requests = s.ranks[rank].running_count + s.ranks[rank].waiting_count
    if requests < 2:
        return 0
    piece = bounds.long_prefill_tokens
    if budget > 0:
        return min(piece, budget) if piece else budget
    return piece


@compiled
def _holds_back(s: SchedulerArrays, rank: int, budget: int) -> bool:
    """Whether prefills wait: vLLM's `throttle_prefills` while a request decodes."""
    if budget:
        return False
    for row in range(s.ranks[rank].running_count):
        if not s.requests[s.running[rank, row]].is_prefill:
            return True
    return False


@compiled
def _schedule_running(
    s: SchedulerArrays,
    bounds: SchedulerBounds,
    c: PrefixCache | None,
    rank: int,
    budget: int,
    tokens: int,
    rows: int,
) -> tuple[int, int, bool]:
    """Give running requests their tokens; preempt others for their blocks.

    Returns rows, the tokens left, and whether a request was preempted.
    """
    piece = piece_max(s, bounds, rank, budget)
    holds_back = _holds_back(s, rank, budget)
    first, place, preempted = rows, 0, False
    while place < s.ranks[rank].running_count and tokens > 0:
        room = _room(s, bounds, first, rows)
        if room <= 0:
            break
        request = s.running[rank, place]
        if holds_back and s.requests[request].is_prefill:
            place += 1
            continue
        context = s.requests[request].computed
        new = s.requests[request].tokens + s.requests[request].drafts - context
        if 0 < piece < new:
            new = piece
        new = min(new, tokens, room, bounds.context_tokens - 1 - context)
        needed = new_blocks(s, bounds, request, context + new)
        has_blocks = True
        while needed > s.ranks[rank].free_blocks and has_blocks:
            victim_place = _victim(s, bounds, rank)
            victim = s.running[rank, victim_place]
            if victim_place < place:
                place -= 1
            rows, restored = _drop_row(s, first, rows, victim)
            tokens += restored
            _preempt(s, bounds, c, rank, victim_place)
            preempted, has_blocks = True, victim != request
        if not has_blocks:
            break
        take(s, bounds, c, rank, request, needed, context + new)
        rows = add_row(s, rank, request, new, context, rows)
        if s.requests[request].drafts:
            s.rows[rows - 1].drafts = max(0, context + new - s.requests[request].tokens)
            s.requests[request].drafts = 0
        tokens -= new
        place += 1
    return rows, tokens, preempted


@compiled
def _room(s: SchedulerArrays, bounds: SchedulerBounds, first: int, rows: int) -> int:
    """Tokens that a rank's step holds for one more request beside its rows, [first, rows), where a
    drafting model takes slots of each; without one, all that a step has.
    """
    room = bounds.step_tokens
    if bounds.draft_slots:
        for row in range(first, rows):
            room -= s.rows[row].new + bounds.draft_slots
    return room - bounds.draft_slots


@compiled
def _drop_row(s: SchedulerArrays, first: int, rows: int, victim: int) -> tuple[int, int]:
    """Take back the tokens of a request that was given some in this step, if it was.

    Returns the rows, of which those of its rank begin at `first`, and the tokens.
    """
    row = first
    while row < rows and s.rows[row].request != victim:
        row += 1
    if row == rows:
        return rows, 0
    restored = s.rows[row].new
    for later in range(row, rows - 1):
        s.rows[later].request = s.rows[later + 1].request
        s.rows[later].new = s.rows[later + 1].new
        s.rows[later].context = s.rows[later + 1].context
        s.rows[later].drafts = s.rows[later + 1].drafts
    return rows - 1, restored


@compiled
def new_blocks(s: SchedulerArrays, bounds: SchedulerBounds, request: int, tokens: int) -> int:
    """Blocks that a request lacks for so many tokens, and those that are drafted after them."""
    ahead = min(tokens + bounds.speculative_tokens, bounds.context_tokens)
    held = s.requests[request].blocks
    if ahead <= held * bounds.block_tokens:  # mostly; divisions are slow
        return 0
    return -(-ahead // bounds.block_tokens) - held


@compiled
def may_preempt(s: SchedulerArrays, bounds: SchedulerBounds) -> bool:
    """Whether a rank may lack blocks for all tokens that its running requests have yet to compute,
    and those that they draft.
    """
    for rank in range(len(s.ranks)):
        free = s.ranks[rank].free_blocks
        for place in range(s.ranks[rank].running_count):
            request = s.running[rank, place]
            drafts = s.requests[request].drafts
            free -= new_blocks(s, bounds, request, s.requests[request].tokens + drafts)
        if free < 0:
            return True
    return False


@compiled
def _victim(s: SchedulerArrays, bounds: SchedulerBounds, rank: int) -> int:
    """The place of the running request to preempt: the last, or the first of the least urgent."""
    if not bounds.by_priority:
        return s.ranks[rank].running_count - 1
    victim = 0
    for place in range(1, s.ranks[rank].running_count):
        least, other = s.running[rank, victim], s.running[rank, place]
        if s.requests[other].level > s.requests[least].level or (
            s.requests[other].level == s.requests[least].level
            and s.requests[other].arrival_ns > s.requests[least].arrival_ns
        ):
            victim = place
    return victim


@compiled
def _preempt(
    s: SchedulerArrays, bounds: SchedulerBounds, c: PrefixCache | None, rank: int, place: int
) -> None:
    """Take a running request's blocks; it goes back to the front of the queue."""
    request = s.running[rank, place]
    stop_running(s, c, rank, request)
    s.requests[request].computed = s.requests[request].drafts = 0
    s.requests[request].received = 0
    s.requests[request].preemptions += 1
    if bounds.by_priority:
        put_in(s, bounds, request, rank)
    else:
        link(s, rank, request, NONE, s.ranks[rank].waiting_first)


@compiled
def stop_running(s: SchedulerArrays, c: PrefixCache | None, rank: int, request: int) -> None:
    """A running request of `rank` leaves, and its blocks are free."""
    left = 0
    for place in range(s.ranks[rank].running_count):
        if s.running[rank, place] != request:
            s.running[rank, left] = s.running[rank, place]
            left += 1
    s.ranks[rank].running_count = left
    s.ranks[rank].running_tokens -= s.requests[request].tokens
    s.requests[request].is_running = False
    if c is not None:
        give_back(s, c, rank, request)
    else:
        s.ranks[rank].free_blocks += s.requests[request].blocks
        s.requests[request].blocks = 0


@compiled
def take(
    s: SchedulerArrays,
    bounds: SchedulerBounds,
    c: PrefixCache | None,
    rank: int,
    request: int,
    count: int,
    tokens: int,
) -> None:
    """Append `count` new blocks to a request's, which then hold `tokens`, drafts too."""
    if c is not None:
        take_new(s, c, rank, request, count)
        known = min(tokens, s.requests[request].tokens)
        index_full_blocks(s, c, rank, request, known, bounds.block_tokens)
    else:
        s.ranks[rank].free_blocks -= count
        s.requests[request].blocks += count


@compiled
def add_row(s: SchedulerArrays, rank: int, request: int, new: int, context: int, row: int) -> int:
    """Fill a row of a step; returns the next one's place."""
    s.rows[row].rank, s.rows[row].request = rank, request
    s.rows[row].new, s.rows[row].context = new, context
    s.rows[row].drafts = 0
    return row + 1


@compiled
def schedule_waiting(
    s: SchedulerArrays,
    bounds: SchedulerBounds,
    c: PrefixCache | None,
    rank: int,
    budget: int,
    tokens: int,
    own: tuple[int, int],
    now_ns: int,
) -> int:
    """Start waiting requests while tokens, seats and blocks last; returns the rows.

    The rank's running ones have those from the first of `own` to before the second.
    """
    first, running_rows = own
    before, rows, lacks = NONE, running_rows, False
    piece = piece_max(s, bounds, rank, budget)
    holds_back = _holds_back(s, rank, budget)
    while tokens > 0 and s.ranks[rank].waiting_count and s.ranks[rank].running_count < bounds.seats:
        before, request, lacks = behind_awaited(s, bounds, rank, before, lacks, now_ns)
        if request == NONE:
            break
        hits, free_hits = _hits(s, bounds, c, rank, request)
        cached = hits * bounds.block_tokens
        context = max(cached, s.requests[request].received)
        if holds_back and context < s.requests[request].tokens - 1:
            break
        width = _padded_width(s, bounds, request, context, first, running_rows)
        room = min(tokens, _room(s, bounds, first, rows))
        if room <= 0 or width > room:
            break
        new = s.requests[request].tokens - context
        if 0 < piece < new:
            new = piece
        new = width or min(new, room)
        # vLLM's scheduler_reserve_full_isl: it starts once all of its tokens have blocks.
        whole = -(-s.requests[request].tokens // bounds.block_tokens) - hits
        kept = s.requests[request].blocks  # for KV that has come
        needed = kept + new_blocks(s, bounds, request, context + new) - hits
        if max(whole, needed) + free_hits > kept + s.ranks[rank].free_blocks:
            before, lacks = request, True
            continue
        unlink_after(s, rank, before, request)
        let_go_kept(s, rank, request)
        if c is not None:
            take_hits(s, c, rank, request, hits)
            if not s.requests[request].preemptions and not s.requests[request].received:
                s.requests[request].hits = cached
        take(s, bounds, c, rank, request, needed, context + new)
        s.running[rank, s.ranks[rank].running_count] = request
        s.ranks[rank].running_count += 1
        s.ranks[rank].running_tokens += s.requests[request].tokens
        s.requests[request].is_running = True
        rows = add_row(s, rank, request, new, context, rows)
        if width:
            s.rows[rows - 1].drafts = 1 - width
        tokens -= new
    return rows


@compiled
def _hits(
    s: SchedulerArrays, bounds: SchedulerBounds, c: PrefixCache | None, rank: int, request: int
) -> tuple[int, int]:
    """Blocks of a waiting request in the cache, and how many of them are free."""
    if c is None:
        return 0, 0
    hits = hit_blocks(s, bounds, c, rank, request)
    return hits, free_hit_blocks(s, c, rank, request, hits)


@compiled
def _padded_width(
    s: SchedulerArrays, bounds: SchedulerBounds, request: int, context: int, first: int, last: int
) -> int:
    """Tokens of a request that starts with one, as wide as decodes with drafts; 0 without padding.

    vLLM pads it beside the rank's running rows, `first` to `last`, unless one of them is a prefill.
    """
    width = 1 + bounds.speculative_tokens
    if width == 1 or s.requests[request].tokens - context > 1:
        return 0
    if (first == last and context == 0) or context + width >= bounds.context_tokens:
        return 0
    for row in range(first, last):
        if s.requests[s.rows[row].request].is_prefill:
            return 0
    return width


@compiled
def give_tokens(
    s: SchedulerArrays,
    c: PrefixCache | None,
    acceptance: Acceptance | None,
    rows: int,
    end_ns: int,
    given: Int32s,
) -> tuple[int, int]:
    """`update_from_output` of a step that ends at `end_ns`.

    Each row that computed all of its request gets a token, and one for each draft that was right.
    Writes those requests to `given` [tokens], one as often as it has tokens; returns how many
    tokens they are, and how many requests have their last token and are gone.
    """
    tokens = ended = 0
    for row in range(rows):
        request = s.rows[row].request
        if s.requests[request].is_prefill:
            continue
        rank = s.rows[row].rank
        count = 1
        if acceptance is not None:
            right = accepted_drafts(s, acceptance, row)
            s.requests[request].computed -= abs(s.rows[row].drafts) - right
            s.requests[request].drafts = len(acceptance.rates)
            count = min(1 + right, s.requests[request].tokens_left)
            for place in range(1, count):
                given[tokens + place] = request
        given[tokens] = request
        tokens += count
        if s.requests[request].first_token_ns == NONE:
            s.requests[request].first_token_ns = end_ns
        s.requests[request].tokens += count
        s.requests[request].tokens_left -= count
        s.ranks[rank].running_tokens += count
        if s.requests[request].tokens_left == 0:
            ended += 1
            s.requests[request].last_token_ns = end_ns
            s.requests[request].ended_on = s.ranks[rank].number
            stop_running(s, c, rank, request)
            s.requests[request].rank = NONE
    return tokens, ended

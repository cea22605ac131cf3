"""Counts a step, compiled: from requests to the terms of ranks and experts.

What `StepCounter` counts with arrays of all ranks, rank by rank and from tables (`count_tables`):
no formula of the work of attention, networks or experts stands here.
"""

from typing import Final, NamedTuple

import numpy as np

from emulator.arrays import Bools, Float64s, Int64s
from emulator.compiled import allocating, compiled, inlined
from emulator.ultraserver.exchange_kernel import (
    ExchangeRoom,
    ExchangeTables,
    exchange_rows,
)
from emulator.ultraserver.request_kernel import (
    FIRST_SUM,
    SUM_COLUMNS,
    TOKENS,
    HeadTables,
    RequestSums,
    add_idle,
    add_request,
    add_up_projections,
    request_sums,
    request_sums_beside,
)
from emulator.ultraserver.terms_layout import (
    FIELDS,
    RAMP_NS,
    TENSOR_NS,
)

Batch = tuple[Int64s, Int64s, Int64s, Int64s]
"""Rank, new tokens and context, [requests] each; rows of logits, [ranks]."""

RankBatch = tuple[Int64s, Int64s, Int64s, Int64s]
"""A batch rank by rank, with its requests of each, [ranks], in place of the rank of each."""

PARTS_OF_EXPERTS: Final = 5  # pairs, experts, rows issued, any pair, pairs that do not fit in SBUF


class KindTables(NamedTuple):
    """What a rank's rows take, by what they depend on; ranks of a kind have equal collectives."""

    by_tokens: Float64s  # [kinds of ranks, tokens, rows, FIELDS]
    by_logits: Float64s  # [kinds of ranks, rows of logits, rows, FIELDS]
    known_tokens: Bools  # [tokens]
    known_logits: Bools  # [rows of logits]
    by_sum: Float64s  # [rows, SUMS, FIELDS]
    sums_of_rows: Int64s  # [(row, sum) that are not 0, 2]


class RankTables(NamedTuple):
    """The ranks of a machine."""

    kinds: KindTables
    kind_of_rank: Int64s  # [ranks]
    up: Bools  # [ranks]
    dummy: Int64s  # [new tokens, context] that an idle rank of a busy domain computes
    ranks_per_domain: int
    tp: int
    ramp: Float64s  # of the matrix engine's clock, see `_ramp_loss_ns`


class ExpertTables(NamedTuple):
    """Experts of a placement. A column is what all chips of a group with equal slots have."""

    group_of: Int64s  # [columns]
    pairs_per_token: Float64s  # [columns]
    chance_of_slot: Int64s  # [columns, slots], each a place in `chances`
    chances: Float64s  # [different chances of a slot]
    by_part: Float64s  # [PARTS_OF_EXPERTS, FIELDS]
    least_rows: float  # of an issue
    pairs_in_sbuf: float
    group_chips: int


class CountTables(NamedTuple):
    """All that a step is counted from."""

    heads: HeadTables
    ranks: RankTables
    experts: ExpertTables
    exchange: ExchangeTables


class GivenExperts(NamedTuple):
    """Loads that were counted, and exchanges that were timed; see `Counted`.

    Without either, their arrays say the shapes.
    """

    has_loads: bool
    pairs: Float64s  # [columns]
    distinct: Float64s  # [columns]
    column_of: Int64s  # [kinds, chips]
    has_links: bool
    link_ns: Float64s  # [kinds, chips]
    rest_ns: Float64s  # [kinds]
    link_bytes: Float64s  # [kinds, chips]
    collectives: Float64s  # [kinds]


class RankCounts(NamedTuple):
    """What ranks do themselves; terms are laid out by `terms_layout`."""

    terms: Float64s  # [ranks, rows, FIELDS]
    of: RequestSums


class ExpertCounts(NamedTuple):
    """Experts of columns and their exchanges.

    Links are beside the terms: `link_ns` of each chip, `rest_ns` of an exchange beside its busiest
    link, `collective` how often a collective is launched.
    """

    terms: Float64s  # [columns, 1, FIELDS]
    column_of: Int64s  # [kinds, chips]
    link_ns: Float64s  # [kinds, chips]
    rest_ns: Float64s  # [kinds]
    link_bytes: Float64s  # [kinds, chips]
    collectives: Float64s  # [kinds]


class StepCounts(NamedTuple):
    """A counted step."""

    ranks: RankCounts
    experts: ExpertCounts


@inlined
def _add_dummies(tables: CountTables, sums: Float64s, tokens: Float64s) -> None:
    """Add a token to each rank that is up, idle, and shares experts with a busy one.

    Fills the `tokens` of each rank, [ranks], without it.
    """
    ranks, heads = tables.ranks, tables.heads
    width, new = ranks.ranks_per_domain, ranks.dummy[0]
    for rank in range(len(sums)):
        tokens[rank] = sums[rank, TOKENS]
    for rank in range(len(sums)):
        if tokens[rank] == 0 and ranks.up[rank] and new > 0:
            busy_tokens = 0.0
            first = rank - rank % width
            for other in range(first, first + width):
                busy_tokens += tokens[other]
            if busy_tokens > 0:
                add_request(heads.numbers, heads.macs, new, ranks.dummy[1], sums, rank)


@inlined
def _ramp_loss_ns(ramp: Float64s, burst_ns: float) -> float:
    """As `clock_ramp.ramp_loss_ns`; `ramp` is [share, its square, steepness, work inside]."""
    if ramp[2] == 0 or burst_ns == 0:
        return 0.0
    inside_ns = min(burst_ns, ramp[3])
    lasts_ns = (np.sqrt(ramp[1] + 2 * ramp[2] * inside_ns) - ramp[0]) / ramp[2]
    return float(lasts_ns - inside_ns)


@compiled
def is_known(known: Bools, count: int) -> bool:
    """Whether a table knows `count`."""
    return bool(count < len(known) and known[count])


@compiled
def check_known(kinds: KindTables, tokens: int, logits: int) -> None:
    """Raise LookupError where tables do not know a rank's tokens or rows of logits yet."""
    if not (is_known(kinds.known_tokens, tokens) and is_known(kinds.known_logits, logits)):
        raise LookupError


@inlined
def row_terms(
    ranks: RankTables,
    sums: Float64s,
    logits: int,
    rank: int,
    row: int,
    sums_of_row: tuple[int, int],
    terms: Float64s,
) -> None:
    """Fill one row of one rank's of `terms` [ranks, rows, FIELDS], from the tables that know it.

    `sums_of_row`: the first of `sums_of_rows`, and the one behind the last. Arrays have names of
    their own: one that is read from a tuple in a loop is counted there.
    """
    kinds, ramp = ranks.kinds, ranks.ramp
    by_tokens, by_logits, by_sum = kinds.by_tokens, kinds.by_logits, kinds.by_sum
    sums_of_rows = kinds.sums_of_rows
    tokens, kind = int(sums[rank, TOKENS]), ranks.kind_of_rank[rank]
    for field in range(FIELDS):
        own = by_tokens[kind, tokens, row, field]
        terms[rank, row, field] = own + by_logits[kind, logits, row, field]
    first, end = sums_of_row
    for each in range(first, end):
        place = sums_of_rows[each, 1]
        amount = sums[rank, FIRST_SUM + place]
        if amount == 0.0:
            continue
        for field in range(FIELDS):
            terms[rank, row, field] += amount * by_sum[row, place, field]
    terms[rank, row, RAMP_NS] = _ramp_loss_ns(ramp, terms[rank, row, TENSOR_NS])


@inlined
def end_of_row(sums_of_rows: Int64s, row: int, first: int) -> int:
    """Where the sums of `row` end, which begin at `first`."""
    end = first
    while end < len(sums_of_rows) and sums_of_rows[end, 0] == row:
        end += 1
    return end


@compiled
def rank_terms(
    ranks: RankTables, sums: Float64s, logit_rows: Int64s, rank: int, terms: Float64s
) -> None:
    """Fill one rank's of `terms` [ranks, rows, FIELDS]; raises LookupError as `count`."""
    logits, first = logit_rows[rank], 0
    check_known(ranks.kinds, int(sums[rank, TOKENS]), logits)
    for row in range(terms.shape[1]):
        end = end_of_row(ranks.kinds.sums_of_rows, row, first)
        row_terms(ranks, sums, logits, rank, row, (first, end), terms)
        first = end


class ExpertRoom(NamedTuple):
    """Room for what experts and exchanges are counted with; `counts` are all that stays."""

    counts: ExpertCounts
    pairs: Float64s  # [columns]
    distinct: Float64s  # [columns]
    of_group: Float64s  # [groups]
    hit: Float64s  # [groups, chances]
    parts: Float64s  # [PARTS_OF_EXPERTS]
    exchange: ExchangeRoom


def expert_room(tables: CountTables, given: GivenExperts) -> ExpertRoom:
    """Of a machine."""
    kinds, chips = given.link_ns.shape
    columns, groups = len(given.pairs), chips // tables.experts.group_chips
    tiers, nodes = tables.exchange.ns_per_byte.shape
    exchange = ExchangeRoom(
        link_ns=np.zeros((kinds, chips)),
        rest_ns=np.zeros(kinds),
        link_bytes=np.zeros((kinds, chips)),
        collectives=np.zeros(kinds),
        by_chip=np.empty(chips),
        arriving=np.empty((tiers, chips)),
        of_set=np.empty(len(tables.exchange.first_member) - 1),
        egress=np.empty((tiers, nodes)),
        ingress=np.empty((tiers, nodes)),
        of_link=np.empty(len(tables.exchange.ends)),
    )
    return ExpertRoom(
        counts=ExpertCounts(
            terms=np.zeros((columns, 1, FIELDS)),
            column_of=given.column_of,
            link_ns=exchange.link_ns,
            rest_ns=exchange.rest_ns,
            link_bytes=exchange.link_bytes,
            collectives=exchange.collectives,
        ),
        pairs=np.empty(columns),
        distinct=np.empty(columns),
        of_group=np.empty(groups),
        hit=np.empty((groups, len(tables.experts.chances))),
        parts=np.empty(PARTS_OF_EXPERTS),
        exchange=exchange,
    )


_room_of = allocating(expert_room)


@compiled
def _expected_loads(tables: CountTables, tokens: Float64s, room: ExpertRoom) -> None:
    """Fill the pairs and the different experts of each column."""
    experts, tp = tables.experts, tables.ranks.tp
    chances, group_of, chance_of_slot = experts.chances, experts.group_of, experts.chance_of_slot
    hit, of_group, pairs, distinct = room.hit, room.of_group, room.pairs, room.distinct
    of_group[:] = 0.0
    for chip in range(len(tokens) * tp):  # each dispatches its part of its rank's
        of_group[chip // experts.group_chips] += tokens[chip // tp] / tp
    for group in range(len(of_group)):
        for place in range(len(chances)):
            hit[group, place] = 1 - (1 - chances[place]) ** of_group[group]
    for column in range(len(group_of)):
        group = group_of[column]
        pairs[column] = experts.pairs_per_token[column] * of_group[group]
        distinct[column] = 0.0
        for slot in range(chance_of_slot.shape[1]):
            distinct[column] += hit[group, chance_of_slot[column, slot]]


@compiled
def _column_terms(
    tables: CountTables, pairs: Float64s, distinct: Float64s, parts: Float64s, terms: Float64s
) -> None:
    """Fill `terms` [columns, 1 row, FIELDS], without the exchange."""
    experts, by_part = tables.experts, tables.experts.by_part
    for column in range(len(pairs)):
        parts[0] = pairs[column]
        parts[1] = distinct[column]
        parts[2] = max(pairs[column], experts.least_rows * distinct[column])
        parts[3] = pairs[column] > 0
        parts[4] = max(pairs[column] - experts.pairs_in_sbuf, 0.0)
        for field in range(FIELDS):
            terms[column, 0, field] = 0.0
        for part in range(PARTS_OF_EXPERTS):
            for field in range(FIELDS):
                terms[column, 0, field] += parts[part] * by_part[part, field]
        terms[column, 0, RAMP_NS] = _ramp_loss_ns(tables.ranks.ramp, terms[column, 0, TENSOR_NS])


@compiled
def sum_requests(tables: CountTables, batch: Batch, into: RequestSums) -> None:
    """Fill the sums over each rank's requests, and over a dummy's where it has none."""
    rank, new, context, _ = batch
    request_sums(tables.heads, rank, new, context, into)
    _complete_sums(tables, into)


@inlined
def sum_requests_beside(
    tables: CountTables, standing: Int64s, batch: RankBatch, into: RequestSums
) -> None:
    """`sum_requests` of `batch` and of requests that decode beside it, as `request_sums_beside`."""
    counts, new, context, _ = batch
    request_sums_beside(tables.heads, standing, counts, new, context, into)
    _complete_sums(tables, into)


@inlined
def _complete_sums(tables: CountTables, into: RequestSums) -> None:
    """Add what dummies do, and what all requests of a rank share."""
    _add_dummies(tables, into.sums, into.tokens)
    add_up_projections(tables.heads, into.sums)
    add_idle(tables.heads, into.sums)


@compiled
def fill_experts(tables: CountTables, tokens: Float64s, room: ExpertRoom) -> None:
    """Fill `room.counts` of expected loads and exchanges, which depend on `tokens` [ranks] alone.

    Raises ConnectionError as `count_experts`.
    """
    _expected_loads(tables, tokens, room)
    _column_terms(tables, room.pairs, room.distinct, room.parts, room.counts.terms)
    if tables.exchange.carried:
        exchange_rows(tables.exchange, tokens, tables.ranks.tp, room.exchange)


@allocating
def count_experts(tables: CountTables, given: GivenExperts, tokens: Float64s) -> ExpertCounts:
    """Count experts and their exchanges, of `tokens` [ranks] where nothing else is given.

    Raises ConnectionError for a chip without links to one that needs its tokens.
    """
    room = _room_of(tables, given)
    if not (given.has_loads or given.has_links):
        fill_experts(tables, tokens, room)
        return room.counts
    pairs, distinct, counts = given.pairs, given.distinct, room.counts
    if not given.has_loads:
        pairs, distinct = room.pairs, room.distinct
        _expected_loads(tables, tokens, room)
    _column_terms(tables, pairs, distinct, room.parts, counts.terms)
    link_ns, rest_ns, link_bytes = given.link_ns, given.rest_ns, given.link_bytes
    collectives = given.collectives
    if not given.has_links:
        link_ns, rest_ns, link_bytes = counts.link_ns, counts.rest_ns, counts.link_bytes
        collectives = counts.collectives
        if tables.exchange.carried:
            exchange_rows(tables.exchange, tokens, tables.ranks.tp, room.exchange)
    return ExpertCounts(
        terms=counts.terms,
        column_of=given.column_of,
        link_ns=link_ns,
        rest_ns=rest_ns,
        link_bytes=link_bytes,
        collectives=collectives,
    )


@allocating
def count(tables: CountTables, given: GivenExperts, batch: Batch) -> StepCounts:
    """Count a batch.

    Raises LookupError where the tables have not a rank's number of tokens or rows yet.
    """
    logit_rows = batch[3]
    ranks, rows = len(logit_rows), tables.ranks.kinds.by_tokens.shape[2]
    of_ranks = RequestSums(
        sums=np.empty((ranks, SUM_COLUMNS)),
        tokens=np.empty(ranks),
        requests=np.empty(ranks),
        prefills=np.empty(ranks),
    )
    sum_requests(tables, batch, of_ranks)
    terms = np.empty((ranks, rows, FIELDS))
    for rank in range(ranks):
        rank_terms(tables.ranks, of_ranks.sums, logit_rows, rank, terms)
    experts = count_experts(tables, given, of_ranks.tokens)
    return StepCounts(ranks=RankCounts(terms, of_ranks), experts=experts)

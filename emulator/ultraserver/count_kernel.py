"""Counts a step, compiled: from requests to the terms of ranks and experts.

What `StepCounter` counts with arrays of all ranks, rank by rank and from tables (`count_tables`):
no formula of the work of attention, networks or experts stands here, only the sums over requests,
whose formulas are those of `rank_totals`, and the exchange over lanes, as in `TierPaths`.
"""

from typing import Final, NamedTuple

import numpy as np

from emulator.arrays import Bools, Float64s, Int64s
from emulator.ultraserver.compiled import compiled, compiled_part
from emulator.ultraserver.terms_layout import (
    FIELDS,
    RAMP_NS,
    TENSOR_NS,
)

BLOCK: Final = 512  # token counts whose terms are tabulated together
PARTS_OF_EXPERTS: Final = 5  # pairs, experts, rows issued, any pair, pairs that do not fit in SBUF
# A quotient of whole numbers is a product with 2^40 over the divisor, rounded up, over 2^40: exact
# for numbers below 2^23 divisors, which no context reaches, and many times as fast.
SHIFT: Final = 40

# Columns of the sums over a rank's requests; those from FIRST_SUM on are multiplied by a table.
TOKENS: Final = 0
UP_ROWS: Final = 1
FIRST_SUM: Final = 2
SUMS: Final = (
    "context_tokens",
    "attended",
    "head_macs",
    "issued_head_macs",
    "cached_macs",
    "issued_cached_macs",
    "window_context_tokens",
    "window_attended",
    "window_head_macs",
    "window_issued_head_macs",
)
CONTEXT, ATTENDED, HEAD, ISSUED, CACHED, ISSUED_CACHED = range(FIRST_SUM, FIRST_SUM + 6)
WINDOW_CONTEXT, WINDOW_ATTENDED, WINDOW_HEAD, WINDOW_ISSUED = range(FIRST_SUM + 6, FIRST_SUM + 10)
SUM_COLUMNS: Final = FIRST_SUM + len(SUMS)


class HeadTables(NamedTuple):
    """One head's products: see `rank_totals`.

    `plain` (and `unfolded`, of a latent that is) are what `_issued_pairs` charges: MACs of a query
    and a tile of keys, of one and a tile of values, and the least rows of either over the heads
    that share them. `folds_from` is the context from which a decoding token folds its latent.
    """

    tile_columns: int
    tile_rows: int
    columns_magic: int  # what a number is multiplied with instead of being divided by a tile
    rows_magic: int
    window: int
    latent: bool
    folds_from: int
    pair_macs: float  # of one that is attended to: of the latent as it lies, where there is one
    unfolded_pair_macs: float
    up_macs: float
    least_up_rows: float
    issued_up_macs: float
    plain: Float64s  # [of keys, of values, least rows]
    unfolded: Float64s  # [of keys, of values, least rows]
    windowed: Float64s  # [of keys, of values, least rows]
    window_pair_macs: float


class RankTables(NamedTuple):
    """What a rank's rows take, by what they depend on; ranks of a kind have equal collectives."""

    by_tokens: Float64s  # [kinds of ranks, tokens, rows, FIELDS]
    by_logits: Float64s  # [kinds of ranks, rows of logits, rows, FIELDS]
    known_tokens: Bools  # [blocks of tokens]
    known_logits: Bools  # [blocks of rows of logits]
    by_sum: Float64s  # [rows, SUMS, FIELDS]
    rows_with_sums: Int64s  # [rows that have any]
    kind_of_rank: Int64s  # [ranks]
    up: Bools  # [ranks]
    dummies: bool  # whether an idle rank of a busy domain computes a token
    ranks_per_domain: int
    tp: int
    ramp_share: float
    ramp_ns: float


class ExpertTables(NamedTuple):
    """Experts of a placement. A column is what all chips of a group with equal slots have."""

    present: bool
    column_of: Int64s  # [kinds, chips]
    group_of: Int64s  # [columns]
    pairs_per_token: Float64s  # [columns]
    chance_of_slot: Int64s  # [columns, slots], each a place in `chances`
    chances: Float64s  # [different chances of a slot]
    by_part: Float64s  # [PARTS_OF_EXPERTS, FIELDS]
    least_rows: float  # of an issue
    pairs_in_sbuf: float
    group_chips: int


class ExchangeTables(NamedTuple):
    """Rows between chips over the lanes of tiers; nothing where `carried` is False.

    A receiver's senders over a tier are one of the `sets`, of which it may itself be one.
    """

    carried: bool
    received_bytes: Float64s  # [kinds, receivers]: of a token of its group
    sent_bytes: Float64s  # [kinds, tiers, senders]: of one of its tokens
    stuck: Bools  # [senders]: no links lead to one that needs its tokens
    left_bytes: Float64s  # [kinds, senders]: of one of its tokens, to all others
    set_of: Int64s  # [tiers, receivers]
    itself: Float64s  # [tiers, receivers]: 1 where the set has the receiver too, else 0
    members: Int64s  # [members of all sets], set after set
    first_member: Int64s  # [sets + 1]
    ns_per_byte: Float64s  # [tiers, chips and relays]
    latency_ns: float
    legs: Int64s  # [legs of detours, (sender, receiver, tier, leg's sender, leg's receiver)]
    doublings: float  # of the chips that take part in a collective


class CountTables(NamedTuple):
    """All that a step is counted from."""

    heads: HeadTables
    ranks: RankTables
    experts: ExpertTables
    exchange: ExchangeTables


class GivenExperts(NamedTuple):
    """Loads that were counted, and exchanges that were timed; see `Counted`."""

    has_loads: bool
    pairs: Float64s  # [columns]
    distinct: Float64s  # [columns]
    column_of: Int64s  # [kinds, chips]
    has_links: bool
    link_ns: Float64s  # [kinds, chips]
    rest_ns: Float64s  # [kinds]
    link_bytes: Float64s  # [kinds, chips]


class Counted(NamedTuple):
    """A counted step; terms are laid out by `terms_layout`.

    Links of the exchange are beside the experts' terms: `link_ns` of each chip, `rest_ns` of an
    exchange beside its busiest link, `collective` how often a collective is launched.
    """

    rank_terms: Float64s  # [ranks, rows, FIELDS]
    tokens: Float64s  # [ranks], without dummies
    requests: Float64s  # [ranks]
    prefills: Float64s  # [ranks]
    column_terms: Float64s  # [columns, FIELDS]
    column_of: Int64s  # [kinds, chips]
    link_ns: Float64s  # [kinds, chips]
    rest_ns: Float64s  # [kinds]
    link_bytes: Float64s  # [kinds, chips]
    collectives: Float64s  # [kinds]


@compiled_part
def _tile_rows(new: int, context: int, tile: int, window: int) -> tuple[int, int]:
    """Tiles of keys, and queries that pass any, summed over tiles: `rank_totals._tile_rows`."""
    tiles = -(-(context + new) // tile)
    first = context // tile + 1
    spared_tiles = max(tiles - first, 0)
    spared = tile * (first + tiles - 1) * spared_tiles // 2 - context * spared_tiles
    queries = new * tiles - spared
    if window > 0:
        queries = min(queries, new * (-(-(window - 1) // tile) + 1))
    return tiles, queries


@compiled_part
def _issued(heads: HeadTables, macs: Float64s, new: int, context: int, window: int) -> float:
    """MACs issued for scores and weighted sums of one head of a request."""
    key_tiles, key_queries = _tile_rows(new, context, heads.tile_columns, window)
    value_tiles, value_queries = _tile_rows(new, context, heads.tile_rows, window)
    of_keys = max(float(key_queries), macs[2] * key_tiles) * macs[0]
    of_values = max(float(value_queries), macs[2] * value_tiles) * macs[1]
    return float(of_keys + of_values)


@compiled_part
def _add_request(heads: HeadTables, new: int, context: int, sums: Float64s) -> None:
    """Add one request, of any kind, to its rank's `sums` [SUM_COLUMNS]."""
    pairs = new * context + new * (new + 1) // 2
    sums[TOKENS] += new
    sums[CONTEXT] += context
    sums[ATTENDED] += pairs
    macs = pairs * heads.pair_macs
    if not heads.latent:
        sums[HEAD] += macs
        sums[ISSUED] += _issued(heads, heads.plain, new, context, 0)
    else:
        keys = context + new
        folded, unfolded = macs + new * heads.up_macs, pairs * heads.unfolded_pair_macs
        unfolded += keys * heads.up_macs
        if folded <= unfolded:
            issued = _issued(heads, heads.plain, new, context, 0)
            sums[HEAD] += folded
            sums[ISSUED] += issued
            sums[CACHED] += macs
            sums[ISSUED_CACHED] += issued
            sums[UP_ROWS] += new
        else:
            sums[HEAD] += unfolded
            sums[ISSUED] += _issued(heads, heads.unfolded, new, context, 0)
            sums[UP_ROWS] += keys
    if heads.window > 0:
        seen = min(context, heads.window - 1)
        growing = min(max(heads.window - context, 0), new)
        attended = growing * context + growing * (growing + 1) // 2
        attended += (new - growing) * heads.window
        sums[WINDOW_CONTEXT] += seen
        sums[WINDOW_ATTENDED] += attended
        sums[WINDOW_HEAD] += heads.window_pair_macs * attended
        sums[WINDOW_ISSUED] += _issued(heads, heads.windowed, new, seen, heads.window)


@compiled_part
def _add_decodes(
    heads: HeadTables, new: Int64s, context: Int64s, first: int, end: int, sums: Float64s
) -> int:
    """Add requests [first, end) that decode; returns how many.

    A decoding token passes every tile of its keys, and the last tile's number is the context's
    quotient: so all that is summed are whole numbers, without a branch.
    """
    count = contexts = column_tiles = row_tiles = 0
    columns_magic, rows_magic, folds_from = heads.columns_magic, heads.rows_magic, heads.folds_from
    for place in range(first, end):
        seen = context[place]
        one = int((new[place] == 1) & (seen >= folds_from))
        seen *= one
        count += one
        contexts += seen
        column_tiles += (seen * columns_magic) >> SHIFT
        row_tiles += (seen * rows_magic) >> SHIFT
    sums[TOKENS] += count
    sums[CONTEXT] += contexts
    _add_decode_sums(heads, count, contexts + count, column_tiles + count, row_tiles + count, sums)
    if heads.window > 0 and count > 0:
        last = heads.window - 1
        contexts = column_tiles = row_tiles = 0
        for place in range(first, end):
            seen = context[place]
            seen = min(seen, last) * int((new[place] == 1) & (seen >= folds_from))
            contexts += seen
            column_tiles += (seen * columns_magic) >> SHIFT
            row_tiles += (seen * rows_magic) >> SHIFT
        sums[WINDOW_CONTEXT] += contexts
        sums[WINDOW_ATTENDED] += contexts + count
        sums[WINDOW_HEAD] += heads.window_pair_macs * (contexts + count)
        sums[WINDOW_ISSUED] += _issued_tiles(
            heads.windowed, column_tiles + count, row_tiles + count
        )
    return count


@compiled_part
def _add_decode_sums(
    heads: HeadTables, count: int, pairs: int, column_tiles: int, row_tiles: int, sums: Float64s
) -> None:
    macs, issued = pairs * heads.pair_macs, _issued_tiles(heads.plain, column_tiles, row_tiles)
    sums[ATTENDED] += pairs
    sums[HEAD] += macs
    sums[ISSUED] += issued
    if heads.latent:
        sums[HEAD] += count * heads.up_macs
        sums[CACHED] += macs
        sums[ISSUED_CACHED] += issued
        sums[UP_ROWS] += count


@compiled_part
def _issued_tiles(macs: Float64s, column_tiles: int, row_tiles: int) -> float:
    """MACs issued for tokens that pass each of so many tiles once."""
    rows = max(1.0, macs[2])
    return float(rows * column_tiles * macs[0] + rows * row_tiles * macs[1])


@compiled_part
def _sums(
    tables: CountTables,
    rank: Int64s,
    new: Int64s,
    context: Int64s,
    requests: Float64s,
    prefills: Float64s,
) -> Float64s:
    """Sums over each rank's requests, which come in runs of one rank: [ranks, SUM_COLUMNS]."""
    heads = tables.heads
    sums = np.zeros((len(tables.ranks.kind_of_rank), SUM_COLUMNS))
    first, count = 0, len(rank)
    while first < count:
        own, end = rank[first], first + 1
        while end < count and rank[end] == own:
            end += 1
        requests[own] += end - first
        if _add_decodes(heads, new, context, first, end, sums[own]) < end - first:
            for place in range(first, end):
                if new[place] != 1 or context[place] < heads.folds_from:
                    _add_request(heads, new[place], context[place], sums[own])
                prefills[own] += new[place] > 1 or context[place] == 0
        first = end
    return sums


@compiled_part
def _add_up_projections(heads: HeadTables, sums: Float64s) -> None:
    """Add what a latent's up-projection is issued for, which all requests of a rank share."""
    for rank in range(len(sums)):
        if sums[rank, UP_ROWS] > 0:
            up_rows = max(sums[rank, UP_ROWS], heads.least_up_rows)
            sums[rank, ISSUED] += up_rows * heads.issued_up_macs


@compiled_part
def _add_dummies(tables: CountTables, sums: Float64s) -> None:
    """Add a token to each rank that is up, idle, and shares experts with a busy one."""
    ranks = tables.ranks
    width = ranks.ranks_per_domain
    for first in range(0, len(sums), width):
        busy = False
        for rank in range(first, first + width):
            busy |= sums[rank, TOKENS] > 0
        for rank in range(first, first + width):
            if busy and ranks.up[rank] and sums[rank, TOKENS] == 0:
                _add_request(tables.heads, 1, 0, sums[rank])


@compiled_part
def _ramp_loss_ns(share: float, ramp_ns: float, burst_ns: float) -> float:
    """As `clock_ramp.ramp_loss_ns`."""
    if share >= 1 or ramp_ns == 0:
        return 0.0
    whole_loss_ns = (1 - share) * ramp_ns / 2
    steepness = (1 - share) / ramp_ns
    inside_ns = min(burst_ns, ramp_ns - whole_loss_ns)
    lasts_ns = (np.sqrt(share**2 + 2 * steepness * inside_ns) - share) / steepness
    return float(lasts_ns - inside_ns)


@compiled_part
def _check_known(known: Bools, count: int) -> None:
    """Raise LookupError where a table does not know `count` yet."""
    if count // BLOCK >= len(known) or not known[count // BLOCK]:
        raise LookupError


@compiled_part
def _rank_terms(tables: CountTables, sums: Float64s, logit_rows: Int64s) -> Float64s:
    """-> [ranks, rows, FIELDS]; raises LookupError where a table has not a rank's number."""
    ranks = tables.ranks
    rows = ranks.by_tokens.shape[2]
    terms = np.empty((len(sums), rows, FIELDS))
    for rank in range(len(sums)):
        tokens, logits, kind = int(sums[rank, TOKENS]), logit_rows[rank], ranks.kind_of_rank[rank]
        _check_known(ranks.known_tokens, tokens)
        _check_known(ranks.known_logits, logits)
        for row in range(rows):
            for field in range(FIELDS):
                own = ranks.by_tokens[kind, tokens, row, field]
                terms[rank, row, field] = own + ranks.by_logits[kind, logits, row, field]
        for row in ranks.rows_with_sums:
            for place in range(len(SUMS)):
                amount = sums[rank, FIRST_SUM + place]
                for field in range(FIELDS):
                    terms[rank, row, field] += amount * ranks.by_sum[row, place, field]
        for row in range(rows):
            tensor_ns = terms[rank, row, TENSOR_NS]
            terms[rank, row, RAMP_NS] = _ramp_loss_ns(ranks.ramp_share, ranks.ramp_ns, tensor_ns)
    return terms


@compiled_part
def _group_tokens(tables: CountTables, tokens: Float64s) -> Float64s:
    """Tokens that each expert group's chips dispatch: [groups]; a chip has its rank's tp-th."""
    chips, tp = tables.experts.group_chips, tables.ranks.tp
    groups = np.zeros(max(len(tokens) * tp // chips, 1))
    for chip in range(len(tokens) * tp):
        groups[chip // chips] += tokens[chip // tp] / tp
    return groups


@compiled_part
def _expected_loads(tables: CountTables, tokens: Float64s) -> tuple[Float64s, Float64s]:
    """Pairs and different experts of each column, [columns] each."""
    experts = tables.experts
    of_group = _group_tokens(tables, tokens)
    hit = np.empty((len(of_group), len(experts.chances)))
    for group in range(len(of_group)):
        for place in range(len(experts.chances)):
            hit[group, place] = 1 - (1 - experts.chances[place]) ** of_group[group]
    pairs, distinct = np.empty(len(experts.group_of)), np.zeros(len(experts.group_of))
    for column in range(len(experts.group_of)):
        group = experts.group_of[column]
        pairs[column] = experts.pairs_per_token[column] * of_group[group]
        for slot in range(experts.chance_of_slot.shape[1]):
            distinct[column] += hit[group, experts.chance_of_slot[column, slot]]
    return pairs, distinct


@compiled_part
def _column_terms(tables: CountTables, pairs: Float64s, distinct: Float64s) -> Float64s:
    """-> [columns, FIELDS], without the exchange."""
    experts = tables.experts
    terms = np.zeros((len(pairs), FIELDS))
    parts = np.empty(PARTS_OF_EXPERTS)
    for column in range(len(pairs)):
        parts[0] = pairs[column]
        parts[1] = distinct[column]
        parts[2] = max(pairs[column], experts.least_rows * distinct[column])
        parts[3] = pairs[column] > 0
        parts[4] = max(pairs[column] - experts.pairs_in_sbuf, 0.0)
        for part in range(PARTS_OF_EXPERTS):
            for field in range(FIELDS):
                terms[column, field] += parts[part] * experts.by_part[part, field]
        terms[column, RAMP_NS] = _ramp_loss_ns(
            tables.ranks.ramp_share, tables.ranks.ramp_ns, terms[column, TENSOR_NS]
        )
    return terms


@compiled_part
def _senders_tokens(exchange: ExchangeTables, by_chip: Float64s) -> Float64s:
    """Tokens of all that send to each receiver over each tier: [tiers, receivers]."""
    of_set = np.zeros(len(exchange.first_member) - 1)
    for each in range(len(of_set)):
        for place in range(exchange.first_member[each], exchange.first_member[each + 1]):
            of_set[each] += by_chip[exchange.members[place]]
    tiers, chips = exchange.set_of.shape
    tokens = np.empty((tiers, chips))
    for tier in range(tiers):
        for chip in range(chips):
            own = exchange.itself[tier, chip] * by_chip[chip]
            tokens[tier, chip] = of_set[exchange.set_of[tier, chip]] - own
    return tokens


@compiled_part
def _exchanged(
    tables: CountTables, tokens: Float64s, link_ns: Float64s, rest_ns: Float64s, out: Float64s
) -> None:
    """Fill [kinds, chips], [kinds] and [kinds, chips] as in `Counted`.

    Raises ConnectionError for bytes between chips without links.
    """
    exchange, tp = tables.exchange, tables.ranks.tp
    kinds, tiers, chips = exchange.sent_bytes.shape
    by_chip = np.repeat(tokens / tp, tp)
    arriving = _senders_tokens(exchange, by_chip)
    if (exchange.stuck & (by_chip > 0)).any():
        raise ConnectionError
    nodes = exchange.ns_per_byte.shape[1]
    egress, ingress = np.zeros((tiers, nodes)), np.zeros((tiers, nodes))
    for kind in range(kinds):
        for tier in range(tiers):
            for chip in range(chips):
                egress[tier, chip] = by_chip[chip] * exchange.sent_bytes[kind, tier, chip]
                ingress[tier, chip] = arriving[tier, chip] * exchange.received_bytes[kind, chip]
            egress[tier, chips:] = 0.0
            ingress[tier, chips:] = 0.0
        for leg in range(len(exchange.legs)):
            sender, receiver, tier, begin, end = exchange.legs[leg]
            moved = by_chip[sender] * exchange.received_bytes[kind, receiver]
            egress[tier, begin] += moved
            ingress[tier, end] += moved
        longest_ns = busiest_ns = 0.0
        for node in range(nodes):
            busy_ns = 0.0
            for tier in range(tiers):
                carried = max(egress[tier, node], ingress[tier, node])
                busy_ns = max(busy_ns, carried * exchange.ns_per_byte[tier, node])
            longest_ns = max(longest_ns, busy_ns)
            if node < chips:
                link_ns[kind, node] = busy_ns
                busiest_ns = max(busiest_ns, busy_ns)
                out[kind, node] = by_chip[node] * exchange.left_bytes[kind, node]
        if longest_ns > 0:
            rest_ns[kind] = max(longest_ns + exchange.latency_ns - busiest_ns, 0.0)


@compiled
def count(
    tables: CountTables,
    given: GivenExperts,
    rank: Int64s,
    new: Int64s,
    context: Int64s,
    logit_rows: Int64s,
) -> Counted:
    """Count a step's requests, [requests] each, and rows of logits, [ranks].

    Raises LookupError where the tables have not a rank's number of tokens or rows yet.
    """
    ranks = len(logit_rows)
    requests, prefills = np.zeros(ranks), np.zeros(ranks)
    sums = _sums(tables, rank, new, context, requests, prefills)
    tokens = sums[:, TOKENS].copy()
    if tables.ranks.dummies:
        _add_dummies(tables, sums)
    if tables.heads.latent:
        _add_up_projections(tables.heads, sums)
    rank_terms = _rank_terms(tables, sums, logit_rows)
    column_of = given.column_of if given.has_loads else tables.experts.column_of
    if given.has_loads:
        pairs, distinct = given.pairs, given.distinct
    elif tables.experts.present:
        pairs, distinct = _expected_loads(tables, tokens)
    else:
        pairs = distinct = np.zeros(0)
    kinds, chips = column_of.shape
    link_ns, rest_ns = np.zeros((kinds, chips)), np.zeros(kinds)
    link_bytes, collectives = np.zeros((kinds, chips)), np.zeros(kinds)
    if given.has_links:
        link_ns, rest_ns, link_bytes = given.link_ns, given.rest_ns, given.link_bytes
    elif tables.exchange.carried:
        _exchanged(tables, tokens, link_ns, rest_ns, link_bytes)
    for kind in range(kinds):
        if link_ns[kind].max() + rest_ns[kind] > 0:
            collectives[kind] = tables.exchange.doublings
    return Counted(
        rank_terms=rank_terms,
        tokens=tokens,
        requests=requests,
        prefills=prefills,
        column_terms=_column_terms(tables, pairs, distinct),
        column_of=column_of,
        link_ns=link_ns,
        rest_ns=rest_ns,
        link_bytes=link_bytes,
        collectives=collectives,
    )

"""Sums over each rank's requests, compiled: a step of 144 ranks may have 40,000 of them.

The formulas are those of `rank_totals`. Nearly all requests decode a token over a cached context;
what they add are whole numbers, which vector instructions sum in any order.
"""

from typing import Final, NamedTuple

import numpy as np

from emulator.arrays import Float64s, Int64s
from emulator.compiled import compiled, inlined
from emulator.timing.core_attention import DECODED_TOKENS_MAX

# A quotient of whole numbers is a product with 2^40 over the divisor, rounded up, over 2^40: exact
# for numbers below 2^23 divisors, which no context reaches, and many times as fast.
SHIFT: Final = 40
STRIDE: Final = 32

# Columns of the sums over a rank's requests; those from FIRST_SUM on are multiplied by a table.
TOKENS: Final = 0
UP_ROWS: Final = 1
DECODES: Final = 2
FIRST_SUM: Final = 3
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
    "decode_tokens",
    "any_decodes",
    "decode_context_tokens",
    "window_decode_context_tokens",
    "idle_context_tokens",
    "idle_attended",
    "idle_head_macs",
    "window_idle_context_tokens",
    "window_idle_attended",
    "window_idle_head_macs",
)
CONTEXT, ATTENDED, HEAD, ISSUED, CACHED, ISSUED_CACHED = range(FIRST_SUM, FIRST_SUM + 6)
WINDOW_CONTEXT, WINDOW_ATTENDED, WINDOW_HEAD, WINDOW_ISSUED = range(FIRST_SUM + 6, FIRST_SUM + 10)
DECODE_TOKENS, ANY_DECODES, DECODE_CONTEXT, WINDOW_DECODE_CONTEXT = range(
    FIRST_SUM + 10, FIRST_SUM + 14
)
FIRST_IDLE: Final = FIRST_SUM + 14
SUM_COLUMNS: Final = FIRST_SUM + len(SUMS)


# A head's whole numbers: a quotient by a tile is a product with its magic number. Tiles of requests
# that decode have places of their own, from DECODED_TILES on; BY_BATCH is 0 where cores divide the
# attention of such requests as that of prompts.
(TILE_COLUMNS, TILE_ROWS, COLUMNS_MAGIC, ROWS_MAGIC) = range(4)
DECODED_TILES: Final = 4
(DECODES_FROM, WINDOW, BY_BATCH) = range(8, 11)
# The rows of its MACs. What scores are charged for, by their form: MACs of a query and a tile of
# keys, of one and a tile of values, fewest rows over the heads that share them, and the window.
(PLAIN, UNFOLDED, WINDOWED, OWN, DECODED, WINDOW_DECODED) = range(6)
(OF_KEYS, OF_VALUES, LEAST_ROWS, IN_WINDOW) = range(4)
# And its own: of a pair of query and key, as a latent lies and unfolded, and inside a window; of a
# row of a latent's up-projection as it is and as it is issued, with the fewest rows issued.
(PAIR, UNFOLDED_PAIR, WINDOW_PAIR, UP, ISSUED_UP, LEAST_UP_ROWS) = range(6)


class HeadTables(NamedTuple):
    """One head's products: see `rank_totals`.

    A token decodes from a context of DECODES_FROM on, which folds a latent. A window of 0 is none,
    and an UNFOLDED_PAIR of 0 no latent.
    """

    numbers: Int64s  # [11]
    macs: Float64s  # [6, 6]


DecodeTotals = tuple[int, int, int, int, int, int, int]
"""Of requests that each decode a token: how many, their contexts, and the quotients of these by the
tiles of keys and of values; then the last three of contexts as the window cuts them."""
(STANDING, CONTEXTS, COLUMNS, ROWS, WINDOW_CONTEXTS, WINDOW_COLUMNS, WINDOW_ROWS) = range(7)
DECODE_TOTALS: Final = 7


class RequestSums(NamedTuple):
    """Sums over each rank's requests."""

    sums: Float64s  # [ranks, SUM_COLUMNS], with dummies
    tokens: Float64s  # [ranks], without them
    requests: Float64s  # [ranks]
    prefills: Float64s  # requests that are, [ranks]


@compiled
def _tile_rows(new: int, context: int, tile: int, magic: int, window: int) -> tuple[int, int]:
    """Tiles of keys, and queries that pass any, summed over tiles: `rank_totals._tile_rows`."""
    tiles = ((context + new + tile - 1) * magic) >> SHIFT
    first = ((context * magic) >> SHIFT) + 1
    spared_tiles = max(tiles - first, 0)
    spared = tile * (first + tiles - 1) * spared_tiles // 2 - context * spared_tiles
    queries = new * tiles - spared
    if window > 0:
        touched = (((window + tile - 2) * magic) >> SHIFT) + 1
        queries = min(queries, new * touched)
    return tiles, queries


@compiled
def _issued(numbers: Int64s, macs_of: Float64s, form: int, new: int, context: int) -> float:
    """MACs issued for scores and weighted sums of one head of a request."""
    at = DECODED_TILES if form >= DECODED else 0
    least, window = macs_of[form, LEAST_ROWS], int(macs_of[form, IN_WINDOW])
    tile, magic = numbers[at + TILE_COLUMNS], numbers[at + COLUMNS_MAGIC]
    tiles, queries = _tile_rows(new, context, tile, magic, window)
    of_keys = max(float(queries), least * tiles) * macs_of[form, OF_KEYS]
    if numbers[at + TILE_ROWS] != tile:
        tile, magic = numbers[at + TILE_ROWS], numbers[at + ROWS_MAGIC]
        tiles, queries = _tile_rows(new, context, tile, magic, window)
    return float(of_keys + max(float(queries), least * tiles) * macs_of[form, OF_VALUES])


@compiled
def add_request(
    numbers: Int64s,
    macs_of: Float64s,
    new: int,
    context: int,
    sums: Float64s,
    rank: int,
) -> None:
    """Add one request, of any kind, to the `sums` [ranks, SUM_COLUMNS] of `rank`."""
    window = numbers[WINDOW]
    pairs, keys = new * context + new * (new + 1) // 2, context + new
    macs = pairs * macs_of[OWN, PAIR]
    folded, unfolded = macs + new * macs_of[OWN, UP], pairs * macs_of[OWN, UNFOLDED_PAIR]
    unfolded += keys * macs_of[OWN, UP]
    is_latent = macs_of[OWN, UNFOLDED_PAIR] > 0
    folds = is_latent and folded <= unfolded
    is_decode = folds or not is_latent
    is_decode &= numbers[BY_BATCH] > 0 and context > 0 and new <= DECODED_TOKENS_MAX
    form = DECODED if is_decode else PLAIN
    issued = _issued(numbers, macs_of, UNFOLDED if is_latent and not folds else form, new, context)
    sums[rank, TOKENS] += new
    sums[rank, CONTEXT] += context
    sums[rank, ATTENDED] += pairs
    sums[rank, HEAD] += unfolded if is_latent and not folds else folded
    sums[rank, ISSUED] += issued
    if is_latent:
        sums[rank, CACHED] += macs if folds else 0.0
        sums[rank, ISSUED_CACHED] += issued if folds else 0.0
        sums[rank, UP_ROWS] += new if folds else keys
    if window > 0:
        seen = min(context, window - 1)
        growing = min(max(window - context, 0), new)
        attended = growing * context + growing * (growing + 1) // 2 + (new - growing) * window
        sums[rank, WINDOW_CONTEXT] += seen
        sums[rank, WINDOW_ATTENDED] += attended
        form = WINDOW_DECODED if is_decode else WINDOWED
        issued_in_window = _issued(numbers, macs_of, form, new, seen)
        sums[rank, WINDOW_HEAD] += macs_of[OWN, WINDOW_PAIR] * attended
        sums[rank, WINDOW_ISSUED] += issued_in_window
        if is_decode:
            _add_windows_apart(seen, attended, issued_in_window, sums, rank)
    if is_decode:
        sums[rank, DECODES] += 1
        sums[rank, DECODE_TOKENS] += new
        _add_apart(context, pairs, issued, sums, rank)


@compiled
def _add_apart(context: int, pairs: int, issued: float, sums: Float64s, rank: int) -> None:
    """Add what is read and computed of decodes that cores divide; `add_idle` makes it idle work."""
    sums[rank, DECODE_CONTEXT] += context
    sums[rank, FIRST_IDLE] += context
    sums[rank, FIRST_IDLE + 1] += pairs
    sums[rank, FIRST_IDLE + 2] += issued


@compiled
def _add_windows_apart(context: int, pairs: int, issued: float, sums: Float64s, rank: int) -> None:
    """The same inside their windows."""
    sums[rank, WINDOW_DECODE_CONTEXT] += context
    sums[rank, FIRST_IDLE + 3] += context
    sums[rank, FIRST_IDLE + 4] += pairs
    sums[rank, FIRST_IDLE + 5] += issued


@inlined
def add_idle(heads: HeadTables, sums: Float64s) -> None:
    """Turn what decodes take into what cores with a request fewer than others wait for."""
    width = heads.numbers[BY_BATCH]
    if width == 0:
        return
    for rank in range(len(sums)):
        decodes = sums[rank, DECODES]
        any_decodes = min(decodes, 1.0)
        sums[rank, ANY_DECODES] = any_decodes
        idle = np.ceil(decodes / width) * width / max(decodes, 1.0) - any_decodes
        for column in range(FIRST_IDLE, SUM_COLUMNS):
            sums[rank, column] *= idle


@inlined
def _decode_totals(
    numbers: Int64s, new: Int64s, context: Int64s, first: np.uint64, end: np.uint64
) -> DecodeTotals:
    """Of those of requests [first, end) that decode.

    A decoding token passes every tile of its keys, and the last tile's number is the context's
    quotient: so all that is summed are whole numbers, without a branch.
    """
    columns_magic = numbers[DECODED_TILES + COLUMNS_MAGIC]
    rows_magic = numbers[DECODED_TILES + ROWS_MAGIC]
    decodes_from, window = numbers[DECODES_FROM], numbers[WINDOW]
    count = contexts = columns = rows = 0
    for place in range(first, end):
        one = int(new[place] == 1) * int(context[place] >= decodes_from)
        seen = context[place] * one
        count += one
        contexts += seen
        columns += (seen * columns_magic) >> SHIFT
        rows += (seen * rows_magic) >> SHIFT
    window_contexts = window_columns = window_rows = 0
    if window > 0:
        for place in range(first, end):
            one = int(new[place] == 1) * int(context[place] >= decodes_from)
            seen = min(context[place], window - 1) * one
            window_contexts += seen
            window_columns += (seen * columns_magic) >> SHIFT
            window_rows += (seen * rows_magic) >> SHIFT
    return count, contexts, columns, rows, window_contexts, window_columns, window_rows


@inlined
def _add_decodes(
    numbers: Int64s, macs_of: Float64s, totals: DecodeTotals, sums: Float64s, rank: int
) -> None:
    """Add requests that decode to the `sums` of their rank."""
    window, is_apart = numbers[WINDOW], numbers[BY_BATCH] > 0
    count, contexts, columns, rows, window_contexts, window_columns, window_rows = totals
    pairs = contexts + count
    issued = _issued_tiles(macs_of, DECODED, columns + count, rows + count)
    if is_apart:
        sums[rank, DECODES] += count
        sums[rank, DECODE_TOKENS] += count
        _add_apart(contexts, pairs, issued, sums, rank)
    sums[rank, TOKENS] += count
    sums[rank, CONTEXT] += contexts
    sums[rank, ATTENDED] += pairs
    sums[rank, HEAD] += pairs * macs_of[OWN, PAIR] + count * macs_of[OWN, UP]
    sums[rank, ISSUED] += issued
    if macs_of[OWN, UNFOLDED_PAIR] > 0:
        sums[rank, CACHED] += pairs * macs_of[OWN, PAIR]
        sums[rank, ISSUED_CACHED] += issued
        sums[rank, UP_ROWS] += count
    if window > 0:
        pairs = window_contexts + count
        sums[rank, WINDOW_CONTEXT] += window_contexts
        sums[rank, WINDOW_ATTENDED] += pairs
        issued = _issued_tiles(macs_of, WINDOW_DECODED, window_columns + count, window_rows + count)
        sums[rank, WINDOW_HEAD] += macs_of[OWN, WINDOW_PAIR] * pairs
        sums[rank, WINDOW_ISSUED] += issued
        if is_apart:
            _add_windows_apart(window_contexts, pairs, issued, sums, rank)


@compiled
def _issued_tiles(macs_of: Float64s, form: int, column_tiles: int, row_tiles: int) -> float:
    """MACs issued for tokens that pass each of so many tiles once."""
    rows = max(1.0, macs_of[form, LEAST_ROWS])
    of_values = rows * row_tiles * macs_of[form, OF_VALUES]
    return float(rows * column_tiles * macs_of[form, OF_KEYS] + of_values)


@compiled
def _stride(rank: Int64s) -> int:
    """How many of a rank's requests may be skipped to find its last: 1 unless they are in order."""
    falls = 0
    for place in range(len(rank) - 1):
        falls += int(rank[place + 1] < rank[place])
    return 1 if falls else STRIDE


@compiled
def _add_run(
    heads: HeadTables,
    new: Int64s,
    context: Int64s,
    places: tuple[np.uint64, np.uint64],
    standing: DecodeTotals,
    into: RequestSums,
    rank: int,
) -> None:
    """Add the requests from the first of `places` to before the second, all of `rank`, and others
    that decode, of which only the totals are known.

    New requests, the most likely prompts, come last.
    """
    first, end = places
    sums, prefills = into.sums, into.prefills
    numbers, macs_of = heads.numbers, heads.macs
    found = _decode_totals(numbers, new, context, first, end)
    others = int(end - first)
    into.requests[rank] += others + standing[0]
    others -= found[0]
    totals = (
        found[0] + standing[0],
        found[1] + standing[1],
        found[2] + standing[2],
        found[3] + standing[3],
        found[4] + standing[4],
        found[5] + standing[5],
        found[6] + standing[6],
    )
    _add_decodes(numbers, macs_of, totals, sums, rank)
    decodes_from, one, place = numbers[DECODES_FROM], np.uint64(1), end
    while others > 0:
        place -= one
        if new[place] != 1 or context[place] < decodes_from:
            others -= 1
            add_request(numbers, macs_of, new[place], context[place], sums, rank)
            prefills[rank] += int(new[place] > 1) | int(context[place] == 0)


@compiled
def request_sums(
    heads: HeadTables,
    rank: Int64s,
    new: Int64s,
    context: Int64s,
    into: RequestSums,
) -> None:
    """Fill all but `tokens`, of requests that come in runs of one rank.

    Places are unsigned, since a signed one may mean one from the end: what asks which is not made
    vector instructions.
    """
    into.sums[:] = 0.0
    into.requests[:] = 0.0
    into.prefills[:] = 0.0
    one, stride, count = np.uint64(1), np.uint64(_stride(rank)), np.uint64(len(rank))
    first = end = np.uint64(0)
    while first < count:
        own = rank[first]
        while end + stride <= count and rank[end + stride - one] == own:
            end += stride
        while end < count and rank[end] == own:
            end += one
        _add_run(heads, new, context, (first, end), (0, 0, 0, 0, 0, 0, 0), into, own)
        first = end


@inlined
def request_sums_beside(
    heads: HeadTables,
    standing: Int64s,
    counts: Int64s,
    new: Int64s,
    context: Int64s,
    into: RequestSums,
) -> None:
    """`request_sums` of `counts` [ranks] requests, rank by rank, and of those that decode beside
    them: `standing` [ranks, DECODE_TOTALS].
    """
    into.sums[:] = 0.0
    into.requests[:] = 0.0
    into.prefills[:] = 0.0
    first = np.uint64(0)
    for rank in range(len(standing)):
        end = first + np.uint64(counts[rank])
        totals = (
            standing[rank, 0],
            standing[rank, 1],
            standing[rank, 2],
            standing[rank, 3],
            standing[rank, 4],
            standing[rank, 5],
            standing[rank, 6],
        )
        _add_run(heads, new, context, (first, end), totals, into, rank)
        first = end


@inlined
def add_up_projections(heads: HeadTables, sums: Float64s) -> None:
    """Add what a latent's up-projection is issued for, which all requests of a rank share."""
    for rank in range(len(sums)):
        if sums[rank, UP_ROWS] > 0:
            up_rows = max(sums[rank, UP_ROWS], heads.macs[OWN, LEAST_UP_ROWS])
            sums[rank, ISSUED] += up_rows * heads.macs[OWN, ISSUED_UP]

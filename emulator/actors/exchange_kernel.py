"""One layer's exchange on a chip, in calls that wait inside, compiled.

A chip that dispatches writes its tokens' rows and the place of each pair, and arrives. When all
have, every chip reads where its slots are wanted, takes those rows, and writes its experts' outputs
to where the tokens' owners look for them. Owners go on when all chips have answered; nobody writes
a layer's rows before all have read the last one's.

`at` is a segment's handle. Outcomes are `barrier_kernel`'s, or UNPLACED.
"""

# mypy: no-disallow-untyped-calls
# Numba's builders of code have no types.

from typing import Final, NamedTuple

import numpy as np
from numba import types
from numba.np.numpy_support import carray

from emulator.actors import barrier_kernel, exchange_segment
from emulator.actors.barrier_kernel import (
    BROKEN,
    DONE,
    arrive,
    break_word,
    wait,
)
from emulator.actors.exchange_segment import (
    ANSWERED,
    DISPATCHED,
    LIMIT,
    MEMBERS,
    SLOTS,
    SOURCES,
    TURNS,
    Areas,
)
from emulator.arrays import Float32s, Int64s
from emulator.compiled import allocating, compiled, given, kept, sources_of
from emulator.compute import exchange_sizes, vectors
from emulator.compute.exchange_sizes import WORD_STRIDE
from emulator.compute.vectors import pointer
from emulator.specs import placement
from emulator.specs.placement import EMPTY

PARTS: Final = (barrier_kernel, exchange_segment, exchange_sizes, vectors, placement)
"""Modules that kernels of an exchange are made of, beside this one."""

_SOURCES: Final = sources_of(*PARTS)

UNPLACED: Final = 3
"""An outcome: tokens for an expert that no chip holds."""

_WORD_BYTES: Final = 4
_INT64_BYTES: Final = 8

_INT: Final = types.int64
_HANDLE: Final = given(_INT, 2)
_LAYERS: Final = given(_INT, 3)


@allocating
def areas_of(at: Int64s) -> Areas:
    """The areas of a segment's `handle`."""
    return Areas(
        carray(pointer(at[0, 0]), (at[0, 1],), np.uint32),
        carray(pointer(at[1, 0]), (at[1, 1],), np.int32),
        carray(pointer(at[2, 0]), (at[2, 1],), np.int64),
        carray(pointer(at[3, 0]), (at[3, 1],), np.int64),
        carray(pointer(at[4, 0]), (at[4, 1], at[4, 2], at[4, 3]), np.int32),
        carray(pointer(at[5, 0]), (at[5, 1], at[5, 2]), np.float32),
        carray(pointer(at[6, 0]), (at[6, 1], at[6, 2]), np.int32),
        carray(pointer(at[7, 0]), (at[7, 1], at[7, 2]), np.float32),
        carray(pointer(at[8, 0]), (at[8, 1], at[8, 2]), np.float32),
        carray(pointer(at[9, 0]), (at[9, 1], at[9, 2], at[9, 3]), np.int32),
        carray(pointer(at[10, 0]), (at[10, 1], at[10, 2], at[10, 3]), np.int32),
    )


@compiled
def _word(areas: Areas, index: int) -> int:
    return areas.words.ctypes.data + index * _WORD_BYTES


@compiled
def _wait_at(at: Int64s, areas: Areas, chip: int, word: int, target: int) -> int:
    step = areas.step
    limit = step.ctypes.data + LIMIT * _INT64_BYTES
    hub = at.ctypes.data + (len(at) - 1) * at.shape[1] * _INT64_BYTES
    areas.waiting[chip] = 1
    outcome = wait(_word(areas, word), target, step[TURNS], limit, hub)
    areas.waiting[chip] = 0
    return outcome


@compiled
def _arrive_at(areas: Areas, word: int, target: int) -> bool:
    return arrive(_word(areas, word), target)


@compiled
def _write_rows(areas: Areas, chip: int, layer: int, hidden: Float32s, chosen: Int64s) -> bool:
    """Write a chip's rows [tokens, hidden] and the places of its `chosen` [tokens, k] experts."""
    rows, places, place = areas.hidden, areas.places, areas.place
    first = areas.first_token[chip]
    for token in range(len(hidden)):
        for column in range(hidden.shape[1]):
            rows[first + token, column] = hidden[token, column]
        for nth in range(chosen.shape[1]):
            where = place[layer, chip, chosen[token, nth]]
            if where == EMPTY:
                return False
            places[first + token, nth] = where
    return True


@compiled
def _count(areas: Areas, chip: int, layer: int, counts: Int64s) -> int:
    """Note which pairs and tokens come to a chip, in the segment and `counts` [slots].

    Returns the distinct tokens.
    """
    places, first_token, sent = areas.places, areas.first_token, areas.sent
    slots, first_slot, rows = len(counts), chip * len(counts), 0
    for source in range(len(first_token) - 1):
        came = 0
        for token in range(first_token[source], first_token[source + 1]):
            wanted = 0
            for nth in range(places.shape[1]):
                slot = places[token, nth] - first_slot
                if 0 <= slot < slots:
                    counts[slot] += 1
                    wanted = 1
            came += wanted
        sent[layer, chip, source] = came
        rows += came
    for slot in range(slots):
        areas.counts[layer, chip, slot] = counts[slot]
    for slot in range(slots, areas.counts.shape[2]):
        areas.counts[layer, chip, slot] = 0
    return rows


Work = tuple[int, Float32s, Int64s, Int64s, Int64s]
"""An outcome; `RunExperts`' rows, row_of_pair and counts; and each pair's row of the answers."""


@allocating
def _take(areas: Areas, chip: int, layer: int) -> Work:
    counts = np.zeros(areas.step[SLOTS], dtype=np.int64)
    distinct = _count(areas, chip, layer, counts)
    slots, first_slot, end = len(counts), chip * len(counts), 0
    next_pair = np.empty(slots, dtype=np.int64)
    for slot in range(slots):
        next_pair[slot] = end
        end += counts[slot]
    all_rows, places = areas.hidden, areas.places
    rows = np.empty((distinct, all_rows.shape[1]), dtype=np.float32)
    row_of_pair, answer_of_pair = np.empty(end, dtype=np.int64), np.empty(end, dtype=np.int64)
    row = 0
    for token in range(areas.first_token[-1]):
        wanted = False
        for nth in range(places.shape[1]):
            slot = places[token, nth] - first_slot
            if 0 <= slot < slots:
                wanted = True
                row_of_pair[next_pair[slot]] = row
                answer_of_pair[next_pair[slot]] = token * places.shape[1] + nth
                next_pair[slot] += 1
        if wanted:
            for column in range(rows.shape[1]):
                rows[row, column] = all_rows[token, column]
            row += 1
    return DONE, rows, row_of_pair, counts, answer_of_pair


@allocating
def collect(
    at: Int64s, chip: int, layer: int, hidden: Float32s, chosen: Int64s, sends: bool
) -> Work:
    """Dispatch a chip's tokens, where it `sends` any, and take the rows for its slots.

    Pairs are in the order of slots, then of their tokens' chips, then of tokens.
    """
    areas = areas_of(at)
    target = areas.step[SOURCES] * (layer + 1)
    outcome = DONE
    if sends:
        if not _write_rows(areas, chip, layer, hidden, chosen):
            outcome = UNPLACED
        elif not _arrive_at(areas, DISPATCHED, target):
            outcome = BROKEN
    if outcome == DONE:
        outcome = _wait_at(at, areas, chip, DISPATCHED, target)
    if outcome == DONE:
        return _take(areas, chip, layer)
    nothing = np.empty(0, dtype=np.int64)
    return outcome, np.empty((0, 0), dtype=np.float32), nothing, nothing, nothing


@allocating
def answer(
    at: Int64s, chip: int, layer: int, rows: Float32s, answer_of_pair: Int64s, waits: bool
) -> int:
    """Write a chip's outputs [pairs, hidden]; where it `waits`, return when all chips have."""
    areas = areas_of(at)
    answers, target = areas.answers, areas.step[MEMBERS] * (layer + 1)
    for pair in range(len(answer_of_pair)):
        for column in range(rows.shape[1]):
            answers[answer_of_pair[pair], column] = rows[pair, column]
    if not _arrive_at(areas, ANSWERED, target):
        return BROKEN
    return _wait_at(at, areas, chip, ANSWERED, target) if waits else DONE


class RankPlace(NamedTuple):
    """A chip's place among those that attend for its rank.

    Attributes:
        lead: the first of them.
        place: the chip's own.
        chips: how many they are.
        groups: head groups of all of them.
        added: sums that they have exchanged in this step.
    """

    lead: int
    place: int
    chips: int
    groups: int
    added: int


@allocating
def add_sums(at: Int64s, rank: RankPlace, mine: Float32s) -> tuple[int, Float32s]:
    """Exchange a chip's partial sums `mine` [groups, tokens, hidden] with those of its rank.

    Returns an outcome and those of all groups, which stay until the sums after the next are
    written.
    """
    areas = areas_of(at)
    groups, tokens, hidden = mine.shape
    first = areas.first_token[rank.lead] * rank.groups * hidden
    numbers = areas.sums[rank.added % 2]
    place = first + rank.place * groups * tokens * hidden
    for group in range(groups):
        for token in range(tokens):
            for column in range(hidden):
                numbers[place] = mine[group, token, column]
                place += 1
    every = numbers[first : first + rank.groups * tokens * hidden]
    rows = every.reshape(rank.groups, tokens, hidden)
    word, target = (2 + rank.lead) * WORD_STRIDE, rank.chips * (rank.added + 1)
    if not _arrive_at(areas, word, target):
        return BROKEN, rows
    return _wait_at(at, areas, rank.lead + rank.place, word, target), rows


Loads = tuple[Int64s, Int64s, Int64s, Int64s]
"""`ExpertLoads`' pairs, distinct and sent, and tokens of each group that chose each expert."""


@kept(_SOURCES, _HANDLE, _INT, _LAYERS, _INT, _INT)
def read_loads(at: Int64s, layers: int, expert_of_slot: Int64s, experts: int, ep: int) -> Loads:
    """What came to chips in the first `layers` of a step; slots are those of the placement."""
    areas = areas_of(at)
    chips, slots = expert_of_slot.shape[1], expert_of_slot.shape[2]
    pairs = np.zeros((layers, chips), dtype=np.int64)
    distinct = np.zeros((layers, chips), dtype=np.int64)
    sent = np.empty((layers, chips, chips), dtype=np.int64)
    by_expert = np.zeros((layers, chips // ep, experts), dtype=np.int64)
    counts, arrived = areas.counts, areas.sent
    for layer in range(layers):
        for chip in range(chips):
            for slot in range(slots):
                count = counts[layer, chip, slot]
                if count:
                    pairs[layer, chip] += count
                    distinct[layer, chip] += 1
                    by_expert[layer, chip // ep, expert_of_slot[layer, chip, slot]] += count
            for source in range(chips):
                sent[layer, source, chip] = arrived[layer, chip, source]
    return pairs, distinct, sent, by_expert


@kept(_SOURCES, _HANDLE, _INT)
def break_off(at: Int64s, stride: int) -> None:
    """Break off the step in progress: who waits for others, or comes to, hears of it."""
    areas = areas_of(at)
    for word in range(0, len(areas.words), stride):
        break_word(_word(areas, word))

"""Copies of experts, and their packs of equal size and nearly equal load.

`replicate` gives the next copy to the heaviest load per copy, which this minimises. Source:
redundant experts of DeepSeek's EPLB; here a chip has at most one copy of an expert, and ties go to
fewer copies, so that a layer without load spreads its copies too.

`pack` goes by longest processing time first: copies in order of falling load, each to the lightest
pack with space (balanced packing of DeepSeek's EPLB), but first to packs with the fewest copies of
its expert, so that a lost rack, tray or chip takes few copies of one.

Packs that are equal go to places, and experts to slots, so that most stay where they are.
"""

import numpy as np
from numpy.typing import NDArray

from emulator.specs.placement import EMPTY

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]


def pack(load: F64, expert: I64, packs: int) -> I64:
    """Divide items into `packs` packs of equal size: items int64[rows, packs, size], in order.

    `load` and `expert` are [rows, items]; items of one expert in a row have equal loads.
    """
    rows, items = load.shape
    assert items % packs == 0, (items, packs)
    size = items // packs
    order = np.lexsort((expert, -load), axis=1)  # heaviest first, copies of one expert in a row
    held = np.zeros((rows, packs))
    room = np.full((rows, packs), size)
    alike = np.zeros((rows, packs), dtype=np.int64)  # copies of the expert that is being packed
    result = np.zeros((rows, packs, size), dtype=np.int64)
    row = np.arange(rows)
    expert_before = np.full(rows, -1)
    for item in order.T:  # [rows]
        expert_now = expert[row, item]
        alike[expert_now != expert_before] = 0
        expert_before = expert_now
        copies = np.where(room > 0, alike, items + 1)
        open_packs = copies == copies.min(axis=1, keepdims=True)
        chosen = np.where(open_packs, held, np.inf).argmin(axis=1)
        result[row, chosen, size - room[row, chosen]] = item
        room[row, chosen] -= 1
        held[row, chosen] += load[row, item]
        alike[row, chosen] += 1
    return result


def pack_slowly(load: F64, expert: I64, packs: int) -> I64:
    """The reference of `pack`, one row and one item at a time."""
    rows, items = load.shape
    size = items // packs
    result = []
    for row in range(rows):
        packed: list[list[int]] = [[] for _ in range(packs)]
        held = [0.0] * packs
        for item in sorted(range(items), key=lambda i: (-load[row, i], expert[row, i], i)):
            alike = [sum(expert[row, i] == expert[row, item] for i in pack) for pack in packed]
            with_room = [p for p in range(packs) if len(packed[p]) < size]
            chosen = min(with_room, key=lambda p: (alike[p], held[p], p))
            packed[chosen].append(item)
            held[chosen] += load[row, item]
        result.append(packed)
    return np.array(result, dtype=np.int64).reshape(rows, packs, size)


def part_twins(held: I64, load_of_copy: F64) -> None:
    """Change held[chips, slots] in place so that no chip holds an expert twice.

    Packing leaves twins where only packs that have the expert have space. A twin is exchanged for
    the copy of nearest load, load_of_copy[experts], on a chip without that expert.

    One exists while no expert has more copies than chips and no slot is empty: a chip with twins
    has fewer kinds than slots, so another chip has a kind that it lacks, or twins of its own. Each
    exchange leaves fewer twins.
    """
    while (twin := _first_twin(held)) is not None:
        chip, slot = twin
        expert = held[chip, slot]
        best = None
        for other, experts in enumerate(held):
            if expert in experts:
                continue
            for place, candidate in enumerate(experts):
                if candidate in held[chip] and np.count_nonzero(experts == candidate) < 2:
                    continue
                key = (abs(load_of_copy[candidate] - load_of_copy[expert]), other, place)
                best = key if best is None else min(best, key)
        assert best is not None, "an expert has more copies than there are chips"
        _, other, place = best
        held[chip, slot], held[other, place] = held[other, place], expert


def _first_twin(held: I64) -> tuple[int, int] | None:
    """The first slot whose expert stands in an earlier slot of the chip."""
    for chip, experts in enumerate(held.tolist()):
        for slot, expert in enumerate(experts):
            if expert in experts[:slot]:
                return chip, slot
    return None


def replicate(load: F64, *, copies: int, most: int) -> I64:
    """Deal `copies` copies among load[rows, experts], 1 to `most` each: int64[rows, experts]."""
    rows, experts = load.shape
    assert experts <= copies <= experts * most, (experts, copies, most)
    count = np.ones((rows, experts), dtype=np.int64)
    # Below zero is an expert that may have no more copies.
    per_copy = load.copy() if most > 1 else np.full(load.shape, -1.0)
    row = np.arange(rows)
    for _ in range(copies - experts):
        heaviest = per_copy == per_copy.max(axis=1, keepdims=True)  # [rows, experts]
        chosen = np.where(heaviest, count, copies + 1).argmin(axis=1)  # [rows]
        count[row, chosen] += 1
        now = count[row, chosen]
        per_copy[row, chosen] = np.where(now < most, load[row, chosen] / now, -1.0)
    return count


def replicate_slowly(load: F64, *, copies: int, most: int) -> I64:
    """The same, one row and one copy at a time."""
    count = np.ones(load.shape, dtype=np.int64)
    for row, loads in enumerate(load):
        for _ in range(copies - len(loads)):
            open_experts = [e for e in range(len(loads)) if count[row, e] < most]
            chosen = min(open_experts, key=lambda e: (-loads[e] / count[row, e], count[row, e], e))
            count[row, chosen] += 1
    return count


def match_packs(new: I64, old: I64, experts: int) -> I64:
    """The new pack for each old pack's place: int64[rows, packs].

    `new`, `old`: experts [rows, packs, any number]; `old` may have EMPTY slots. Greedy by experts
    in common, ties to the lowest new pack, then place; at least half of the optimum is kept.
    """
    rows, packs = new.shape[:2]
    # [rows, packs, experts] @ [rows, experts, packs] -> [rows, new packs, old packs]
    shared = _members(new, experts) @ _members(old, experts).transpose(0, 2, 1)
    taken_by = np.zeros((rows, packs), dtype=np.int64)
    row = np.arange(rows)
    for _ in range(packs):
        pack, place = np.divmod(shared.reshape(rows, -1).argmax(axis=1), packs)
        taken_by[row, place] = pack
        shared[row, pack, :] = -1
        shared[row, :, place] = -1
    return taken_by


def match_packs_slowly(new: I64, old: I64, experts: int) -> I64:
    """The same, with sets; `experts` is unused."""
    del experts
    rows, packs = new.shape[:2]
    taken_by = np.zeros((rows, packs), dtype=np.int64)
    for row in range(rows):
        pairs = [
            (-len(set(new[row, pack]) & set(old[row, place]) - {EMPTY}), pack, place)
            for pack in range(packs)
            for place in range(packs)
        ]
        while pairs:
            _, pack, place = min(pairs)
            taken_by[row, place] = pack
            pairs = [pair for pair in pairs if pair[1] != pack and pair[2] != place]
    return taken_by


def keep_slots(new: I64, old: I64) -> I64:
    """Reorder each chip's slots so that experts that stay keep their slots; others fill free slots
    in order. Both are experts [..., slots]; `new` has an expert at most once a chip.
    """
    same = (new[..., :, None] == old[..., None, :]) & (new != EMPTY)[..., :, None]
    stays = same.any(axis=-1)  # [..., new slots]
    at = same.argmax(axis=-1)
    taken = (same & (at[..., None] == np.arange(old.shape[-1]))).any(axis=-2)  # [..., old slots]
    left_over = np.argsort(taken, axis=-1, kind="stable")
    turn = np.maximum(np.cumsum(~stays, axis=-1) - 1, 0)
    slot = np.where(stays, at, np.take_along_axis(left_over, turn, axis=-1))
    result = np.full_like(new, EMPTY)
    np.put_along_axis(result, slot, new, axis=-1)
    return result


def keep_slots_slowly(new: I64, old: I64) -> I64:
    """The same, one chip at a time."""
    result = np.full_like(new, EMPTY)
    for chip in np.ndindex(new.shape[:-1]):
        movers = []
        for expert in new[chip].tolist():
            if expert != EMPTY and expert in old[chip]:
                result[chip][old[chip].tolist().index(expert)] = expert
            elif expert != EMPTY:
                movers.append(expert)
        for slot in range(new.shape[-1]):
            if result[chip][slot] == EMPTY and movers:
                result[chip][slot] = movers.pop(0)
    return result


def _members(packs: I64, experts: int) -> NDArray[np.float32]:
    """1 where a pack holds an expert: float32[rows, packs, experts]."""
    members = np.zeros((*packs.shape[:2], experts + 1), dtype=np.float32)
    np.put_along_axis(members, packs, 1.0, axis=2)  # EMPTY is -1: the last column, cut off below
    return members[:, :, :experts]

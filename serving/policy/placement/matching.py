"""Assigns equal packs to places, and experts to slots, so that most stay in place."""

import numpy as np
from numpy.typing import NDArray

from emulator.specs.placement import EMPTY

I64 = NDArray[np.int64]


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

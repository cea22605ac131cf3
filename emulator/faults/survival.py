"""Survival of faults and the plan of recovery, decided before any move. Pure.

Means, in order: copies of an expert on other chips of its group take over without reads; a standby
chip takes a seat, reads its weights from the checkpoint and brings the rank back; survivors of a
group read the missing experts. Requests of a rank that lost a chip are always recomputed: their
keys and values are gone.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from emulator.arrays import Bools, Int64s
from emulator.faults.reloads import Reloads, plan_reloads
from emulator.faults.seats import Seats, SlotCapacity, block_size, take_seats
from emulator.specs.health import Health
from emulator.specs.model import ModelSpec
from emulator.specs.partition import Partition
from emulator.specs.placement import EMPTY, ExpertPlacement, ExpertTransfer
from emulator.specs.seating import VACANT, Seating
from emulator.specs.system import SystemSpec
from emulator.specs.tensor_group import TensorSplit


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightBytes:
    """Bytes that a chip reads: one expert of one layer, and all else of its position."""

    expert_bytes: int
    replica_bytes: int

    @classmethod
    def of(cls, model: ModelSpec, *, tp: int) -> Self:
        """A position's share of the heads and columns; what is kept whole is read whole, and keys'
        and values' part by every chip that has one of its heads.
        """
        kv_parts = min(tp, model.kv_heads)
        replica = 0
        for group in model.tensor_groups():
            if group.split is TensorSplit.WHOLE:
                replica += group.copy_bytes
            elif group.split is not TensorSplit.EXPERT:
                replica += -(-(group.copy_bytes - group.kv_bytes) // tp)
                replica += -(-group.kv_bytes // kv_parts)
        return cls(expert_bytes=model.expert_bytes, replica_bytes=replica)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SurvivalPlan:
    """The machine's recovery; it survives while one rank is up.

    Attributes:
        reason: one line: the recovery, or why there is none.
        ranks_up: bool[ranks], after the recovery.
        lost_ranks: ranks that are down: their requests go to others.
        restarted_ranks: up, on a newly seated chip: their KV cache is empty.
        restored: (position, chip) for each seat that a standby chip takes.
        fenced: positions whose working chip is cut off from its block.
        taken_over: experts (by group and layer) with another copy, which takes over at once.
        reloads: experts to read into slots of `placement`, which may hold a copy until then; source
            chips are -1.
        reload_bytes: int64[positions], experts and replicas together.
    """

    survivable: bool
    reason: str
    ranks_up: Bools
    lost_ranks: tuple[int, ...]
    restarted_ranks: tuple[int, ...]
    restored: tuple[tuple[int, int], ...]
    fenced: tuple[int, ...]
    taken_over: int
    reloads: tuple[ExpertTransfer, ...]
    reload_bytes: Int64s
    placement: ExpertPlacement
    seating: Seating


def survival(  # noqa: PLR0913  a keyword for each thing that a recovery depends on
    placement: ExpertPlacement,
    health: Health,
    partition: Partition,
    system: SystemSpec,
    *,
    seating: Seating,
    capacity: Int64s,
    reachable: Bools,
    weights: WeightBytes,
    lent: frozenset[int] = frozenset(),
) -> SurvivalPlan:
    """The plan, after faults or repairs, for a machine with `placement` on `seating` until now.

    `capacity`, int64[positions]: memory in slots of a layer, spare HBM included. `reachable`,
    bool[chips, chips]: connectivity of the partition's chips and spares. A chip in service without
    a seat stands by. `lent` positions are not taken. Raises ValueError for other shapes, or more
    experts on a position than fit.
    """
    _check(placement, partition, capacity, reachable)
    experts = placement.experts if placement.layers else 0
    room = SlotCapacity(capacity=capacity, experts=experts, lent=lent)
    seats = take_seats(partition, system, health, seating, room=room, reachable=reachable)
    before, after = seating.chip_of_position, seats.seating.chip_of_position
    filled = np.array(seats.filled, dtype=np.int64)
    block_of_group = np.arange(partition.chips // partition.ep) * partition.ep
    block_of_group //= block_size(partition)
    reloads = plan_reloads(
        placement,
        gone=np.flatnonzero(before != after),
        filled=filled,
        seated=np.flatnonzero(after != VACANT),
        capacity=capacity,
        groups=np.flatnonzero(~np.isin(block_of_group, list(seats.closed))),
    )
    read_by = np.array([transfer.chip for transfer in reloads.transfers], dtype=np.int64)
    reload_bytes = weights.expert_bytes * np.bincount(read_by, minlength=partition.chips)
    reload_bytes[filled] += weights.replica_bytes
    refilled = np.zeros(partition.ranks, dtype=np.bool_)
    refilled[filled // partition.tp] = True
    return SurvivalPlan(
        survivable=bool(seats.ranks_up.any()),
        reason=_reason(seats, reloads, filled),
        ranks_up=seats.ranks_up,
        lost_ranks=tuple(np.flatnonzero(~seats.ranks_up).tolist()),
        restarted_ranks=tuple(np.flatnonzero(refilled & seats.ranks_up).tolist()),
        restored=tuple(zip(seats.filled, after[filled].tolist(), strict=True)),
        fenced=seats.fenced,
        taken_over=reloads.taken_over,
        reloads=reloads.transfers,
        reload_bytes=reload_bytes,
        placement=reloads.placement,
        seating=seats.seating,
    )


def _reason(seats: Seats, reloads: Reloads, filled: Int64s) -> str:
    closed = "; ".join(f"block {block} closes: {why}" for block, why in seats.closed.items())
    if not seats.ranks_up.any():
        return f"no rank can go on: {closed}"
    onto_survivors = sum(transfer.chip not in filled for transfer in reloads.transfers)
    copied, fenced = reloads.taken_over, len(seats.fenced)
    parts = [
        (copied, f"{_counted(copied, 'expert goes', 'experts go')} on by another copy"),
        (
            len(filled),
            _counted(
                len(filled), "chip that stood by takes a seat", "chips that stood by take seats"
            ),
        ),
        (
            onto_survivors,
            f"survivors read {_counted(onto_survivors, 'expert', 'experts')} from the checkpoint",
        ),
        (
            fenced,
            _counted(fenced, "chip is cut off and stays out", "chips are cut off and stay out"),
        ),
        (len(seats.closed), closed),
    ]
    said = [words for count, words in parts if count]
    up = f"{int(seats.ranks_up.sum())} of {len(seats.ranks_up)} ranks are up"
    return "; ".join([up, *said])


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _check(
    placement: ExpertPlacement, partition: Partition, capacity: Int64s, pairs: Bools
) -> None:
    chips = partition.chips + partition.spares
    if capacity.shape != (partition.chips,) or pairs.shape != (chips, chips):
        raise ValueError(f"capacity{capacity.shape} and reachable{pairs.shape} of {chips} chips")
    if (placement.chips, placement.ep) != (partition.chips, partition.ep):
        raise ValueError(f"a placement on {placement.chips} chips in groups of {placement.ep}")
    held = (placement.expert_of_slot != EMPTY).sum(axis=2).max(axis=0, initial=0)  # [positions]
    if (held > capacity).any():
        raise ValueError(f"position {int((held > capacity).argmax())} holds more than its capacity")

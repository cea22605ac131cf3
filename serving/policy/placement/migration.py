"""Transfers from one placement to another where they are worth it, and their bytes on the fabric.

Each layer is a round: chips read all moving experts into a staging buffer, then write their slots:
no transfer reads an overwritten slot, and experts can swap. Layers share no slots, so rounds may
run together, at the price of staging memory.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

import numpy as np
from numpy.typing import NDArray

from emulator.specs.placement import EMPTY, ExpertPlacement, ExpertTransfer
from serving.policy.placement.chip_loads import Load, chip_loads, loads_by_group

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

CHECKPOINT: Final = -1
"""The source of an expert without a copy."""


def migration(
    before: ExpertPlacement, after: ExpertPlacement, *, tray_of_chip: I64, rack_of_chip: I64
) -> tuple[ExpertTransfer, ...]:
    """Transfers that turn `before` into `after`, by layer, chip, slot.

    Every copy in `before` counts as live: the caller removes lost chips (`without`). The source is
    the nearest copy (same chip, tray, rack, anywhere), of equally near ones on the chip that has
    sent least so far; without a copy, the checkpoint. A slot that keeps its expert or becomes EMPTY
    moves nothing. Raises ValueError for placements of different layers, chips, slots or experts.
    """
    old, new = before.expert_of_slot, after.expert_of_slot
    if old.shape != new.shape or before.experts != after.experts:
        raise ValueError("a migration is between placements of the same layers, chips and experts")
    sources: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for layer, chip, slot in np.argwhere(old != EMPTY).tolist():
        sources[layer, int(old[layer, chip, slot])].append((chip, slot))
    tray, rack = tray_of_chip.tolist(), rack_of_chip.tolist()
    sent = [0] * before.chips
    transfers = []
    for layer, chip, slot in np.argwhere((new != old) & (new != EMPTY)).tolist():
        expert = int(new[layer, chip, slot])
        source_chip, source_slot = min(
            sources.get((layer, expert), [(CHECKPOINT, CHECKPOINT)]),
            key=lambda copy, to=chip: (  # type: ignore[misc]
                (copy[0] != to) + (tray[copy[0]] != tray[to]) + (rack[copy[0]] != rack[to]),
                sent[copy[0]],
                copy,
            ),
        )
        if source_chip != CHECKPOINT:
            sent[source_chip] += 1
        transfers.append(
            ExpertTransfer(
                layer=layer,
                expert=expert,
                source_chip=source_chip,
                source_slot=source_slot,
                chip=chip,
                slot=slot,
            )
        )
    return tuple(transfers)


def rounds(transfers: Iterable[ExpertTransfer]) -> tuple[tuple[ExpertTransfer, ...], ...]:
    """Split transfers into rounds, one a layer; in a round, all reads precede all writes."""
    by_layer = sorted(transfers, key=lambda transfer: transfer.layer)
    return tuple(tuple(moves) for _, moves in groupby(by_layer, key=lambda move: move.layer))


def transfer_bytes(transfers: Sequence[ExpertTransfer], expert_bytes: float, chips: int) -> F64:
    """Bytes from chip to chip, [sender, receiver], at `expert_bytes` for one expert in one layer.

    The diagonal stays in a chip's HBM; what comes from the checkpoint is not in it.
    """
    between = np.zeros((chips, chips))
    for move in transfers:
        if move.source_chip != CHECKPOINT:
            between[move.source_chip, move.chip] += expert_bytes
    return between


Bools = NDArray[np.bool_]

ROUNDING: Final = 1e-9
"""A smaller relative gain may be rounding of sums."""


def keep_settled(
    load: Load,
    previous: ExpertPlacement,
    balanced: ExpertPlacement,
    *,
    usable: Bools | None = None,
    least_gain: float = ROUNDING,
) -> ExpertPlacement:
    """`balanced` in the layers of groups where it gains enough, `previous` elsewhere.

    Enough: the busiest chip's load falls by more than the share `least_gain`, or `previous` misses
    an expert or has one on an unusable chip. Raises ValueError for shapes that do not match.
    """
    if previous.expert_of_slot.shape != balanced.expert_of_slot.shape:
        raise ValueError("two placements of the same layers, chips and slots are compared")
    groups = previous.chips // previous.ep
    layers = previous.layers
    loads = loads_by_group(load, groups)
    complete: Bools = np.all(previous.copies() > 0, axis=2)  # [groups, layers]
    if usable is not None:
        astray: Bools = previous.expert_of_slot != EMPTY  # [layers, chips, slots]
        astray[:, usable] = False
        complete &= ~astray.reshape(layers, groups, -1).any(axis=2).T
    known = np.where(complete[..., None], loads, 0.0)  # an expert without a slot has no chip load
    before, after = (
        chip_loads(known, placement).reshape(layers, groups, -1).max(axis=2)
        for placement in (previous, balanced)
    )
    stays = complete.T & (after >= before * (1 - least_gain))  # [layers, groups]
    stays_by_chip = np.repeat(stays, previous.ep, axis=1)[..., None]  # [layers, chips, 1]
    slots = np.where(stays_by_chip, previous.expert_of_slot, balanced.expert_of_slot)
    return ExpertPlacement(experts=previous.experts, ep=previous.ep, expert_of_slot=slots)

"""The families of each chip from one snapshot."""

from collections import Counter
from typing import Final

from serving.telemetry.families import chips as families
from serving.telemetry.page.text_page import TextPage, label_sets
from serving.wire.machine_snapshot import MachineSnapshot
from serving.wire.machine_state import SERVING, ChipHealth, ChipState

SPARE: Final = "spare"
OUT: Final = "out"
TRAINING: Final = "training"
MAINTENANCE: Final = "maintenance"


def add_chips(page: TextPage, snapshot: MachineSnapshot) -> None:
    """Add every chip of the partition, and its spares."""
    chips, meters = snapshot.state.chips, snapshot.meters
    keys = [(str(chip.chip), str(chip.rack)) for chip in chips]
    page.add(families.STATE, [(state_labels(chip), 1) for chip in chips])
    sets = label_sets(tuple(keys))
    capacities = [chip.hbm_capacity_bytes for chip in chips]
    page.add_each(families.HBM_CAPACITY, sets, capacities)
    owners = [owner_bytes(chip) for chip in chips]
    page.add(
        families.HBM,
        [
            ((*key, owner), held)
            for key, by_owner in zip(keys, owners, strict=True)
            for owner, held in by_owner.items()
        ],
    )
    page.add(
        families.ENGINE_BUSY,
        [
            ((*key, engine), busy_s)
            for key, each in zip(keys, meters, strict=True)
            for engine, busy_s in each.engine_busy_s.items()
        ],
    )
    page.add_each(families.LINK_CAPACITY, sets, snapshot.link_capacity_bytes_per_s)
    metered_places = [place for place, chip in enumerate(chips) if metered(chip)]
    metered_sets = label_sets(tuple(keys[place] for place in metered_places))
    for family in families.METERS:
        totals = [each.total(family.field) for each in meters]
        if family.metered:
            page.add_each(family, metered_sets, [totals[place] for place in metered_places])
        else:
            page.add_each(family, sets, totals)


def state_labels(chip: ChipState) -> tuple[str, ...]:
    """Labels of the state's family: place, health and phase."""
    rank = "" if chip.rank is None else str(chip.rank)
    of = (str(chip.chip), str(chip.rack), str(chip.tray), rank)
    return (*of, str(chip.health), phase_of_chip(chip))


def phase_of_chip(chip: ChipState) -> str:
    """Its phase; "out" if lost, or without rank, lease and spare role."""
    if chip.health is ChipHealth.LOST:
        return OUT
    if chip.phase != SERVING:
        return chip.phase
    if chip.spare:
        return SPARE
    return SERVING if chip.rank is not None else OUT


def metered(chip: ChipState) -> bool:
    """Whether its shares of time count: a training job's work is not metered by chip."""
    return phase_of_chip(chip) not in (OUT, TRAINING, MAINTENANCE)


def owner_bytes(chip: ChipState) -> Counter[str]:
    """Bytes of each owner in all stacks of the chip."""
    held: Counter[str] = Counter()
    for stack in chip.stacks:
        held.update(stack.owner_bytes)
    return held

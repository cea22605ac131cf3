"""The families of each chip from one look at the hardware."""

from collections import Counter

from serving.metrics.families import chips as families
from serving.metrics.hardware import HardwareReport
from serving.metrics.machine_state import ChipState
from serving.metrics.page.text_page import TextPage, label_sets

SPARE = "spare"


def add_chips(page: TextPage, report: HardwareReport) -> None:
    """Every chip of the partition, and its spares."""
    chips, meters = report.state.chips, report.meters
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
    page.add_each(families.LINK_CAPACITY, sets, report.link_capacity_bytes_per_s)
    for family, field in (
        (families.POWER, "watts"),
        (families.JOULES, "joules"),
        (families.BUSY, "busy_s"),
        (families.FLOPS, "flops"),
        (families.HBM_TRAFFIC, "hbm_bytes"),
        (families.LINK, "link_bytes"),
        (families.LINK_UTILIZATION, "link_utilization"),
        (families.UTILIZATION, "utilization"),
        (families.HBM_UTILIZATION, "hbm_utilization"),
    ):
        page.add_each(family, sets, [getattr(each, field) for each in meters])


def state_labels(chip: ChipState) -> tuple[str, ...]:
    """Of the state's family: where the chip stands, what it is, and what it does."""
    rank = "" if chip.rank is None else str(chip.rank)
    phase = SPARE if chip.spare else chip.phase
    return str(chip.chip), str(chip.rack), str(chip.tray), rank, str(chip.health), phase


def owner_bytes(chip: ChipState) -> Counter[str]:
    """What each owner holds in all stacks of the chip."""
    held: Counter[str] = Counter()
    for stack in chip.stacks:
        held.update(stack.owner_bytes)
    return held

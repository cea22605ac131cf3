"""A profiled run, live or virtual: steps, machine, faults and repairs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from emulator.specs.hbm_usage import HbmUse
from emulator.units import NS_PER_S
from serving.wire.machine_state import FaultRecord, MachineState
from serving.wire.step_record import StepRecord, StepWhatIf

KV: Final = str(HbmUse.KV)
"""The owner of the KV pool, reserved as a whole; blocks count its use."""

WHAT_IF_FACTOR: Final = 2.0
"""Speed-up of each resource in a what-if."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledChip:
    """A chip (a spare has no rank) and the owners of its HBM at the end."""

    chip: int
    rack: int
    tray: int
    position: int
    rank: int | None
    hbm_capacity_bytes: int
    owner_bytes: dict[str, int]
    idle_watts: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """An event at one emulated time."""

    name: str
    at_ns: int
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledRun:
    """The data of a profile.

    Attributes:
        source: live or virtual.
        begin_ns: of the window, emulated, as `end_ns`.
        kv_blocks: of each rank's pool, [ranks].
        dropped: first steps of the window, not kept.
        expert_imbalance: tokens of the busiest chip over the mean, where counted.
        what_ifs: of sampled steps.

    Raises ValueError for steps out of order or overlapping.
    """

    source: str
    system: str
    model: str
    weights: str
    routing: str
    calibration: str
    tp: int
    begin_ns: int
    end_ns: int
    chips: tuple[ProfiledChip, ...]
    kv_blocks: tuple[int, ...]
    steps: tuple[StepRecord, ...]
    dropped: int = 0
    moments: tuple[Moment, ...] = ()
    expert_imbalance: float | None = None
    what_ifs: tuple[StepWhatIf, ...] = ()

    def __post_init__(self) -> None:
        if self.end_ns < self.begin_ns:
            raise ValueError(f"a run ends at {self.end_ns} ns before it begins")
        for before, after in zip(self.steps, self.steps[1:], strict=False):
            if after.begin_ns < before.end_ns:
                raise ValueError(f"step {after.step} begins before step {before.step} has ended")


def chips_of(state: MachineState, idle_watts: float) -> tuple[ProfiledChip, ...]:
    """Chips of a running machine."""
    return tuple(
        ProfiledChip(
            chip=chip.chip,
            rack=chip.rack,
            tray=chip.tray,
            position=chip.position,
            rank=chip.rank,
            hbm_capacity_bytes=chip.hbm_capacity_bytes,
            owner_bytes=by_owner(stack.owner_bytes for stack in chip.stacks),
            idle_watts=idle_watts,
        )
        for chip in state.chips
    )


def moments_of(faults: tuple[FaultRecord, ...], begin_ns: int, end_ns: int) -> tuple[Moment, ...]:
    """Faults, recoveries and repairs between two emulated times."""
    moments = []
    for record in faults:
        fault = record.fault
        place = f"rack {fault.rack}" if fault.chip < 0 else f"chip {fault.chip}"
        what = f"{fault.kind} {place}"
        moments.append(
            Moment(name=what, at_ns=_ns(record.injected_emulated_s), detail=record.reason)
        )
        if record.healed_emulated_s is not None:
            at_ns = _ns(record.healed_emulated_s)
            moments.append(Moment(name=f"healed: {what}", at_ns=at_ns, detail=""))
    inside = [moment for moment in moments if begin_ns <= moment.at_ns <= end_ns]
    return tuple(sorted(inside, key=lambda moment: moment.at_ns))


def by_owner(stacks: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Bytes by owner over all stacks; weights are one owner."""
    totals: dict[str, int] = {}
    for stack in stacks:
        for owner, held_bytes in stack.items():
            use = HbmUse.WEIGHTS if owner.startswith(f"{HbmUse.WEIGHTS}/") else owner
            totals[use] = totals.get(use, 0) + held_bytes
    return totals


def _ns(emulated_s: float) -> int:
    return round(emulated_s * NS_PER_S)

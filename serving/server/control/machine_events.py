"""Events between two polls of the engine. Pure.

Each fault's stages are reported with their times; of several lease or version stages only the last.
The first poll's state is no event.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from serving.wire.control_call import TelemetryReply
from serving.wire.machine_state import (
    FaultEvent,
    FaultRecord,
    FaultStage,
    LeaseState,
    SleepState,
    StallState,
    VersionState,
)
from serving.wire.telemetry import EventKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """An event without a number yet; at most one subject is set."""

    kind: EventKind
    words: str
    fault: FaultRecord | None = None
    lease: LeaseState | None = None
    version: VersionState | None = None
    sleep: SleepState | None = None
    emulated_s: float | None = None  # when it happened; None: when it was seen
    ranks_up: int | None = None


def changes(before: TelemetryReply, after: TelemetryReply) -> Iterator[Change]:
    """Faults, then leases, versions and sleep, each by number."""
    told = before.fault_event_number
    for event in after.fault_events:
        if event.number > told:
            yield Change(
                kind=EventKind.FAULT,
                words=_fault_words(event, after.telemetry.ranks),
                fault=event.fault,
                emulated_s=event.emulated_s,
                ranks_up=event.ranks_up,
            )
    was, stall = before.telemetry.stall, after.telemetry.stall
    if (was is None) != (stall is None):
        yield Change(kind=EventKind.STALL, words=_stall_words(stall))
    phases = {lease.number: lease.phase for lease in before.leases}
    for lease in after.leases:
        if phases.get(lease.number) != lease.phase:
            yield Change(kind=EventKind.LEASE, words=_lease_words(lease), lease=lease)
    served = {version.number: _served(version) for version in before.versions}
    for version in after.versions:
        if served.get(version.number) != _served(version):
            yield Change(kind=EventKind.VERSION, words=_version_words(version), version=version)
    if before.sleep.asleep != after.sleep.asleep:
        asleep = ", ".join(after.sleep.asleep)
        words = f"asleep: {asleep}" if asleep else "awake"
        yield Change(kind=EventKind.SLEEP, words=words, sleep=after.sleep)


def admission_change(before: str, after: str) -> Change | None:
    """Admission closed or opened; the words are the cause, empty while open."""
    if before == after:
        return None
    words = f"closed: {after}" if after else "open"
    return Change(kind=EventKind.DOOR, words=words)


def _served(version: VersionState) -> tuple[bool, int, str]:
    return version.target, version.ranks, version.failure


_STAGES: Final = {
    FaultStage.PENDING: "injected",
    FaultStage.RECOVERING: "met, the machine stands still",
    FaultStage.DEGRADED: "goes on, slower until it is healed",
}
"""Names of stages as events; others keep their own."""


def _fault_words(event: FaultEvent, ranks: int) -> str:
    fault = event.fault
    what = fault.fault
    where = f"rack {what.rack}" if what.chip < 0 else f"chip {what.chip}"
    stage = _STAGES.get(fault.stage, fault.stage.value)
    up = f"{event.ranks_up} of {ranks} ranks up"
    return f"fault {fault.number}, {what.kind} of {where}: {stage}, {up}: {fault.reason}"


def _stall_words(stall: StallState | None) -> str:
    if stall is None:
        return "the machine goes on"
    return f"{stall.reason}: {stall.left_s:.1f} emulated s, {stall.wall_left_s:.0f} s of wall time"


def _lease_words(lease: LeaseState) -> str:
    chips = ", ".join(map(str, lease.chips))
    phase = "ended" if lease.phase == "serving" else lease.phase
    why = f": {lease.reason}" if lease.reason else ""
    return f"lease {lease.number} of chips {chips}: {phase}{why}"


def _version_words(version: VersionState) -> str:
    end = f": {version.failure}" if version.failure else ""
    wanted = ", to serve everywhere" if version.target else ""
    return f"weights {version.weights} on {version.ranks} ranks{wanted}{end}"

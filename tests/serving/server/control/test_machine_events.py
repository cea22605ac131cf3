"""What is an event between two looks, and what is none."""

from typing import Any

import pytest
from hypothesis import given
from msgspec.structs import replace

from serving.server.control.machine_events import admission_change, changes
from serving.wire.control_call import TelemetryReply
from serving.wire.machine_state import (
    FaultEvent,
    FaultRecord,
    FaultStage,
    SleepState,
    StallState,
)
from serving.wire.telemetry import EventKind
from tests.serving.server.day_night.lending_engine import a_lease, a_version
from tests.serving.telemetry.machine_states import a_state, anything_of
from tests.serving.telemetry.telemetry_snapshots import a_snapshot, a_telemetry

(FAULT,) = a_state().faults
LEASE = a_lease(1, (2, 3))
VERSION = a_version(1, "/weights")
RANKS = a_telemetry().ranks


def event(number: int, record: FaultRecord) -> FaultEvent:
    return FaultEvent(number=number, emulated_s=float(number), ranks_up=3, fault=record)


def told(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[EventKind, str]]:
    found = changes(a_snapshot(**before), a_snapshot(**after))
    return [(change.kind, change.words) for change in found]


def test_a_night_by_hand() -> None:
    training = replace(LEASE, phase="training", reason="lent out")
    second = replace(a_version(2, "/night"), ranks=1)
    asleep = SleepState(asleep=("weights", "kv_cache"))

    assert told({}, {"fault_events": (event(1, FAULT),)}) == [
        (
            EventKind.FAULT,
            f"fault 1, pull-switch-tray of rack 0: recovered, 3 of {RANKS} ranks up: "
            "9 switch trays carry the rack",
        )
    ]
    assert told({"leases": (LEASE,)}, {"leases": (training,)}) == [
        (EventKind.LEASE, "lease 1 of chips 2, 3: training: lent out")
    ]
    assert told({"versions": (VERSION,)}, {"versions": (VERSION, second)}) == [
        (EventKind.VERSION, "weights v2 on 1 ranks, to serve everywhere")
    ]
    assert told({}, {"sleep": asleep}) == [(EventKind.SLEEP, "asleep: weights, kv_cache")]
    assert told({"sleep": asleep}, {}) == [(EventKind.SLEEP, "awake")]


def test_each_stage_of_a_fault_is_told_once() -> None:
    """However many lie between two looks, each with its own time."""
    stages = [replace(FAULT, stage=stage) for stage in FaultStage]
    events = tuple(event(number, record) for number, record in enumerate(stages, 1))
    found = list(changes(a_snapshot(fault_events=events[:1]), a_snapshot(fault_events=events)))

    assert [change.fault for change in found] == stages[1:]
    assert [change.emulated_s for change in found] == [e.emulated_s for e in events[1:]]
    assert {change.ranks_up for change in found} == {3}
    assert list(changes(a_snapshot(fault_events=events), a_snapshot(fault_events=events[2:]))) == []


def test_a_machine_that_stands_still_is_told_and_that_it_goes_on() -> None:
    stall = StallState(
        until_emulated_s=40.0, left_s=30.0, wall_left_s=600.0, reason="chip 2 does not answer"
    )
    calm, still = a_snapshot(), a_snapshot(telemetry=replace(a_telemetry(), stall=stall))

    (began,), (ended,) = changes(calm, still), changes(still, calm)
    assert began.words == "chip 2 does not answer: 30.0 emulated s, 600 s of wall time"
    assert (began.kind, ended.kind) == (EventKind.STALL, EventKind.STALL)
    assert ended.words == "the machine goes on"
    assert list(changes(still, still)) == []


def test_a_admission_that_closes_says_why() -> None:
    assert admission_change("", "") is None
    assert admission_change("draining", "draining") is None
    closed, opened = admission_change("", "draining"), admission_change("draining", "")
    assert closed is not None
    assert opened is not None
    assert (closed.kind, closed.words) == (EventKind.DOOR, "closed: draining")
    assert opened.words == "open"


@pytest.mark.long
@given(anything_of(TelemetryReply))
def test_nothing_has_happened_between_a_look_and_itself(look: TelemetryReply) -> None:
    events = {each.number: each for each in look.fault_events}
    events = dict(sorted((n, each) for n, each in events.items() if n))
    leases = {lease.number: lease for lease in look.leases}
    versions = {version.number: version for version in look.versions}
    look = replace(
        look,
        fault_events=tuple(events.values()),
        fault_event_number=max(events, default=0),
        leases=tuple(leases.values()),
        versions=tuple(versions.values()),
    )

    assert list(changes(look, look)) == []
    assert len(list(changes(a_snapshot(), look))) == (
        len(events)
        + len(look.leases)
        + len(look.versions)
        + bool(look.sleep.asleep)
        + (look.telemetry.stall is not None)
    )

"""What is an event between two looks, and what is none."""

from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from msgspec.structs import replace

from serving.endpoints.machine_events import changes, door_change
from serving.metrics.control_call import TelemetryReply
from serving.metrics.machine_state import FaultStage, SleepState
from serving.metrics.telemetry import EventKind
from tests.serving.controller.lending_engine import a_lease, a_version
from tests.serving.metrics.machine_states import a_state, anything_of
from tests.serving.metrics.telemetry_looks import a_look

(FAULT,) = a_state().faults
LEASE = a_lease(1, (2, 3))
VERSION = a_version(1, "/weights")


def told(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[EventKind, str]]:
    found = changes(a_look(**before), a_look(**after))
    return [(change.kind, change.words) for change in found]


def test_a_night_by_hand() -> None:
    training = replace(LEASE, phase="training", reason="lent out")
    second = replace(a_version(2, "/night"), ranks=1)
    asleep = SleepState(asleep=("weights", "kv_cache"))

    assert told({}, {"faults": (FAULT,)}) == [
        (
            EventKind.FAULT,
            "fault 1, pull-switch-tray of rack 0: recovered: 9 switch trays carry the rack",
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
    stages = [replace(FAULT, stage=stage) for stage in FaultStage]
    for before, after in pairwise(stages):
        (change,) = changes(a_look(faults=(before,)), a_look(faults=(after,)))
        assert change.fault == after
    assert told({"faults": (FAULT,)}, {"faults": (replace(FAULT, reason="other words"),)}) == []


def test_a_door_that_closes_says_why() -> None:
    assert door_change("", "") is None
    assert door_change("draining", "draining") is None
    closed, opened = door_change("", "draining"), door_change("draining", "")
    assert closed is not None
    assert opened is not None
    assert (closed.kind, closed.words) == (EventKind.DOOR, "closed: draining")
    assert opened.words == "open"


@given(anything_of(TelemetryReply))
@settings(max_examples=50, deadline=None)
def test_nothing_has_happened_between_a_look_and_itself(look: TelemetryReply) -> None:
    once = {record.number: record for record in look.faults}
    leases = {lease.number: lease for lease in look.leases}
    versions = {version.number: version for version in look.versions}
    look = replace(
        look,
        faults=tuple(once.values()),
        leases=tuple(leases.values()),
        versions=tuple(versions.values()),
    )

    assert list(changes(look, look)) == []
    assert len(list(changes(a_look(), look))) == (
        len(look.faults) + len(look.leases) + len(look.versions) + bool(look.sleep.asleep)
    )

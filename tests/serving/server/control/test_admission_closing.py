"""Drains, rests and the server's own end, in any order, before a real door."""

from collections.abc import Iterator
from typing import Any

import pytest

from serving.policy.admission.admission_limits import AdmissionLimits
from serving.policy.admission.capacity import Capacity
from serving.policy.admission.refusal import RefusalReason
from serving.server.control.admission_closing import DoorClosing
from serving.server.control.control_client import ControlClient, RefusedByServer
from serving.server.gateway.admission_controller import AdmissionController
from tests.serving.server.control.small_engine import connected, control_server
from tests.serving.server.control.test_day_night_calls import RestfulEngine

DRAINING, RESTING = RefusalReason.DRAINING, RefusalReason.RESTING


@pytest.fixture
def door() -> AdmissionController:
    capacity = Capacity(seats=8, kv_tokens=100_000, prefill_tokens_per_step=8_192)
    return AdmissionController(AdmissionLimits(), lambda: capacity)


@pytest.fixture
def engine() -> RestfulEngine:
    return RestfulEngine()


@pytest.fixture
def client(engine: RestfulEngine, door: AdmissionController) -> Iterator[ControlClient]:
    with control_server(engine, door=door) as listening, connected(listening) as made:
        yield made


def reason(door: AdmissionController) -> RefusalReason | None:
    return None if door.closed is None else door.closed.reason


def test_nobody_enters_while_the_engine_rests(
    client: ControlClient, door: AdmissionController
) -> None:
    client.sleep()
    assert reason(door) is RESTING
    assert client.admission().closed == "the engine sleeps"
    client.wake_up(["weights"])
    assert reason(door) is RESTING  # its KV is not back
    client.wake_up()
    assert reason(door) is None

    client.pause(mode="keep")
    assert client.admission().closed == "the engine holds requests back"
    client.resume_generation()
    assert reason(door) is None


def test_the_door_is_closed_before_the_engine_falls_asleep(
    engine: RestfulEngine, client: ControlClient, door: AdmissionController
) -> None:
    seen: list[RefusalReason | None] = []
    engine._called = lambda *_: seen.append(reason(door))  # type: ignore[method-assign]
    client.sleep(mode="wait")
    client.pause()

    assert seen == [RESTING, RESTING]


def test_a_rest_that_the_engine_refuses_leaves_the_door_open(
    engine: RestfulEngine, client: ControlClient, door: AdmissionController
) -> None:
    engine.refusal = ValueError("chips are lent out")
    for rest in (client.sleep, client.pause):
        with pytest.raises(RefusedByServer, match="chips are lent out"):
            rest()
        assert reason(door) is None


def test_a_drain_goes_before_a_rest(client: ControlClient, door: AdmissionController) -> None:
    client.sleep()
    client.drain_engine(reason="tonight")
    assert reason(door) is DRAINING
    client.undrain_engine()
    assert reason(door) is RESTING

    client.drain_engine(reason="tonight")
    client.wake_up()
    assert reason(door) is DRAINING
    client.sleep()
    assert client.admission().closed == "tonight"
    client.wake_up()
    client.undrain_engine()
    assert reason(door) is None


def test_the_server_s_own_end_goes_before_both(
    client: ControlClient, door: AdmissionController
) -> None:
    client.sleep()
    door.close(DRAINING, "the server ends", 1.0)
    client.wake_up()
    client.sleep()
    for call in (client.drain_engine, client.undrain_engine):
        with pytest.raises(RefusedByServer, match="has closed its door: the server ends"):
            call()

    assert client.admission().closed == "the server ends"


def test_where_requests_pass_no_door_a_rest_is_nothing() -> None:
    closing: Any = DoorClosing(None)
    closing.rest("the engine sleeps")

"""Drains, rests and the server's own end, in any order, before a real admission."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from serving.policy.admission.admission_limits import AdmissionLimits
from serving.policy.admission.capacity import Capacity
from serving.policy.admission.refusal import RefusalReason
from serving.server.control.control_client import ControlClient, RefusedByServer
from serving.server.control.engine_admission import AdmissionClosing
from serving.server.gateway.admission_controller import AdmissionController
from serving.wire import control_call
from tests.serving.server.control.small_engine import connected, control_server
from tests.serving.server.control.test_day_night_calls import RestfulEngine

DRAINING, RESTING = RefusalReason.DRAINING, RefusalReason.RESTING


@pytest.fixture
def admission() -> AdmissionController:
    capacity = Capacity(seats=8, kv_tokens=100_000, prefill_tokens_per_step=8_192)
    return AdmissionController(AdmissionLimits(), lambda: capacity)


@pytest.fixture
def engine() -> RestfulEngine:
    return RestfulEngine()


@pytest.fixture
def client(engine: RestfulEngine, admission: AdmissionController) -> Iterator[ControlClient]:
    with control_server(engine, admission=admission) as listening, connected(listening) as made:
        yield made


def reason(admission: AdmissionController) -> RefusalReason | None:
    return None if admission.closed is None else admission.closed.reason


def test_nobody_enters_while_the_engine_rests(
    client: ControlClient, admission: AdmissionController
) -> None:
    client.call(control_call.SLEEP)
    assert reason(admission) is RESTING
    assert client.call(control_call.GET_ADMISSION).closed == "the engine sleeps"
    client.call(control_call.WAKE_UP, tags=["weights"])
    assert reason(admission) is RESTING  # its KV is not back
    client.call(control_call.WAKE_UP)
    assert reason(admission) is None

    client.call(control_call.PAUSE_GENERATION, mode="keep")
    assert client.call(control_call.GET_ADMISSION).closed == "the engine holds requests back"
    client.call(control_call.RESUME_GENERATION)
    assert reason(admission) is None


def test_the_admission_is_closed_before_the_engine_falls_asleep(
    engine: RestfulEngine, client: ControlClient, admission: AdmissionController
) -> None:
    seen: list[RefusalReason | None] = []
    engine._called = lambda *_: seen.append(reason(admission))  # type: ignore[method-assign]
    client.call(control_call.SLEEP, mode="wait")
    client.call(control_call.PAUSE_GENERATION)

    assert seen == [RESTING, RESTING]


def test_a_rest_that_the_engine_refuses_leaves_the_admission_open(
    engine: RestfulEngine, client: ControlClient, admission: AdmissionController
) -> None:
    engine.refusal = ValueError("chips are lent out")
    for rest in (
        partial(client.call, control_call.SLEEP),
        partial(client.call, control_call.PAUSE_GENERATION),
    ):
        with pytest.raises(RefusedByServer, match="chips are lent out"):
            rest()
        assert reason(admission) is None


def test_a_drain_goes_before_a_rest(client: ControlClient, admission: AdmissionController) -> None:
    client.call(control_call.SLEEP)
    client.call(control_call.DRAIN_ENGINE, reason="tonight")
    assert reason(admission) is DRAINING
    client.call(control_call.UNDRAIN_ENGINE)
    assert reason(admission) is RESTING

    client.call(control_call.DRAIN_ENGINE, reason="tonight")
    client.call(control_call.WAKE_UP)
    assert reason(admission) is DRAINING
    client.call(control_call.SLEEP)
    assert client.call(control_call.GET_ADMISSION).closed == "tonight"
    client.call(control_call.WAKE_UP)
    client.call(control_call.UNDRAIN_ENGINE)
    assert reason(admission) is None


def test_the_server_s_own_end_goes_before_both(
    client: ControlClient, admission: AdmissionController
) -> None:
    client.call(control_call.SLEEP)
    admission.close(DRAINING, "the server ends", 1.0)
    client.call(control_call.WAKE_UP)
    client.call(control_call.SLEEP)
    for call in (
        partial(client.call, control_call.DRAIN_ENGINE),
        partial(client.call, control_call.UNDRAIN_ENGINE),
    ):
        with pytest.raises(RefusedByServer, match="has closed admission: the server ends"):
            call()

    assert client.call(control_call.GET_ADMISSION).closed == "the server ends"


def test_where_requests_pass_no_admission_a_rest_is_nothing() -> None:
    closing: Any = AdmissionClosing(None)
    closing.sleep("the engine sleeps")

"""An engine that does not answer: what is known is shown with its age, a change is unknown."""

import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from emulator.specs.fault import Fault, FaultKind
from serving.server.control.control_address import ControlAddress
from serving.server.control.control_client import (
    NOT_DONE,
    UNKNOWN,
    ControlClient,
    OutcomeUnknown,
    RefusedByServer,
    ServerUnreachable,
)
from serving.wire import control_call
from serving.wire.machine_state import ChipHealth
from tests.e2e.server_process import free_port
from tests.serving.server.control.small_engine import (
    SmallEngine,
    connected,
    control_server,
    wait_until,
)

WITHIN_S = 2.0
LOSE = Fault(kind=FaultKind.LOSE_CHIP, chip=0)


@pytest.mark.long
def test_the_state_of_before_is_shown_with_its_age(
    engine: SmallEngine, client: ControlClient
) -> None:
    assert client.call(control_call.GET_STATE).age_s == 0.0
    engine.silent = True
    began_s = time.monotonic()
    shown = client.call(control_call.GET_STATE)

    assert time.monotonic() - began_s < WITHIN_S
    assert shown.age_s > 1.0
    engine.silent = False
    assert client.call(control_call.GET_STATE).age_s == 0.0


@pytest.mark.long
def test_what_was_never_said_is_not_made_up(engine: SmallEngine, client: ControlClient) -> None:
    engine.silent = True
    began_s = time.monotonic()
    with pytest.raises(ServerUnreachable):
        client.call(control_call.GET_POWER)
    assert time.monotonic() - began_s < WITHIN_S
    engine.silent = False


@pytest.mark.long
def test_a_change_is_unknown_and_its_key_says_how_it_ended(
    engine: SmallEngine, client: ControlClient, address: ControlAddress
) -> None:
    engine.silent = True
    began_s = time.monotonic()
    with pytest.raises(OutcomeUnknown, match="ask again with --idempotency-key") as told:
        client.call(control_call.INJECT_FAULT, fault=LOSE)
    assert time.monotonic() - began_s < WITHIN_S
    assert told.value.exit_code == UNKNOWN

    engine.silent = False
    with connected(address, action_key=told.value.key) as again:
        assert again.call(control_call.INJECT_FAULT, fault=LOSE).number == 1
        assert again.call(control_call.INJECT_FAULT, fault=LOSE).number == 1
    state = client.call(control_call.GET_STATE)
    assert len(state.faults) == 1
    assert state.chips[0].health is ChipHealth.LOST


@pytest.mark.long
def test_a_client_may_wait_for_the_outcome(engine: SmallEngine, address: ControlAddress) -> None:
    engine.silent = True
    began_s = time.monotonic()
    with connected(address, patience_s=2.0) as patient, pytest.raises(OutcomeUnknown):
        patient.call(control_call.INJECT_FAULT, fault=LOSE)
    assert time.monotonic() - began_s > 2.0
    engine.silent = False
    wait_until(lambda: len(engine.state.faults) == 1)  # once, however often it was asked for


def test_what_is_refused_or_never_sent_is_not_done(address: ControlAddress) -> None:
    with connected(address) as client, pytest.raises(RefusedByServer) as refused:
        client.call(control_call.INJECT_FAULT, fault=Fault(kind=FaultKind.LOSE_CHIP, chip=99))
    assert refused.value.exit_code == NOT_DONE

    nowhere = ControlAddress(port=free_port())
    with connected(nowhere) as client, pytest.raises(ServerUnreachable) as unsent:
        client.call(control_call.INJECT_FAULT, fault=LOSE)
    assert unsent.value.exit_code == NOT_DONE


def test_what_an_older_server_does_not_know_is_not_done() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    client = connected(ControlAddress(port=port))
    with client, pytest.raises(RefusedByServer, match="older server") as unknown:
        client.call(control_call.DRAIN, chips=(1,), grace_s=1.0, purpose="training")
    server.stop(None)
    assert unknown.value.exit_code == NOT_DONE


@pytest.mark.long
def test_a_server_that_goes_while_its_outcome_is_waited_for_leaves_it_unknown() -> None:
    engine = SmallEngine()
    with ThreadPoolExecutor(1) as threads:
        with control_server(engine) as address:
            patient = connected(address, timeout_s=2.0, patience_s=4.0)
            engine.silent = True
            told = threads.submit(patient.call, control_call.INJECT_FAULT, fault=LOSE)
            wait_until(lambda: bool(engine.lines))
        with pytest.raises(OutcomeUnknown):
            told.result()

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
from serving.wire.machine_state import ChipHealth
from tests.serving.server.control.small_engine import (
    SmallEngine,
    connected,
    control_server,
    free_port,
    wait_until,
)

WITHIN_S = 2.0
LOSE = Fault(kind=FaultKind.LOSE_CHIP, chip=0)


def test_the_state_of_before_is_shown_with_its_age(
    engine: SmallEngine, client: ControlClient
) -> None:
    assert client.state().age_s == 0.0
    engine.silent = True
    began_s = time.monotonic()
    shown = client.state()

    assert time.monotonic() - began_s < WITHIN_S
    assert shown.age_s > 1.0
    engine.silent = False
    assert client.state().age_s == 0.0


def test_what_was_never_said_is_not_made_up(engine: SmallEngine, client: ControlClient) -> None:
    engine.silent = True
    began_s = time.monotonic()
    with pytest.raises(ServerUnreachable):
        client.power()
    assert time.monotonic() - began_s < WITHIN_S
    engine.silent = False


def test_a_change_is_unknown_and_its_key_says_how_it_ended(
    engine: SmallEngine, client: ControlClient, address: ControlAddress
) -> None:
    engine.silent = True
    began_s = time.monotonic()
    with pytest.raises(OutcomeUnknown, match="ask again with --idempotency-key") as told:
        client.inject(LOSE)
    assert time.monotonic() - began_s < WITHIN_S
    assert told.value.exit_code == UNKNOWN

    engine.silent = False
    with connected(address, action_key=told.value.key) as again:
        assert again.inject(LOSE).number == 1
        assert again.inject(LOSE).number == 1
    state = client.state()
    assert len(state.faults) == 1
    assert state.chips[0].health is ChipHealth.LOST


def test_a_client_may_wait_for_the_outcome(engine: SmallEngine, address: ControlAddress) -> None:
    engine.silent = True
    began_s = time.monotonic()
    with connected(address, patience_s=2.0) as patient, pytest.raises(OutcomeUnknown):
        patient.inject(LOSE)
    assert time.monotonic() - began_s > 2.0
    engine.silent = False
    wait_until(lambda: len(engine.state.faults) == 1)  # once, however often it was asked for


def test_what_is_refused_or_never_sent_is_not_done(address: ControlAddress) -> None:
    with connected(address) as client, pytest.raises(RefusedByServer) as refused:
        client.inject(Fault(kind=FaultKind.LOSE_CHIP, chip=99))
    assert refused.value.exit_code == NOT_DONE

    nowhere = ControlAddress(port=free_port())
    with connected(nowhere) as client, pytest.raises(ServerUnreachable) as unsent:
        client.inject(LOSE)
    assert unsent.value.exit_code == NOT_DONE


def test_what_an_older_server_does_not_know_is_not_done() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    client = connected(ControlAddress(port=port))
    with client, pytest.raises(RefusedByServer, match="older server") as unknown:
        client.lend((1,), grace_s=1.0)
    server.stop(None)
    assert unknown.value.exit_code == NOT_DONE


def test_a_server_that_goes_while_its_outcome_is_waited_for_leaves_it_unknown() -> None:
    engine = SmallEngine()
    with ThreadPoolExecutor(1) as threads:
        with control_server(engine) as address:
            patient = connected(address, timeout_s=2.0, patience_s=4.0)
            engine.silent = True
            told = threads.submit(patient.inject, LOSE)
            wait_until(lambda: bool(engine.lines))
        with pytest.raises(OutcomeUnknown):
            told.result()

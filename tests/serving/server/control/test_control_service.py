"""A real server and real channels on the loopback; only the engine behind them is small."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import grpc
import pytest
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo

from emulator.specs.fault import Fault, FaultKind, LinkTier
from emulator.ultraserver.ceilings import ceilings_of
from protos.ultraserve.v1 import control_pb2 as pb
from protos.ultraserve.v1 import fault_pb2
from serving.errors import PortInUse
from serving.server import engine_call
from serving.server.control import call_failure, control_guard
from serving.server.control.control_address import ControlAddress
from serving.server.control.control_client import ControlClient, RefusedByServer, ServerUnreachable
from serving.server.control.control_server import ControlServer
from serving.wire import control_call
from serving.wire.control_call import ControlReply, HealReport
from serving.wire.machine_state import ChipHealth, FaultStage
from tests.e2e.server_process import free_port
from tests.serving.server.control.raw_call import details_of, failure
from tests.serving.server.control.small_engine import SmallEngine, connected, wait_until
from tests.serving.telemetry.recorded_steps import a_cost_model

LOSE = Fault(kind=FaultKind.LOSE_CHIP, chip=1)
LOSE_7 = fault_pb2.Fault(kind=fault_pb2.FAULT_KIND_LOSE_CHIP, chip=7)


def test_the_state_is_the_engine_s(engine: SmallEngine, client: ControlClient) -> None:
    assert client.call(control_call.GET_STATE) == engine.state
    assert engine.lines == ['{"method":"state"}']


def test_a_fault_happens_and_is_recovered_from(engine: SmallEngine, client: ControlClient) -> None:
    report = client.call(control_call.INJECT_FAULT, fault=LOSE)

    assert (report.accepted, report.survivable, report.number) == (True, True, 1)
    (pending,) = client.call(control_call.GET_STATE).faults
    (recovered,) = client.call(control_call.GET_STATE).faults
    assert (pending.stage, pending.recovery) == (FaultStage.PENDING, None)
    assert recovered.stage is FaultStage.RECOVERED
    assert recovered.fault == LOSE
    assert recovered.recovery is not None
    assert recovered.recovery.emulated_ns == 2_500_000
    assert client.call(control_call.GET_STATE).chips[1].health is ChipHealth.LOST


def test_a_dry_run_changes_nothing(engine: SmallEngine, client: ControlClient) -> None:
    before = engine.state
    report = client.call(control_call.INJECT_FAULT, fault=LOSE, dry_run=True)

    assert (report.accepted, report.survivable, report.number) == (False, True, None)
    assert engine.state == before


@pytest.mark.parametrize(
    "fault",
    [
        LOSE,
        Fault(kind=FaultKind.HANG_CHIP, chip=0),
        Fault(kind=FaultKind.SLOW_CHIP, chip=2, factor=1.5),
        Fault(kind=FaultKind.FAIL_STACK, chip=0, stack=3),
        Fault(kind=FaultKind.CUT_LINK, chip=0, tier=LinkTier.TRAY, lanes=2),
        Fault(kind=FaultKind.PULL_SWITCH_TRAY, rack=1),
    ],
)
def test_every_kind_of_fault_arrives_as_it_was_sent(
    fault: Fault, engine: SmallEngine, client: ControlClient
) -> None:
    client.call(control_call.INJECT_FAULT, fault=fault)

    assert [record.fault for record in engine.state.faults] == [fault]


def test_healing_says_which_faults_are_over(client: ControlClient) -> None:
    for chip in (0, 1):
        client.call(control_call.INJECT_FAULT, fault=Fault(kind=FaultKind.HANG_CHIP, chip=chip))
    client.call(control_call.INJECT_FAULT, fault=Fault(kind=FaultKind.PULL_SWITCH_TRAY, rack=0))

    assert client.call(control_call.HEAL, chip=1).healed == (2,)
    assert client.call(control_call.HEAL, rack=0).healed == (3,)
    assert client.call(control_call.HEAL).healed == (1,)
    assert client.call(control_call.HEAL).healed == ()


def test_what_the_engine_refuses_is_said_in_its_words(client: ControlClient) -> None:
    with pytest.raises(RefusedByServer, match=r"^chip=7: expected 0 to 2$"):
        client.call(control_call.INJECT_FAULT, fault=Fault(kind=FaultKind.LOSE_CHIP, chip=7))
    client.call(control_call.INJECT_FAULT, fault=LOSE)
    with pytest.raises(RefusedByServer, match=r"^chip 1 is lost already$"):
        client.call(control_call.INJECT_FAULT, fault=LOSE)


@pytest.mark.parametrize(
    ("method", "request_", "field", "words"),
    [
        (
            "InjectFault",
            pb.InjectFaultRequest(),
            "kind",
            "kind=unspecified: expected one of lose-chip, ",
        ),
        ("InjectFault", pb.InjectFaultRequest(fault=LOSE_7), "chip", "chip=7: expected 0 to 2"),
        ("Heal", pb.HealRequest(chip=-1), "chip", "chip=-1: expected at least 0"),
        ("Publish", pb.PublishRequest(note="n" * 1001), "note", "note=nnnn"),
        ("SetPhase", pb.SetPhaseRequest(), None, "this server was started without --day-night"),
    ],
)
def test_a_call_that_fails_says_why_to_people_and_to_programs(
    method: str, request_: object, field: str | None, words: str, address: ControlAddress
) -> None:
    told = failure(address, method, request_)

    assert told.details()[: len(words)] == words
    info, *others = details_of(told)
    assert isinstance(info, ErrorInfo)
    assert info.domain == "ultraserve"
    if field is None:
        assert (told.code(), info.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "NOT_NOW")
        assert others == []
    else:
        assert (told.code(), info.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
        (wrong,) = others
        assert isinstance(wrong, BadRequest)
        assert [one.field for one in wrong.field_violations] == [field]


def test_what_cannot_happen_now_is_a_failed_precondition(
    address: ControlAddress, client: ControlClient
) -> None:
    client.call(control_call.INJECT_FAULT, fault=LOSE)
    lose = fault_pb2.Fault(kind=fault_pb2.FAULT_KIND_LOSE_CHIP, chip=1)
    told = failure(address, "InjectFault", pb.InjectFaultRequest(fault=lose))

    assert told.code() is grpc.StatusCode.FAILED_PRECONDITION


def test_an_engine_that_is_gone_tells_when_to_come_back(
    engine: SmallEngine, address: ControlAddress
) -> None:
    engine.errored = True
    told = failure(address, "GetState", pb.GetStateRequest())
    info, retry = details_of(told)

    assert told.code() is grpc.StatusCode.UNAVAILABLE
    assert info.reason == "ENGINE_GONE"
    assert isinstance(retry, RetryInfo)
    assert retry.retry_delay.ToSeconds() == call_failure.RETRY_S


def test_an_engine_that_is_gone_is_unavailable(engine: SmallEngine, client: ControlClient) -> None:
    engine.errored = True

    with pytest.raises(ServerUnreachable, match="the engine is gone"):
        client.call(control_call.GET_STATE)
    assert engine.lines == []


def test_an_engine_that_ends_before_it_answers_ends_the_call(
    engine: SmallEngine, client: ControlClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_call, "_ENGINE_CHECK_S", 0.01)
    engine.silent = True
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(partial(client.call, control_call.GET_STATE))
        wait_until(lambda: engine.waiting == 1)
        engine.errored = True
        with pytest.raises(ServerUnreachable, match="the engine is gone"):
            call.result(5)


def test_an_error_of_a_dying_engine_is_its_end(
    engine: SmallEngine, client: ControlClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(line: str) -> ControlReply:
        engine.errored = True
        raise RuntimeError("EngineCore encountered an issue")

    monkeypatch.setattr(engine, "_reply", die)
    with pytest.raises(ServerUnreachable, match="the engine is gone"):
        client.call(control_call.GET_STATE)


def test_a_mistake_in_the_engine_is_told_in_one_line(
    engine: SmallEngine, client: ControlClient
) -> None:
    engine.failure = RuntimeError("Call to collective_rpc method failed:\n boom")

    with pytest.raises(ServerUnreachable) as raised:
        client.call(control_call.GET_STATE)
    assert str(raised.value).endswith(": Call to collective_rpc method failed: boom")


def test_an_answer_of_another_kind_is_our_own_mistake_and_the_log_s(
    engine: SmallEngine,
    client: ControlClient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(engine, "_reply", lambda _: HealReport(healed=()))

    with (
        caplog.at_level("ERROR"),
        pytest.raises(ServerUnreachable, match="the server failed at this call; its log says"),
    ):
        client.call(control_call.GET_STATE)
    assert "HealReport(healed=())" in caplog.text


def test_a_client_does_not_wait_longer_than_it_wants(
    engine: SmallEngine, address: ControlAddress
) -> None:
    engine.silent = True
    with (
        connected(address, timeout_s=0.2) as client,
        pytest.raises(ServerUnreachable, match=r"no answer within 0\.2 s$"),
    ):
        client.call(control_call.GET_STATE)
    assert engine.waiting == 1  # the question goes on, for everybody who asks the same


@pytest.mark.long
def test_calls_wait_beside_each_other_up_to_a_limit(
    engine: SmallEngine, address: ControlAddress
) -> None:
    engine.silent = True
    limit = control_guard.CALLS_MAX
    with ThreadPoolExecutor(limit) as pool, connected(address, timeout_s=1.0) as client:
        calls = [
            pool.submit(client.call, control_call.GET_PLACEMENT, first_layer=layer)
            for layer in range(limit)
        ]
        wait_until(lambda: engine.waiting == limit)
        with connected(address, timeout_s=2.0) as late, pytest.raises(RefusedByServer):
            late.call(control_call.GET_STATE)
        errors = [call.exception() for call in calls]

    assert all("no answer within" in str(error) for error in errors)


def test_nobody_at_the_address_is_one_line_that_says_so() -> None:
    address = ControlAddress(port=free_port())
    with connected(address, timeout_s=5.0) as client, pytest.raises(ServerUnreachable) as told:
        client.call(control_call.GET_STATE)

    assert str(told.value) == (
        f"control service at {address}: nobody answers; is `ultraserve serve` running there?"
    )


def test_a_proxy_of_the_environment_s_is_not_asked(
    address: ControlAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("grpc_proxy", f"http://127.0.0.1:{free_port()}")

    with connected(address, timeout_s=5.0) as client:
        assert client.call(control_call.GET_STATE).steps == 1234


def test_a_port_that_is_taken_is_named_and_not_shared(
    engine: SmallEngine, address: ControlAddress
) -> None:
    async def second() -> None:
        server = ControlServer(engine, address, admits=lambda _: True)
        with pytest.raises(
            PortInUse, match=f"^control_port={address.port}: expected a free port on"
        ):
            await server.start()
        await server.stop()

    asyncio.run(second())


def test_a_recording_begins_goes_on_and_ends(engine: SmallEngine, client: ControlClient) -> None:
    begun = client.call(control_call.RECORD_STEPS, steps_max=3)
    going = client.call(control_call.GET_RECORDING, recording=begun.recording)
    ended = client.call(control_call.RECORD_STEPS, ends=begun.recording)

    assert (begun.recording, begun.on, begun.steps, begun.samples) == (1, True, 0, 0)
    assert (begun.begin_ns, begun.now_ns) == (7_000_000, 7_000_000)
    assert (going.on, going.steps) == (True, 1)
    assert going.now_ns > going.begin_ns
    assert (ended.on, ended.steps, ended.dropped, ended.samples) == (False, 2, 0, 2)
    assert ended.ceilings == ceilings_of(a_cost_model())
    # Steps that come later are no part of it, and its end stays where it was.
    assert client.call(control_call.GET_RECORDING, recording=begun.recording) == ended


@pytest.mark.long
def test_steps_come_in_pages_and_samples_are_costed_again(client: ControlClient) -> None:
    number = client.call(control_call.RECORD_STEPS).recording
    for _ in range(3):
        client.call(control_call.GET_RECORDING, recording=number)
    client.call(control_call.RECORD_STEPS, ends=number)

    page = client.call(control_call.GET_STEPS, recording=number, first_step=0)
    assert [step.step for step in page.steps] == [0, 1, 2, 3]
    assert (
        client.call(control_call.GET_STEPS, recording=number, first_step=page.next_step).steps == ()
    )
    assert (
        client.call(control_call.GET_STEPS, recording=number, first_step=2).steps == page.steps[2:]
    )
    durations = {step.step: step.duration_ns for step in page.steps}
    for sample in range(4):
        what_if = client.call(control_call.GET_WHAT_IF, recording=number, sample=sample, factor=2.0)
        assert what_if.duration_ns == durations[what_if.step]
        assert min(what_if.what_if_ns.values()) < what_if.duration_ns


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (
            lambda client: client.call(control_call.GET_RECORDING, recording=1),
            "recording=1: expected a recording that has begun",
        ),
        (
            lambda client: client.call(control_call.RECORD_STEPS, steps_max=0),
            "steps=0: expected 1 to 50,000",
        ),
        (
            lambda client: client.call(control_call.RECORD_STEPS, ends=-1),
            "ends=-1: expected at least 0",
        ),
        (
            lambda client: client.call(control_call.GET_STEPS, recording=1, first_step=-1),
            "first_step=-1: expected at least 0",
        ),
    ],
)
def test_a_recording_that_is_not_there_is_refused(
    ask: Callable[[ControlClient], object], words: str, client: ControlClient
) -> None:
    with pytest.raises(RefusedByServer, match=f"^{words}"):
        ask(client)


def test_who_records_anew_takes_over_and_the_other_is_told(client: ControlClient) -> None:
    first, second = (
        client.call(control_call.RECORD_STEPS).recording,
        client.call(control_call.RECORD_STEPS).recording,
    )

    with pytest.raises(RefusedByServer, match=r"recording=1: expected 2, which has replaced"):
        client.call(control_call.GET_STEPS, recording=first, first_step=0)
    assert client.call(control_call.GET_RECORDING, recording=second).on

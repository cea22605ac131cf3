"""Admission by the control service, and by commands: a real controller before nothing."""

import json
from collections.abc import Iterator
from itertools import islice

import pytest

from serving.main import main
from serving.policy.admission.admission_limits import AdmissionLimits
from serving.policy.admission.capacity import Capacity
from serving.policy.admission.entry import Outcome
from serving.policy.admission.refusal import RefusalReason, Refused
from serving.policy.admission.work import Client, Work, WorkClass
from serving.server.control import engine_watch
from serving.server.control.control_address import ControlAddress
from serving.server.control.control_client import ControlClient, RefusedByServer
from serving.server.gateway.admission_controller import AdmissionController
from serving.wire import control_call
from serving.wire.telemetry import EventKind
from tests.serving.server.control.small_engine import SmallEngine, connected, control_server

WORK = Work(
    client=Client(),
    work_class=WorkClass.INTERACTIVE,
    sequences=1,
    prompt_tokens=100,
    new_tokens_max=10,
)


class ForgetfulEngine(SmallEngine):
    """It also forgets prefixes, unless requests hold them."""

    def __init__(self) -> None:
        super().__init__()
        self.holds = False
        self.forgot: list[bool] = []

    async def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        assert not reset_connector
        self.forgot.append(reset_running_requests)
        return not self.holds or reset_running_requests


@pytest.fixture
def engine() -> ForgetfulEngine:
    return ForgetfulEngine()


@pytest.fixture
def admission() -> AdmissionController:
    capacity = Capacity(seats=8, kv_tokens=100_000, prefill_tokens_per_step=8_192)
    return AdmissionController(AdmissionLimits(queue_requests=1), lambda: capacity)


@pytest.fixture
def address(
    engine: ForgetfulEngine, admission: AdmissionController, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ControlAddress]:
    monkeypatch.setattr(engine_watch, "_IDLE_S", 0.05)
    with control_server(engine, admission=admission) as listening:
        yield listening


def run(*arguments: str, address: ControlAddress) -> int:
    return main(["engine", *arguments, "--address", str(address)])


def test_admission_s_counts_are_the_controller_s(
    client: ControlClient, admission: AdmissionController
) -> None:
    permit = admission.enter(WORK)
    with pytest.raises(Refused):
        admission.enter(WORK)
    report = client.call(control_call.GET_ADMISSION)
    interactive, batch = report.classes

    assert (report.is_open, report.closed, report.in_flight) == (True, "", 1)
    assert (interactive.work_class, batch.work_class) == (WorkClass.INTERACTIVE, WorkClass.BATCH)
    assert (interactive.entered, interactive.waiting, interactive.waiting_tokens) == (1, 1, 100)
    assert interactive.refused == {"queue_requests": 1}
    permit.leave(Outcome.FINISHED)
    interactive = client.call(control_call.GET_ADMISSION).classes[0]
    assert (interactive.in_flight, interactive.finished) == (0, 1)


def test_a_drained_engine_lets_nobody_in_until_it_is_undrained(
    client: ControlClient, admission: AdmissionController
) -> None:
    inside = admission.enter(WORK)
    report = client.call(
        control_call.DRAIN_ENGINE, reason="the rack is\nserviced", retry_after_s=30.0
    )

    assert (report.is_open, report.closed) == (False, "the rack is serviced")
    assert report.in_flight == 1
    with pytest.raises(Refused, match="the rack is serviced") as refused:
        admission.enter(WORK)
    assert refused.value.reason is RefusalReason.DRAINING
    assert refused.value.retry_after_s == 30.0
    inside.leave(Outcome.FINISHED)
    assert client.call(control_call.UNDRAIN_ENGINE).is_open
    admission.enter(WORK).leave(Outcome.FINISHED)


def test_a_admission_that_closes_and_opens_is_an_event(client: ControlClient) -> None:
    events = client.events(after=0)
    client.call(control_call.DRAIN_ENGINE)
    closed, _ = next(events)
    client.call(control_call.UNDRAIN_ENGINE)
    opened, _ = next(events)

    assert [closed.kind, opened.kind] == [EventKind.DOOR] * 2
    assert closed.words == "closed: the server is drained: no new requests"
    assert opened.words == "open"


def test_a_admission_that_closes_and_opens_between_two_looks_is_two_events(
    engine: ForgetfulEngine, client: ControlClient
) -> None:
    engine.silent = True  # no look ends meanwhile
    for reason in ("first", "second"):
        client.call(control_call.DRAIN_ENGINE, reason=reason)
        client.call(control_call.UNDRAIN_ENGINE)

    words = [event.words for event, _ in islice(client.events(after=0), 4)]
    assert words == ["closed: first", "open", "closed: second", "open"]


def test_no_call_opens_a_admission_that_the_server_has_closed_itself(
    client: ControlClient, admission: AdmissionController
) -> None:
    client.call(control_call.DRAIN_ENGINE)
    admission.close(RefusalReason.DRAINING, "the server ends", 1.0)

    with pytest.raises(RefusedByServer, match="the server has closed admission: the server ends"):
        client.call(control_call.UNDRAIN_ENGINE)
    with pytest.raises(RefusedByServer, match="the server has closed admission: the server ends"):
        client.call(control_call.DRAIN_ENGINE, reason="mine")
    assert client.call(control_call.GET_ADMISSION).closed == "the server ends"


@pytest.mark.parametrize(
    ("reason", "retry_after_s", "words"),
    [
        ("w" * 201, 0.0, "reason=w"),
        ("", -1.0, "retry_after_s=-1.0: expected 0 to 86,400 seconds"),
        ("", float("nan"), "retry_after_s=nan: expected 0 to 86,400 seconds"),
    ],
)
def test_a_drain_that_cannot_be_meant_is_refused(
    reason: str,
    retry_after_s: float,
    words: str,
    client: ControlClient,
    admission: AdmissionController,
) -> None:
    with pytest.raises(RefusedByServer, match=words):
        client.call(control_call.DRAIN_ENGINE, reason=reason, retry_after_s=retry_after_s)
    assert admission.closed is None


def test_prefixes_are_forgotten_unless_requests_hold_them(
    engine: ForgetfulEngine, client: ControlClient
) -> None:
    client.call(control_call.RESET_PREFIX_CACHE)
    engine.holds = True
    with pytest.raises(RefusedByServer, match="running requests hold blocks"):
        client.call(control_call.RESET_PREFIX_CACHE)
    client.call(control_call.RESET_PREFIX_CACHE, reset_running_requests=True)

    assert engine.forgot == [False, False, True]


def test_a_server_without_a_admission_says_so(engine: ForgetfulEngine) -> None:
    with (
        control_server(engine) as address,
        connected(address) as client,
        pytest.raises(RefusedByServer, match="pass no admission"),
    ):
        client.call(control_call.GET_ADMISSION)


@pytest.mark.long
def test_the_admission_by_command(
    address: ControlAddress, admission: AdmissionController, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("drain", "--reason", "tonight", address=address) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "the gateway is closed: tonight; 0 requests inside"
    assert [line.split()[0] for line in lines[1:]] == ["class", "interactive", "batch"]
    assert run("undrain", "--json", address=address) == 0
    assert json.loads(capsys.readouterr().out)["is_open"] is True
    permit = admission.enter(WORK)
    assert run("drain", "--wait", "0.3", address=address) == 1
    assert capsys.readouterr().out.splitlines()[0].endswith("; 1 requests inside")
    permit.leave(Outcome.FINISHED)
    assert run("drain", "--wait", "5", address=address) == 0
    assert run("admission", address=address) == 0
    assert run("drain", "--wait", "nan", address=address) == 2
    assert run("reset_prefix_cache", address=address) == 0
    assert capsys.readouterr().out.endswith("no prefix is remembered\n")

"""Ten thousand hostile messages on the control port: no crash, no leak, and it goes on to answer.

Behind the service is a whole engine, of which only the chips do not compute. What is sent is what
whoever has the key could send.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protos.ultraserve.v1 import control_pb2 as pb
from serving.access.control_key import find_control_key
from serving.policy.admission.admission_limits import AdmissionLimits
from serving.policy.admission.capacity import Capacity
from serving.server.control.control_address import ControlAddress
from serving.server.control.control_ports import SERVICE
from serving.server.control.control_server import ControlServer
from serving.server.day_night.controller import DayNight
from serving.server.gateway.admission_controller import AdmissionController
from serving.server.gateway.grpc.rpc_errors import STATUS_TRAILER
from serving.wire import control_call
from serving.wire.control_call import METHOD
from tests.serving.plugin.running_engine import Running
from tests.serving.server.control.drawn_messages import raw
from tests.serving.server.control.small_engine import connected, control_server, wait_until
from tests.serving.server.control.test_day_night_calls import RestfulEngine
from tests.serving.server.day_night.lending_engine import a_settings, job_command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ANSWERED = {
    *(grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION),
    *(grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED),
}
OTHERS: dict[str, type[Message]] = {
    "/grpc.health.v1.Health/Check": health_pb2.HealthCheckRequest,
    "/grpc.health.v1.Health/Watch": health_pb2.HealthCheckRequest,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": (
        reflection_pb2.ServerReflectionRequest
    ),
}
METHODS: dict[str, type[Message]] = {
    f"/{SERVICE}/{method.name}": getattr(pb, method.input_type.name)
    for method in pb.DESCRIPTOR.services_by_name["ControlService"].methods
}
EASY = (
    *("DescribeSystem", "GetState", "GetPlacement", "GetPower", "InjectFault", "Heal"),
    *("RecordSteps", "Sleep", "WakeUp", "PauseGeneration"),
    *("ResumeGeneration", "GetRest", "ResetPrefixCache", "GetAdmission", "DrainEngine"),
    "UndrainEngine",
)
"""Methods of which some of so many messages have to succeed."""

STREAM_S = 0.02
"""Wall seconds that a stream is listened to."""


class WholeEngine:
    """A live engine at the seam of vLLM's AsyncLLM; a new one when faults have used it up."""

    errored = False

    def __init__(self) -> None:
        self.waiting = 0
        self.asleep = self.held = False
        self._calls = 0
        self._running = self._new()

    def _new(self) -> Running:
        return Running(spares=2, model="qwen3-30b-a3b", computes=False)

    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        assert (method, timeout, kwargs) == (METHOD, None, None)
        self.waiting += 1
        self._calls += 1
        try:
            if self._calls % 500 == 0:
                self._running = self._new()
            return [self._running.engine.control(args[0])]
        finally:
            self.waiting -= 1

    async def sleep(self, level: int = 1, mode: str = "abort") -> None:
        assert level in (0, 1, 2)
        assert mode in ("abort", "wait", "keep")
        self.asleep, self.held = level > 0, True

    async def wake_up(self, tags: list[str] | None = None) -> bool:
        assert tags is None or set(tags) <= {"weights", "kv_cache"}
        self.asleep = self.held = False
        return True

    async def is_sleeping(self) -> bool:
        return self.asleep

    async def pause_generation(self, *, mode: str = "abort", clear_cache: bool = True) -> None:
        assert mode in ("abort", "wait", "keep")
        assert clear_cache in (True, False)
        self.held = True

    async def resume_generation(self) -> None:
        self.held = False

    async def is_paused(self) -> bool:
        return self.held

    async def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        assert not reset_connector
        return not self.held or reset_running_requests


class Attack:
    """A connection that sends bytes, and checks every answer."""

    def __init__(self, server: ControlServer, address: ControlAddress) -> None:
        self.server = server
        self.address = address
        self.sent = 0
        self.done: set[str] = set()
        self._channel = grpc.insecure_channel(str(address))
        self._key = (("authorization", f"Bearer {find_control_key(address.port, os.environ)}"),)

    def send(self, path: str, message: bytes) -> grpc.StatusCode:
        """One call; a stream is listened to for a moment, and left."""
        self.sent += 1
        error = self._error_of(path, message)
        code = grpc.StatusCode.OK if error is None else error.code()
        if path in METHODS and error is not None and code is not grpc.StatusCode.DEADLINE_EXCEEDED:
            assert STATUS_TRAILER in dict(error.trailing_metadata()), (path, message, error)
        if error is None:
            self.done.add(path)
        return code

    def _error_of(self, path: str, message: bytes) -> Any:
        channel, key = self._channel, self._key
        try:
            if "Reflection" in path:
                list(channel.stream_stream(path)(iter([message]), timeout=5, metadata=key))
            elif "Watch" in path:
                call = channel.unary_stream(path)(message, timeout=STREAM_S, metadata=key)
                next(call, None)
                call.cancel()
            else:
                channel.unary_unary(path)(message, timeout=30, metadata=key)
        except grpc.RpcError as error:
            return error
        return None

    def end(self) -> None:
        """Nobody is left inside, and the server answers."""
        self._channel.close()
        wait_until(lambda: self.server.watch.watchers == 0 and self.server.ports.guard.inside == 0)


@contextlib.contextmanager
def attack_on(engine: Any, day_night: DayNight | None = None) -> Iterator[Attack]:
    """A server before `engine`, under attack; nothing is left of it at the end."""
    made: list[ControlServer] = []
    capacity = Capacity(seats=8, kv_tokens=100_000, prefill_tokens_per_step=8_192)
    admission = AdmissionController(AdmissionLimits(), lambda: capacity)
    with control_server(engine, day_night, admission=admission, served=made.append) as address:
        attack = Attack(made[0], address)
        yield attack
        attack.end()
        with connected(address) as client:
            assert client.call(control_call.GET_REST) is not None


@pytest.fixture(scope="module")
def whole() -> Iterator[tuple[WholeEngine, Attack]]:
    engine = WholeEngine()
    with attack_on(engine) as attack:
        yield engine, attack
        assert attack.sent >= 10_000
        assert engine.waiting == 0
        # What is sent means something, too: the fuzzer gets to what it is to break.
        assert {f"/{SERVICE}/{name}" for name in EASY} <= attack.done


HARD = settings(
    max_examples=10_000,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@HARD
@given(data=st.data(), path=st.sampled_from(sorted({**METHODS, **OTHERS})))
def test_whatever_is_sent_is_answered(
    whole: tuple[WholeEngine, Attack], data: st.DataObject, path: str
) -> None:
    _, attack = whole
    kind = {**METHODS, **OTHERS}[path]
    code = attack.send(path, data.draw(raw(kind)))

    assert code in ANSWERED or (path in OTHERS and code is grpc.StatusCode.NOT_FOUND)


OF_THE_NIGHT = ("Drain", "Resume", "GetDayNight", "SetPolicy", "SetPhase", "Publish", "Rollback")


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attack]:
    folder = tmp_path_factory.mktemp("night")
    engine = RestfulEngine()
    controller = DayNight(engine, a_settings(folder), job_command=job_command(folder))
    with attack_on(engine, controller) as attack:
        yield attack


@settings(HARD, max_examples=2_000)
@given(data=st.data(), name=st.sampled_from(OF_THE_NIGHT))
def test_whatever_is_sent_about_the_night_is_answered(
    night: Attack, data: st.DataObject, name: str
) -> None:
    path = f"/{SERVICE}/{name}"

    assert night.send(path, data.draw(raw(METHODS[path]))) in ANSWERED

"""A client of the control service, for commands: calls that wait, answers in our own types."""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self, TypeVar

import grpc

from emulator.errors import UltraServeError
from emulator.specs.fault import Fault
from protos.ultraserve.v1 import control_pb2 as pb
from protos.ultraserve.v1 import control_pb2_grpc as pb_grpc
from serving.controller.day_night_state import DayNightState
from serving.controller.engine_call import ENGINE_GONE
from serving.endpoints.control_address import ControlAddress
from serving.endpoints.control_messages import from_message, to_message
from serving.endpoints.engine_rest import EngineRest
from serving.metrics.control_call import (
    FaultReport,
    HealReport,
    LeaseReport,
    RecordingState,
    VersionReport,
)
from serving.metrics.machine_state import MachineState
from serving.metrics.step_recording import StepPage, StepRelief

RequestT = TypeVar("RequestT")
ReplyT = TypeVar("ReplyT")


class ServerUnreachable(UltraServeError):
    """Nobody answers at the address, or not in time; indefinite when a call was under way."""


class RefusedByServer(UltraServeError):
    """The server refused the call, in its own words; definite: nothing has changed."""


_REFUSALS: Final = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)


class ControlClient:
    """One connection; each call ends within `timeout_s`, which a long step of the engine needs.

    Every call raises ServerUnreachable or RefusedByServer.
    """

    def __init__(self, address: ControlAddress, timeout_s: float) -> None:
        self._address = address
        self._timeout_s = timeout_s
        # A proxy of the environment's has no way to this machine's loopback.
        self._channel = grpc.insecure_channel(str(address), options=[("grpc.enable_http_proxy", 0)])
        self._stub = pb_grpc.ControlStub(self._channel)

    def state(self) -> MachineState:
        """The whole machine."""
        return from_message(self._call(self._stub.GetState, pb.GetStateRequest()), MachineState)

    def inject(self, fault: Fault, *, dry_run: bool = False) -> FaultReport:
        """Let `fault` happen, or only ask whether it would be survived."""
        request = pb.InjectFaultRequest(fault=to_message(fault, pb.Fault), dry_run=dry_run)
        return from_message(self._call(self._stub.InjectFault, request), FaultReport)

    def heal(self, *, chip: int | None = None, rack: int | None = None) -> HealReport:
        """Repair one chip, one rack, or everything."""
        request = pb.HealRequest(chip=chip, rack=rack)
        return from_message(self._call(self._stub.Heal, request), HealReport)

    def record(self, *, ends: int | None = None, steps_max: int | None = None) -> RecordingState:
        """Begin to record steps, or end the recording `ends`."""
        request = pb.RecordStepsRequest(ends=ends, steps_max=steps_max)
        return from_message(self._call(self._stub.RecordSteps, request), RecordingState)

    def recording(self, recording: int) -> RecordingState:
        """How far a recording is."""
        request = pb.GetRecordingRequest(recording=recording)
        return from_message(self._call(self._stub.GetRecording, request), RecordingState)

    def steps(self, recording: int, first_step: int) -> StepPage:
        """Records from `first_step` on, as many as one message holds; none at the end."""
        request = pb.GetStepsRequest(recording=recording, first_step=first_step)
        return from_message(self._call(self._stub.GetSteps, request), StepPage)

    def relief(self, recording: int, sample: int, *, factor: float) -> StepRelief:
        """A sampled step with things that are `factor` times as fast."""
        request = pb.GetReliefRequest(recording=recording, sample=sample, factor=factor)
        return from_message(self._call(self._stub.GetRelief, request), StepRelief)

    def drain(self, chips: Sequence[int], *, grace_s: float, dry_run: bool = False) -> LeaseReport:
        """Lend out chips, or only ask what would happen."""
        request = pb.DrainRequest(chips=chips, grace_s=grace_s, dry_run=dry_run)
        return from_message(self._call(self._stub.Drain, request), LeaseReport)

    def resume(self, lease: int) -> LeaseReport:
        """Take a lease's chips back."""
        request = pb.ResumeRequest(lease=lease)
        return from_message(self._call(self._stub.Resume, request), LeaseReport)

    def day_night(self) -> DayNightState:
        """Who serves, who trains, and why."""
        answer = self._call(self._stub.GetDayNight, pb.GetDayNightRequest())
        return from_message(answer, DayNightState)

    def set_policy(self, policy: str) -> DayNightState:
        """Let another policy decide, or none: `manual`."""
        request = pb.SetPolicyRequest(policy=policy)
        return from_message(self._call(self._stub.SetPolicy, request), DayNightState)

    def set_phase(self, group: int, phase: str) -> DayNightState:
        """Say what a group is to do: `serving` or `training`."""
        request = pb.SetPhaseRequest(group=group, phase=phase)
        return from_message(self._call(self._stub.SetPhase, request), DayNightState)

    def publish(self, weights_dir: str, *, note: str = "") -> VersionReport:
        """Serve other weights, which lie on the server's machine."""
        request = pb.PublishRequest(weights_dir=weights_dir, note=note)
        return from_message(self._call(self._stub.Publish, request), VersionReport)

    def rollback(self) -> VersionReport:
        """Serve the weights before the present ones again."""
        answer = self._call(self._stub.Rollback, pb.RollbackRequest())
        return from_message(answer, VersionReport)

    def sleep(self, *, level: int = 1, mode: str = "") -> EngineRest:
        """Let the engine sleep."""
        request = pb.SleepRequest(level=level, mode=mode)
        return from_message(self._call(self._stub.Sleep, request), EngineRest)

    def wake_up(self, tags: Sequence[str] = ()) -> EngineRest:
        """Wake it up, or those parts of it."""
        request = pb.WakeUpRequest(tags=tags)
        return from_message(self._call(self._stub.WakeUp, request), EngineRest)

    def pause(self, *, mode: str = "", keep_cache: bool = False) -> EngineRest:
        """Hold requests back."""
        request = pb.PauseGenerationRequest(mode=mode, keep_cache=keep_cache)
        return from_message(self._call(self._stub.PauseGeneration, request), EngineRest)

    def resume_generation(self) -> EngineRest:
        """Let requests go on."""
        request = pb.ResumeGenerationRequest()
        return from_message(self._call(self._stub.ResumeGeneration, request), EngineRest)

    def rest(self) -> EngineRest:
        """Whether the engine sleeps or pauses."""
        return from_message(self._call(self._stub.GetRest, pb.GetRestRequest()), EngineRest)

    def _call(self, method: Callable[..., ReplyT], request: object) -> ReplyT:
        try:
            return method(request, timeout=self._timeout_s)
        except grpc.RpcError as error:
            raise self._in_our_words(error) from error

    def _in_our_words(self, error: grpc.RpcError) -> UltraServeError:
        assert isinstance(error, grpc.Call)  # what the library raises is both
        code, words = error.code(), " ".join((error.details() or "").split())
        if code in _REFUSALS:
            return RefusedByServer(words)
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            words = f"no answer within {self._timeout_s:g} s"
        elif code is grpc.StatusCode.UNAVAILABLE and words != ENGINE_GONE:
            words = "nobody answers; is `ultraserve serve` running there?"
        return ServerUnreachable(f"control service at {self._address}: {words or code.name}")

    def close(self) -> None:
        """End the connection; idempotent."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

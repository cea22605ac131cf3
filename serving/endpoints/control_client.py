"""A client of the control service, for commands: calls that wait, answers in our own types."""

from collections.abc import Callable
from types import TracebackType
from typing import Final, Self, TypeVar

import grpc

from emulator.errors import UltraServeError
from emulator.specs.fault import Fault
from protos.ultraserve.v1 import control_pb2 as pb
from protos.ultraserve.v1 import control_pb2_grpc as pb_grpc
from serving.endpoints.control_address import ControlAddress
from serving.endpoints.control_messages import ENGINE_GONE, from_message, to_message
from serving.metrics.control_call import FaultReport, HealReport, RecordingState
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

"""The control service's calls about leases and day and night.

A server with a controller leaves leases to it: a group that is drained behind its back would be
called back at the next look. Under the policy `manual` a drain and a resume become what it wants.
"""

import asyncio
from typing import Any, Final

import grpc
import grpc.aio
import msgspec

from emulator.errors import CheckpointError, ConfigError
from protos.ultraserve.v1 import control_pb2 as pb
from serving.controller.day_night import DayNight, Look
from serving.controller.day_night_report import day_night_state
from serving.controller.engine_call import EngineFailed, EngineGone
from serving.daynight.handover import Phase
from serving.endpoints.control_messages import to_message
from serving.endpoints.engine_answer import answer
from serving.endpoints.engine_rest import ServedEngine
from serving.metrics.control_call import DrainRequest, LeaseReport, ResumeRequest

NO_CONTROLLER: Final = "this server was started without --day-night"
_HELD: Final = (
    "the policy {policy} decides which chips train; after `ultraserve daynight policy manual` "
    "chips are drained and resumed by hand"
)


class DayNightCalls:
    """A part of the control service; `_day_night` is None in a server without a controller."""

    _engine: ServedEngine
    _day_night: DayNight | None

    async def Drain(  # noqa: N802  the name that the contract gives
        self, request: pb.DrainRequest, context: "Context[Any, Any]"
    ) -> pb.LeaseReport:
        """Lend out chips, or only ask what would happen."""
        if not request.dry_run:
            await self._refuse_under_policy(context)
        try:
            asked = drain_request(request)
        except ConfigError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        if self._day_night is not None and not asked.dry_run:
            return to_message(await self._drain_group(asked, context), pb.LeaseReport)
        return to_message(await answer(self._engine, asked, LeaseReport, context), pb.LeaseReport)

    async def _drain_group(self, asked: DrainRequest, context: "Context[Any, Any]") -> LeaseReport:
        """Let the controller want that a group trains, if the engine would let its chips go."""
        controller = await self._controller(context)
        dry_run = msgspec.structs.replace(asked, dry_run=True)
        await answer(self._engine, dry_run, LeaseReport, context)  # or it is refused, with figures
        try:
            group = controller.group_of(asked.chips)
            controller.set_phase(group, Phase.TRAINING, grace_s=asked.grace_s)
        except ConfigError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        words = f"group {group} is drained, and trains then: see `ultraserve daynight`"
        return LeaseReport(lease=None, reason=words)

    async def Resume(  # noqa: N802  the name that the contract gives
        self, request: pb.ResumeRequest, context: "Context[Any, Any]"
    ) -> pb.LeaseReport:
        """Take a lease's chips back."""
        await self._refuse_under_policy(context)
        if request.lease < 1:
            error = ConfigError(field="lease", value=request.lease, expected="at least 1")
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        if self._day_night is not None:
            return to_message(await self._resume_group(request.lease, context), pb.LeaseReport)
        asked = ResumeRequest(lease=request.lease)
        return to_message(await answer(self._engine, asked, LeaseReport, context), pb.LeaseReport)

    async def _resume_group(self, number: int, context: "Context[Any, Any]") -> LeaseReport:
        """Let the controller want that a lease's group serves."""
        controller = await self._controller(context)
        look = await self._look(controller, context)
        out = {group.lease.number: group for group in look.groups if group.lease is not None}
        if number not in out:
            known = ", ".join(map(str, sorted(out))) or "none is out"
            error = ConfigError(field="lease", value=number, expected=f"one that is out: {known}")
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        group = out[number]
        try:
            controller.set_phase(group.number, Phase.SERVING)
        except ConfigError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        words = f"group {group.number} is called back; its job saves, then it reads its weights"
        return LeaseReport(lease=group.lease, reason=words)

    async def GetDayNight(  # noqa: N802  the name that the contract gives
        self, request: pb.GetDayNightRequest, context: "Context[Any, Any]"
    ) -> pb.DayNightState:
        """Say who serves, who trains, and why."""
        del request
        return await self._state(await self._controller(context), context)

    async def SetPolicy(  # noqa: N802  the name that the contract gives
        self, request: pb.SetPolicyRequest, context: "Context[Any, Any]"
    ) -> pb.DayNightState:
        """Let another policy decide."""
        controller = await self._controller(context)
        try:
            controller.set_policy(request.policy)
        except ConfigError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return await self._state(controller, context)

    async def SetPhase(  # noqa: N802  the name that the contract gives
        self, request: pb.SetPhaseRequest, context: "Context[Any, Any]"
    ) -> pb.DayNightState:
        """Say what a group is to do."""
        controller = await self._controller(context)
        if controller.policy is not None:
            held = _HELD.format(policy=controller.policy_text)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, held)
        try:
            controller.set_phase(request.group, phase_of(request.phase))
        except ConfigError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return await self._state(controller, context)

    async def _kept_weights(self, weights_dir: str, context: "Context[Any, Any]") -> str:
        """Where weights to publish will stay, whatever the job removes."""
        if self._day_night is None:
            return weights_dir
        look = await self._look(self._day_night, context)
        try:
            return await self._day_night.publisher.kept(weights_dir, look.watch.versions)
        except CheckpointError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))

    async def _controller(self, context: "Context[Any, Any]") -> DayNight:
        if self._day_night is None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, NO_CONTROLLER)
        assert self._day_night is not None  # the call has ended
        return self._day_night

    async def _refuse_under_policy(self, context: "Context[Any, Any]") -> None:
        if self._day_night is not None and self._day_night.policy is not None:
            held = _HELD.format(policy=self._day_night.policy_text)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, held)

    async def _look(self, controller: DayNight, context: "Context[Any, Any]") -> Look:
        try:
            return await controller.look()
        except EngineGone as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        except EngineFailed as error:
            await context.abort(grpc.StatusCode.INTERNAL, str(error))

    async def _state(self, controller: DayNight, context: "Context[Any, Any]") -> pb.DayNightState:
        look = await self._look(controller, context)
        # What a forecast expects of a whole day takes a part of a second, beside requests.
        state = await asyncio.to_thread(day_night_state, controller, look)
        return to_message(state, pb.DayNightState)


def drain_request(request: pb.DrainRequest) -> DrainRequest:
    """What is asked of the engine; raises ConfigError for what no machine could do."""
    if not request.chips or min(request.chips) < 0:
        raise ConfigError(field="chips", value=list(request.chips), expected="chips, from 0 on")
    if not 0 <= request.grace_s < float("inf"):
        raise ConfigError(field="grace_s", value=request.grace_s, expected="at least 0 seconds")
    return DrainRequest(
        chips=tuple(request.chips), grace_s=request.grace_s, dry_run=request.dry_run
    )


def phase_of(text: str) -> Phase:
    """The phase that a user asks for; raises ConfigError."""
    if text not in (Phase.SERVING, Phase.TRAINING):
        raise ConfigError(field="phase", value=text, expected="serving or training")
    return Phase(text)


Context = grpc.aio.ServicerContext

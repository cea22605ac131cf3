"""Control calls about leases and day and night.

Training leases are the controller's, if there is one: it would call back a group drained behind its
back. Under the policy `manual` a loan or a resume sets its wanted phase. Maintenance is outside its
control.
"""

import asyncio
from typing import Final

import msgspec

from emulator.errors import CheckpointError, ConfigError
from protos.ultraserve.v1 import control_pb2 as pb
from serving.policy.day_night.handover import HandoverPhase
from serving.policy.day_night.user_policy import UserPolicy
from serving.server.control.call_failure import answer, not_now
from serving.server.control.control_messages import word_of
from serving.server.control.engine_watch import EngineWatch
from serving.server.control.generic_service import answers
from serving.server.day_night.controller import DayNight, DayNightSnapshot
from serving.server.day_night.day_night_report import day_night_state
from serving.server.engine_call import ServedEngine
from serving.wire.control_call import (
    DRAIN,
    GET_DAY_NIGHT,
    RESUME,
    SET_PHASE,
    SET_POLICY,
    DrainRequest,
    LeaseReport,
    ResumeRequest,
)
from serving.wire.day_night_state import DayNightState
from serving.wire.machine_state import FOR_MAINTENANCE, FOR_TRAINING

NO_CONTROLLER: Final = "this server was started without --day-night"
_HELD: Final = (
    "the policy {policy} decides which chips train; after `ultraserve daynight policy manual` "
    "chips are lent and resumed by hand"
)


class DayNightCalls:
    """`_day_night` is None without a controller."""

    _engine: ServedEngine
    _day_night: DayNight | None
    _watch: EngineWatch

    @answers(DRAIN)
    async def drain(self, request: pb.DrainRequest) -> LeaseReport:
        """Take chips out of service, or return the dry run; training needs the policy `manual`."""
        asked = drain_request(request)
        lends = asked.purpose == FOR_TRAINING and not asked.dry_run
        if lends:
            self._refuse_under_policy()
        if self._day_night is not None and lends:
            return await self._drain_group(self._day_night, asked)
        report = await answer(self._engine, asked, LeaseReport)
        self._watch.look_now()
        return report

    async def _drain_group(self, controller: DayNight, asked: DrainRequest) -> LeaseReport:
        """Let a group train, if the engine can release its chips."""
        dry_run = msgspec.structs.replace(asked, dry_run=True)
        await answer(self._engine, dry_run, LeaseReport)  # or it is refused, with figures
        group = controller.group_of(asked.chips)
        controller.set_phase(group, HandoverPhase.TRAINING, grace_s=asked.grace_s)
        words = f"group {group} is drained, and trains then: see `ultraserve daynight`"
        return LeaseReport(lease=None, reason=words)

    @answers(RESUME)
    async def resume(self, request: pb.ResumeRequest) -> LeaseReport:
        """Take a lease's chips back."""
        if request.lease < 1:
            raise ConfigError("lease", request.lease, "at least 1")
        if self._day_night is not None and not await self._is_maintenance(request.lease):
            self._refuse_under_policy()
            report = await self._resume_group(self._day_night, request.lease)
        else:
            report = await answer(self._engine, ResumeRequest(lease=request.lease), LeaseReport)
        self._watch.look_now()
        return report

    async def _is_maintenance(self, number: int) -> bool:
        assert self._day_night is not None
        leases = (await self._day_night.snapshot()).watch.leases
        return any(one.number == number and one.purpose == FOR_MAINTENANCE for one in leases)

    async def _resume_group(self, controller: DayNight, number: int) -> LeaseReport:
        seen = await controller.snapshot()
        out = {lease.number: group for group, lease in seen.leases.items()}
        if number not in out:
            known = ", ".join(map(str, sorted(out))) or "none is out"
            raise not_now(f"lease={number}: expected one that is out: {known}")
        group = out[number]
        try:
            controller.set_phase(group, HandoverPhase.SERVING)
        except ConfigError as error:
            raise not_now(str(error)) from error
        words = f"group {group} is called back; its job saves, then it reads its weights"
        return LeaseReport(lease=seen.leases[group], reason=words)

    @answers(GET_DAY_NIGHT)
    async def get_day_night(self, request: pb.GetDayNightRequest) -> DayNightState:
        """Say which groups serve and train, and why."""
        del request
        return await day_night_snapshot(self._controller())

    @answers(SET_POLICY)
    async def set_policy(self, request: pb.SetPolicyRequest) -> DayNightState:
        """Change the policy; to one that runs a file only if the server began with it."""
        controller = self._controller()
        runs_a_file = request.policy.strip().startswith(f"{UserPolicy.name}:")
        if runs_a_file and request.policy != controller.settings.policy:
            expected = "a policy that runs no file: --day-night names one when the server starts"
            raise ConfigError("policy", request.policy, expected)
        controller.set_policy(request.policy)
        return await day_night_snapshot(controller)

    @answers(SET_PHASE)
    async def set_phase(self, request: pb.SetPhaseRequest) -> DayNightState:
        """Set a group's wanted phase."""
        controller = self._controller()
        self._refuse_under_policy()
        controller.set_phase(request.group, phase_of(request))
        return await day_night_snapshot(controller)

    async def _kept_weights(self, weights_dir: str) -> str:
        """A copy of weights to publish that the job does not remove."""
        if self._day_night is None:
            return weights_dir
        seen = await self._day_night.snapshot()
        try:
            return await self._day_night.publisher.kept(weights_dir, seen.watch.versions)
        except CheckpointError as error:
            raise not_now(str(error)) from error

    def _controller(self) -> DayNight:
        if self._day_night is None:
            raise not_now(NO_CONTROLLER)
        return self._day_night

    def _refuse_under_policy(self) -> None:
        if self._day_night is not None and self._day_night.policy is not None:
            raise not_now(_HELD.format(policy=self._day_night.policy_text))


async def day_night_snapshot(controller: DayNight) -> DayNightState:
    """Chips that serve and train, and why."""
    seen: DayNightSnapshot = await controller.snapshot()
    # What a forecast expects of a whole day takes a part of a second, beside requests.
    return await asyncio.to_thread(day_night_state, controller, seen)


def drain_request(request: pb.DrainRequest) -> DrainRequest:
    """The engine's request; raises ConfigError."""
    if not request.chips or min(request.chips) < 0:
        raise ConfigError("chips", list(request.chips), "chips, from 0 on")
    if not 0 <= request.grace_s < float("inf"):
        raise ConfigError("grace_s", request.grace_s, "at least 0 seconds")
    word = word_of(request, "purpose") if request.purpose else FOR_MAINTENANCE
    if word not in (FOR_TRAINING, FOR_MAINTENANCE):
        raise ConfigError("purpose", word, "training or maintenance")
    return DrainRequest(
        chips=tuple(request.chips),
        grace_s=request.grace_s,
        dry_run=request.dry_run,
        purpose=word,
    )


def phase_of(request: pb.SetPhaseRequest) -> HandoverPhase:
    """The requested phase; raises ConfigError."""
    word = word_of(request, "phase")
    if word not in (HandoverPhase.SERVING, HandoverPhase.TRAINING):
        raise ConfigError("phase", word, "serving or training")
    return HandoverPhase(word)

"""The loop of day and night: observes, lets a policy decide, acts.

A thin shell: the engine holds the state of chips, the training directory the job's; policy and plan
are pure. It keeps only its own attempts, so it restarts after any error.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeVar

from emulator.errors import ConfigError
from emulator.units import NS_PER_S
from serving.policy.day_night.burst import burst_response_s
from serving.policy.day_night.decision_memory import DecisionMemory
from serving.policy.day_night.demand_meter import BUCKET_S, Arrivals, DemandMeter
from serving.policy.day_night.handover import Action, HandoverLimits, HandoverPhase
from serving.policy.day_night.handover_machine import HandoverState, HandoverStep, wishes
from serving.policy.day_night.handover_settings import MANUAL, check_weighs
from serving.policy.day_night.night_work import (
    ANY_TIME,
    NO_BATCHES,
    UNDECIDED,
    BatchDemand,
    NightShare,
    night_share,
)
from serving.policy.day_night.observation import Observation
from serving.policy.day_night.policy import Decision, Policy, decided
from serving.policy.day_night.policy_text import parse_policy
from serving.server.day_night.day_night_settings import DayNightSettings
from serving.server.day_night.demand_file import DemandFile
from serving.server.day_night.job_failure import JobFailure, NextTry, failure_words, next_try
from serving.server.day_night.job_process import JobProcess
from serving.server.day_night.job_record import end_job
from serving.server.day_night.lease_notes import LeaseNotes
from serving.server.day_night.live_handover import LiveHandover
from serving.server.day_night.publisher import Publisher
from serving.server.engine_call import Engine, EngineFailed, EngineGone, ask
from serving.server.training.job_status import NO_STATUS
from serving.telemetry.recent_times import RecentTimes
from serving.wire.control_call import (
    ControlReply,
    ControlRequest,
    DrainRequest,
    LeaseReport,
    Refusal,
    ResumeRequest,
    WatchReply,
    WatchRequest,
)
from serving.wire.machine_state import LeaseState

# Below "vllm", where the API's process has configured handlers; a name of our own prints nothing.
logger = logging.getLogger(f"vllm.{__name__}")

TICK_S: Final = 0.3
"""Wall seconds; the engine answers between two steps."""

LIMITS: Final = HandoverLimits(silent_s=300.0)
"""Wall seconds. A job's first start reads its whole corpus before a sign of life."""

_AGAIN_S: Final = 0.5
_AGAIN_S_MAX: Final = 10.0
_SAVE_S: Final = 20.0
"""Wall seconds for the job to save when the server ends."""

ReplyT = TypeVar("ReplyT", bound=ControlReply)


@dataclass(frozen=True, slots=True, kw_only=True)
class DayNightSnapshot:
    """One tick's observation, decision and steps; `now_s` is Unix time."""

    now_s: float
    watch: WatchReply
    observed: Observation
    decision: Decision
    handover: HandoverState
    steps: tuple[HandoverStep, ...]
    leases: Mapping[int, LeaseState]  # that groups are out with, by group


class BatchTenant(Protocol):
    """Batch requests that run by night."""

    def demand(self) -> BatchDemand:
        """What is not answered yet."""

    def share(self, share: NightShare) -> None:
        """Run by `share` from now on."""


class DayNight:
    """The controller of one server, in the loop of the engine's client.

    `job_command` takes chips of the partition and the engine's dilation; `first_tokens` are TTFTs
    as clients see them, `begun_tpot` TPOTs by the time of the first token. `batches`, if any, have
    free groups by the order in `settings`.
    """

    def __init__(
        self,
        engine: Engine,
        settings: DayNightSettings,
        *,
        job_command: Callable[[Sequence[int], float], list[str]],
        first_tokens: RecentTimes | None = None,
        begun_tpot: RecentTimes | None = None,
        batches: BatchTenant | None = None,
        limits: HandoverLimits | None = None,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._engine = engine
        self.settings = settings
        self._job_command = job_command
        self._first_tokens = first_tokens or RecentTimes()
        self._begun_tpot = begun_tpot or RecentTimes()
        self._batches = batches
        self._give_share(UNDECIDED)
        self._arrived = 0  # without those of batches
        self._limits = LIMITS if limits is None else limits
        self._wall_s = wall_s
        directory = settings.training.directory
        directory.mkdir(parents=True, exist_ok=True)
        self._demand = DemandFile(directory)
        self.clock = settings.clock(wall_s()).after(self._demand.end_s)
        self._meter = DemandMeter(self.clock, self._demand.buckets)
        self._memory = DecisionMemory(settings, self.clock, self._meter)
        self.job = JobProcess(directory)
        self.handover = LiveHandover(
            chips=settings.chips, group_chips=settings.group_chips, limits=self._limits
        )
        self._notes = LeaseNotes()
        self.publisher = Publisher(engine, settings, self._limits)
        self.policy_text = ""
        self.policy: Policy | None = None
        self._by_hand = [HandoverPhase.SERVING] * settings.groups
        self._graces_s: dict[int, float] = {}  # of groups that were asked to train with another one
        self.restarts = 0
        self.trouble = ""
        self.on_job_failure: Callable[[str], None] | None = None
        self._reported_failure: JobFailure | None = None
        self._task: asyncio.Task[None] | None = None
        self.set_policy(settings.policy)

    # What a user asks for.

    def set_policy(self, text: str) -> None:
        """Change the policy; raises ConfigError. With `manual` groups keep their wanted phases."""
        check_weighs(text, self.settings.group_requests_per_s)
        self.policy = None if text == MANUAL else parse_policy(text)
        self.policy_text = text if self.policy is None else str(self.policy)

    def set_phase(self, group: int, phase: HandoverPhase, *, grace_s: float | None = None) -> None:
        """Set a group's wanted phase under the policy `manual`.

        `grace_s` applies to its later drains, else the settings'. Raises ConfigError under another
        policy, for an unknown group, a transient phase, or too many training groups.
        """
        if self.policy is not None:
            raise ConfigError("policy", self.policy_text, MANUAL)
        if not 0 <= group < self.settings.groups:
            raise ConfigError("group", group, f"0 to {self.settings.groups - 1}")
        if phase not in (HandoverPhase.SERVING, HandoverPhase.TRAINING):
            raise ConfigError("phase", phase, "serving or training")
        wanted = [*self._by_hand]
        wanted[group] = phase
        if wanted.count(HandoverPhase.TRAINING) > self.settings.lend_groups:
            expected = f"at most {self.settings.lend_groups} groups that train"
            raise ConfigError("phase", phase, expected)
        self._by_hand = wanted
        self._graces_s.pop(group, None)
        if grace_s is not None:
            self._graces_s[group] = grace_s
        self.handover.forgive(now_s=self._wall_s())

    def group_of(self, chips: Sequence[int]) -> int:
        """The group with exactly these chips; raises ConfigError."""
        for group in self.handover.state.groups:
            if group.chips == tuple(sorted(chips)):
                return group.number
        expected = f"those of one group: {self.settings.group_chips} on end"
        raise ConfigError("chips", ",".join(map(str, chips)), expected)

    # The loop.

    async def start(self) -> None:
        """Start the loop."""
        self._task = asyncio.create_task(self.run())

    async def stop(self) -> None:
        """End the loop, and the job after time to save; idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        await asyncio.to_thread(end_job, self.settings.training.directory, save_s=_SAVE_S)

    async def run(self) -> None:
        """Tick until the engine has ended; restarts after other errors."""
        wait_s = _AGAIN_S
        while True:
            begun_s = time.monotonic()
            loop = asyncio.create_task(self._loop())
            try:
                await asyncio.wait({loop})
            finally:
                loop.cancel()
            failure = None if loop.cancelled() else loop.exception()
            if isinstance(failure, EngineGone):
                return
            self.restarts += 1
            self.trouble = " ".join(f"{type(failure).__name__}: {failure}".split())
            logger.warning("day and night begins again after %s", self.trouble, exc_info=failure)
            lasted = time.monotonic() - begun_s > _AGAIN_S_MAX
            wait_s = _AGAIN_S if lasted else min(2 * wait_s, _AGAIN_S_MAX)
            await asyncio.sleep(wait_s)

    async def _loop(self) -> None:
        while True:
            await self.tick()
            await asyncio.sleep(TICK_S)

    async def tick(self) -> None:
        """Observe and take the due steps; raises the engine's and the job's errors."""
        seen = await self.snapshot()
        await self._report_training(seen)
        is_morning = HandoverPhase.TRAINING not in seen.handover.desired
        if is_morning and Action.RESUME in [step.action for step in seen.steps]:
            # First, so that what comes back reads the new weights.
            await self.publisher.publish(seen.watch.versions, self.job.status(), seen.now_s)
        for step in seen.steps:
            await self._take(step, seen)

    async def snapshot(self) -> DayNightSnapshot:
        """Observe; changes only records of demand and attempts."""
        watch = await self._asked(WatchRequest(), WatchReply)
        now_s, handover = self._wall_s(), self.handover
        handover.limits = replace(self._limits, stop_s=self._stop_s(watch.dilation))
        batches = NO_BATCHES if self._batches is None else self._batches.demand()
        # The engine's count is of its last step, the batches' of now: it may lag behind.
        self._arrived = max(self._arrived, watch.arrived_requests - batches.arrived)
        arrived = Arrivals(emulated_s=watch.emulated_s, requests=self._arrived)
        self._demand.append(self._meter.read(arrived))
        handover.see(watch.leases, self.job.seen(), now_s=now_s, emulated_s=watch.emulated_s)
        observed = self._memory.observed(
            watch.emulated_s,
            phases=handover.state.phases,
            queue=max(0, watch.waiting - batches.waiting),
            ttft_attainment=self._first_tokens.share_within(
                self.settings.slo.ttft_s, since_s=self._memory.changed_s
            ),
            tpot_attainment=self._begun_tpot.share_within(
                self.settings.slo.tpot_s, since_s=self._memory.changed_s
            ),
            restore_s=self._return_s(watch.dilation),
            job_chips_min=handover.state.job_chips_min,
        )
        if self.policy is None:
            serving = self._by_hand.count(HandoverPhase.SERVING)
            decision = Decision(serving_groups=serving, reason="set by hand")
            self._give_share(ANY_TIME)
            self._memory.note(decision, observed)
        else:
            decision = decided(self.policy, observed)
            self._memory.note(decision, observed)  # which batches do not change
            decision = self._with_batches(decision, batches, handover.state.phases)
            self._by_hand = list(wishes(handover.state, decision.serving_groups))
        steps = handover.want(self._by_hand, now_s=now_s)
        seen = DayNightSnapshot(
            now_s=now_s,
            watch=watch,
            observed=observed,
            decision=decision,
            handover=handover.state,
            steps=steps,
            leases=handover.leases,
        )
        self._report_failure(seen)
        return seen

    def _with_batches(
        self, decision: Decision, batches: BatchDemand, phases: Sequence[HandoverPhase]
    ) -> Decision:
        """The decision with the groups that batch requests hold; tells them when to run."""
        if self._batches is None:
            return decision
        share = night_share(
            self.settings.night_order,
            batches,
            groups=len(phases),
            wanted_groups=decision.serving_groups,
            serving_groups=phases.count(HandoverPhase.SERVING),
            held_groups=self._night_share.held_groups,
        )
        self._give_share(share)
        return Decision(
            serving_groups=decision.serving_groups + share.held_groups,
            reason=f"{decision.reason}; {share.held_groups} more for batches: {share.words}"
            if share.held_groups
            else f"{decision.reason}; {share.words}",
        )

    def _give_share(self, share: NightShare) -> None:
        self._night_share = share
        if self._batches is not None:
            self._batches.share(share)

    def _report_failure(self, seen: DayNightSnapshot) -> None:
        """Log a new failure of the job and call `on_job_failure`, once."""
        failure, before = self.handover.job_failure, self._reported_failure
        self._reported_failure = failure
        if failure is None or failure is before:
            return
        words = f"the training job {failure_words(failure, self.next_try(seen))}"
        logger.warning(words)
        if self.on_job_failure is not None:
            self.on_job_failure(words)

    def next_try(self, seen: DayNightSnapshot) -> NextTry:
        """The response to a failure of the job."""
        status = self.job.status() or NO_STATUS
        return next_try(
            seen.handover.job,
            wanted=HandoverPhase.TRAINING in seen.handover.desired,
            checkpoint_step=status.checkpoint_step if status.checkpoint else None,
            limits=self._limits,
        )

    def _return_s(self, dilation: float) -> float:
        """Emulated seconds of a return, for policies: the last one's, else to read weights.

        Bounded, since an engine's sleep may have delayed the last one.
        """
        measured_s = self.handover.returns.last_s
        if measured_s is None:
            return self.settings.reading_s
        return min(measured_s, self._return_s_max(dilation))

    def _return_s_max(self, dilation: float) -> float:
        """A job is killed if it does not save in time; then weights are read."""
        return self._stop_s(dilation) / dilation + self.settings.reading_s

    def _stop_s(self, dilation: float) -> float:
        """Wall seconds for a job to save: beside the host's, those of its emulated save."""
        status = self.job.status() or NO_STATUS
        return self._limits.stop_s + dilation * status.stop_ns / NS_PER_S

    def burst_response_s(self, dilation: float) -> tuple[float, float]:
        """Emulated seconds until a burst fills a demand bucket, and until its groups serve, at
        most.
        """
        seen_s = BUCKET_S / self.clock.day_s_per_emulated_s + TICK_S / dilation
        return seen_s, burst_response_s(look_s=seen_s, restore_s=self._return_s_max(dilation))

    async def _take(self, step: HandoverStep, seen: DayNightSnapshot) -> None:
        logger.info(
            "%s %s", step.action, "the job" if step.group is None else f"group {step.group}"
        )
        match step.action:
            case Action.DRAIN:
                assert step.group is not None
                grace_s = self._graces_s.get(step.group, self.settings.grace_s)
                chips = seen.handover.groups[step.group].chips
                await self._hand_over(step.group, DrainRequest(chips=chips, grace_s=grace_s))
            case Action.CANCEL | Action.RESUME:
                assert step.group is not None
                lease = seen.leases[step.group].number
                await self._hand_over(step.group, ResumeRequest(lease=lease))
            case Action.START_JOB:
                self.job.start(self._job_command(step.chips, seen.watch.dilation), step.chips)
            case Action.STOP_JOB:
                self.job.ask_stop()
                self.handover.stop_asked(now_s=seen.now_s)
            case Action.KILL_JOB:
                await asyncio.to_thread(self.job.kill)

    async def _hand_over(self, group: int, request: DrainRequest | ResumeRequest) -> None:
        reply = await ask(self._engine, request)
        if isinstance(reply, Refusal):
            logger.warning("group %d: %s", group, reply.message)
            self.handover.refused(group, reply.message, now_s=self._wall_s())
        else:
            assert isinstance(reply, LeaseReport), reply

    async def _report_training(self, seen: DayNightSnapshot) -> None:
        status, job_chips = self.job.status(), seen.handover.job.chips
        for number, lease in seen.leases.items():
            group = seen.handover.groups[number]
            if group.phase is not HandoverPhase.TRAINING:
                continue
            self._notes.begin(lease, status)
            shared = set(group.working_chips) & set(job_chips)
            if status is None or not shared:
                continue
            note = self._notes.note(lease, status, share=len(shared) / len(job_chips))
            if note is not None:
                reply = await ask(self._engine, note)
                # The lease may have ended meanwhile.
                assert isinstance(reply, LeaseReport | Refusal), reply

    async def _asked(self, request: ControlRequest, kind: type[ReplyT]) -> ReplyT:
        reply = await ask(self._engine, request)
        if isinstance(reply, Refusal):
            raise EngineFailed(reply.message)
        assert isinstance(reply, kind), reply
        return reply

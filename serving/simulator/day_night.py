"""Day and night in virtual time: a policy decides which groups of chips serve, and the rest train.

The controller of a server without its processes: the same policies, memory and hand-over machine
look as often as a server's does that keeps emulated time. It acts by the calls that a control
service would get, and keeps them, so that a run with these calls is the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import msgspec
import numpy as np

from emulator.errors import ConfigError
from emulator.faults.recovery_time import RecoveryRates
from emulator.specs.training_recipe import TrainingRecipe
from emulator.units import NS_PER_S
from serving.engine.handover_groups import HandoverGroups
from serving.errors import LeaseRefused
from serving.policy.day_night.day_clock import DayClock
from serving.policy.day_night.decision_memory import DecisionMemory
from serving.policy.day_night.demand_meter import Arrivals, Bucket, DemandMeter
from serving.policy.day_night.handover import (
    Action,
    HandoverPhase,
    JobEvent,
)
from serving.policy.day_night.handover_machine import HandoverStep, JobHappened, wishes
from serving.policy.day_night.handover_settings import MANUAL, HandoverSettings, check_weighs
from serving.policy.day_night.policy import Policy
from serving.policy.day_night.policy_text import parse_policy
from serving.simulator.engine_pool import EnginePool
from serving.simulator.job_cost import JobTerms, job_of_machines
from serving.simulator.machine_calls import MachineCall, TimedCall
from serving.simulator.request_arrivals import RequestArrivals
from serving.simulator.request_stream import StreamedArrivals
from serving.simulator.run import HandoverOutcome
from serving.simulator.scheduler_arrays import NONE
from serving.simulator.simulated_deployment import SimulatedDeployment
from serving.simulator.simulated_job import LIMITS, JobWork, SimulatedJob
from serving.telemetry.recent_times import KEPT_MAX, RecentTimes
from serving.traffic.start_time import START_S
from serving.wire.control_call import DrainRequest, ResumeRequest, TrainingNote
from serving.wire.machine_state import NO_TRAINING, LeaseState

LOOK_S: Final = 0.3
"""Emulated seconds; a server's controller looks as often by the clock on the wall."""

NOTE_S: Final = 60.0
"""Emulated seconds; what a job draws goes to its leases' engines at least as often."""

FIRST_DAY_S: Final = 4 * 86_400.0
"""The first day of a simulation: Monday, 5 January 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedDayNight(HandoverSettings):
    """How the chips of a simulation change hands.

    Groups are of an engine that is alone; of several engines each one is a group. `start_s`: until
    a job's processes run and its models are loaded, weights left out. `look_s`: from one decision
    of the policy to the next; hand-overs go on meanwhile. `begins_s`: Unix time of the start, in
    place of `day_start`. `past`: demand before it. `own_policy` decides in place of `policy`.
    `job`: what is trained, in place of the served model by the default recipe, whose state a lease
    needs room for anyway.
    """

    start_s: float = START_S
    look_s: float = LOOK_S
    begins_s: float | None = None
    past: tuple[Bucket, ...] = ()
    own_policy: Policy | None = None
    job: JobTerms | None = None

    def clock(self, wall_s: float) -> DayClock:
        """By `begins_s`, where it says."""
        if self.begins_s is None:
            return HandoverSettings.clock(self, wall_s)
        return DayClock(day_length_s=self.day_length_s, origin_s=self.begins_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class DaySample:
    """Totals from the start until `at_s`, of all engines and the job; as in `HandoverOutcome`."""

    at_s: float
    joules: float
    trained_tokens: int
    job_starts: int
    handovers: int
    moved_requests: int
    handover_joules: float


class DayNightController:
    """Of one run, whose engines it hands over. Mutable.

    Raises ConfigError for settings that do not fit the deployment, and `manual`.
    """

    def __init__(
        self,
        settings: SimulatedDayNight,
        deployment: SimulatedDeployment,
        pool: EnginePool,
        arrivals: RequestArrivals | StreamedArrivals,
    ) -> None:
        self._pool = pool
        self._arrivals = arrivals
        if settings.policy == MANUAL:
            raise ConfigError("policy", MANUAL, "one that decides; calls move groups by hand")
        check_weighs(settings.policy, settings.group_requests_per_s)
        self._settings = settings
        self._policy = settings.own_policy or parse_policy(settings.policy)
        self._meter = DemandMeter(clock := settings.clock(FIRST_DAY_S), settings.past)
        self._memory = DecisionMemory(settings, clock, self._meter)
        self._partition = partition = deployment.cost_model.partition
        check_groups(settings, deployment)
        terms = _job_terms(settings, deployment)
        self._groups = HandoverGroups(
            chips=settings.chips,
            group_chips=settings.group_chips,
            limits=LIMITS,
            job_chips_min=_job_chips_min(settings, terms),
        )
        of_machine = max(1, (terms.system.chips.count - partition.first_chip) // partition.chips)
        self._machine_chips = of_machine * partition.chips
        self._job = SimulatedJob(
            cache(lambda chips: job_of_machines(terms, self._by_machine(chips))),
            start_s=terms.start_s,
            idle_chip_watts=deployment.cost_model.idle_chip_watts,
        )
        self._first_tokens = RecentTimes()
        self._begun_tpot = RecentTimes()
        self._newest_ns: dict[str, int] = {}
        self._noted = JobWork()
        self._noted_joules = 0.0
        self._note_ns = self._look_ns = self._decide_ns = 0
        self._wanted = self._groups.state.desired
        self.samples: list[DaySample] | None = None
        """At each decision, before it, and at the end; None keeps none."""
        self.calls: list[TimedCall] = []
        """Those that were not refused."""
        self.refused = 0
        """Steps of groups that engines refused."""

    @property
    def next_ns(self) -> int:
        """When it looks next."""
        ready_ns = self._job.ready_ns
        return self._look_ns if ready_ns is None else min(self._look_ns, ready_ns)

    def look(self, now_ns: int, call: Callable[[TimedCall], None]) -> None:
        """Observe, decide, and act by `call`, which may raise LeaseRefused."""
        groups, now_s = self._groups, now_ns / NS_PER_S
        looks, decides = now_ns >= self._look_ns, now_ns >= self._decide_ns
        event = self._job.advance(now_ns)
        groups.see_leases(self._leases(), now_s=now_s)
        if event is not None or now_ns >= self._note_ns:
            self._note(now_ns, call)
        if event is not None:
            groups.happened(JobHappened(event=event), now_s=now_s)
        groups.returns.note(groups.state.groups, now_s)
        self._meter.read(Arrivals(emulated_s=now_s, requests=self._arrivals.taken))
        if decides:
            self._decide(now_ns)
        for step in groups.want(self._wanted, now_s=now_s):
            self._take(step, now_ns, call)
        if looks:
            self._look_ns = self._next_look_ns(now_ns)

    def _next_look_ns(self, now_ns: int) -> int:
        """A server's next one while groups are on their way; else the next decision."""
        soon_ns = now_ns + round(LOOK_S * NS_PER_S)
        rests = self._groups.state.phases == self._groups.state.desired
        return self._decide_ns if rests else min(soon_ns, self._decide_ns)

    def _decide(self, now_ns: int) -> None:
        groups, now_s = self._groups, now_ns / NS_PER_S
        self._decide_ns = now_ns + round(self._settings.look_s * NS_PER_S)
        self._note_sample(now_ns)
        ttft, tpot = self._attainments()
        observed = self._memory.observed(
            now_s,
            phases=groups.state.phases,
            queue=sum(each.schedulers.waiting for each in self._pool.engines),
            ttft_attainment=ttft,
            tpot_attainment=tpot,
            restore_s=self._return_s,
            job_chips_min=groups.state.job_chips_min,
        )
        decision = self._policy.decide(observed)
        self._memory.note(decision, observed)
        self._wanted = wishes(groups.state, decision.serving_groups)

    def _note_sample(self, now_ns: int) -> None:
        if self.samples is None:
            return
        work, engines = self._job.work, [each.handovers(now_ns) for each in self._pool.engines]
        sample = DaySample(
            at_s=now_ns / NS_PER_S,
            joules=sum(each.joules(now_ns) for each in self._pool.engines),
            trained_tokens=work.tokens - work.undone_tokens,
            job_starts=work.starts,
            handovers=sum(each.handovers for each in engines),
            moved_requests=sum(each.moved_requests for each in engines),
            handover_joules=sum(each.joules for each in engines),
        )
        self.samples.append(sample)

    def _attainments(self) -> tuple[float | None, float | None]:
        """The shares of requests within TTFT and TPOT since the number of serving groups last
        changed; of TPOT of those that began since then.
        """
        slo, since_s = self._settings.slo, self._memory.changed_s
        if slo.ttft_s is not None:
            for row in self._newly("first_token_ns"):
                each = self._pool.requests[row]
                ttft_ns = int(each["first_token_ns"]) - int(each["arrival_ns"])
                self._first_tokens.add(each["first_token_ns"] / NS_PER_S, [ttft_ns / NS_PER_S])
        if slo.tpot_s is not None:
            for row in self._newly("last_token_ns"):
                each, further = self._pool.requests[row], self._arrivals.output_tokens[row] - 1
                if further > 0:
                    decode_ns = int(each["last_token_ns"]) - int(each["first_token_ns"])
                    begun_s = each["first_token_ns"] / NS_PER_S
                    self._begun_tpot.add(begun_s, [decode_ns / further / NS_PER_S])
        return (
            self._first_tokens.share_within(slo.ttft_s, since_s=since_s),
            self._begun_tpot.share_within(slo.tpot_s, since_s=since_s),
        )

    def _newly(self, column: str) -> list[int]:
        """The newest rows in which a time came since this was asked before, in their order."""
        at_ns = self._pool.requests[column]
        rows = np.flatnonzero(at_ns > self._newest_ns.get(column, NONE))
        rows = rows[np.argsort(at_ns[rows], kind="stable")][-KEPT_MAX:]
        if len(rows):
            self._newest_ns[column] = int(at_ns[rows[-1]])
        newest: list[int] = rows.tolist()
        return newest

    @property
    def _return_s(self) -> float:
        """Of a return: the last one's, else to read weights."""
        last_s = self._groups.returns.last_s
        return self._settings.reading_s if last_s is None else last_s

    def end(self, now_ns: int, call: Callable[[TimedCall], None]) -> None:
        """Note what the job has done by the end of the run."""
        self._job.advance(now_ns)
        self._groups.see_leases(self._leases(), now_s=now_ns / NS_PER_S)
        self._note(now_ns, call)
        self._note_sample(now_ns)

    def outcome(self, now_ns: int, *, joules: float) -> HandoverOutcome:
        """What it came to by now, after `end`, of engines that drew `joules` in all."""
        engines = [each.handovers(now_ns) for each in self._pool.engines]
        work = self._job.work
        handover_joules = sum(each.joules for each in engines)
        return HandoverOutcome(
            policy=str(self._policy),
            handovers=sum(each.handovers for each in engines),
            refused=self.refused,
            moved_requests=sum(each.moved_requests for each in engines),
            leased_chip_s=sum(each.leased_chip_s for each in engines),
            job_starts=work.starts,
            trained_steps=work.steps - work.undone_steps,
            trained_tokens=work.tokens - work.undone_tokens,
            undone_tokens=work.undone_tokens,
            inference_joules=joules - self._noted_joules - handover_joules,
            training_joules=self._noted_joules,
            handover_joules=handover_joules,
        )

    def _take(self, step: HandoverStep, now_ns: int, call: Callable[[TimedCall], None]) -> None:
        groups, now_s = self._groups, now_ns / NS_PER_S
        match step.action:
            case Action.DRAIN:
                assert step.group is not None
                grace_s = self._settings.grace_s
                chips = self._of_engine(groups.state.groups[step.group].chips)
                self._hand_over(step.group, DrainRequest(chips=chips, grace_s=grace_s), now_s, call)
            case Action.CANCEL | Action.RESUME:
                assert step.group is not None
                lease = groups.leases[step.group].number
                self._hand_over(step.group, ResumeRequest(lease=lease), now_s, call)
            case Action.START_JOB:
                if self._job.start(step.chips):
                    started = JobHappened(event=JobEvent.STARTED, chips=step.chips)
                    groups.happened(started, now_s=now_s)
            case Action.STOP_JOB:
                self._job.stop()
                groups.stop_asked(now_s=now_s)
            case Action.KILL_JOB:
                self._note(now_ns, call)
                self._job.kill()
                groups.happened(JobHappened(event=JobEvent.CRASHED, words="killed"), now_s=now_s)

    def _hand_over(
        self, group: int, request: MachineCall, now_s: float, call: Callable[[TimedCall], None]
    ) -> None:
        try:
            self._call(group, request, now_s, call)
        except LeaseRefused as refusal:
            self.refused += 1
            self._groups.refused(group, str(refusal), now_s=now_s)

    def _call(
        self, group: int, request: MachineCall, now_s: float, call: Callable[[TimedCall], None]
    ) -> None:
        timed = TimedCall(at_s=now_s, call=request, replica=self._engine_of(group))
        call(timed)
        self.calls.append(timed)

    def _note(self, now_ns: int, call: Callable[[TimedCall], None]) -> None:
        """Tell each lease's engine what the job has done since the last note, its share."""
        before, work, state = self._noted, self._job.work, self._groups.state
        self._noted, self._note_ns = work, now_ns + round(NOTE_S * NS_PER_S)
        if work.alive_ns == before.alive_ns:
            return
        for group in state.groups:
            lease = self._groups.leases.get(group.number)
            shared = set(group.chips) & set(state.job.chips)
            if lease is None or lease.phase != HandoverPhase.TRAINING or not shared:
                continue
            share, had = len(shared) / len(state.job.chips), lease.training or NO_TRAINING
            joules = (work.joules - before.joules) * share
            self._noted_joules += joules
            totals = msgspec.structs.replace(
                had,
                steps=had.steps + work.steps - before.steps,
                tokens=had.tokens + round((work.tokens - before.tokens) * share),
                joules=had.joules + joules,
                emulated_s=had.emulated_s + (work.alive_ns - before.alive_ns) / NS_PER_S,
                watts=self._job.watts * share,
            )
            note = TrainingNote(lease=lease.number, totals=totals)
            self._call(group.number, note, now_ns / NS_PER_S, call)

    # Groups have chips by engine, one engine's after another's.

    def _engine_of(self, group: int) -> int:
        return self._groups.state.groups[group].chips[0] // self._partition.chips

    def _of_engine(self, chips: Sequence[int]) -> tuple[int, ...]:
        """The engine's own numbers."""
        return tuple(chip % self._partition.chips for chip in chips)

    def _leases(self) -> list[LeaseState]:
        """Of all engines, with the groups' numbers of chips."""
        found = []
        for engine, leases in enumerate([each.leases for each in self._pool.engines]):
            first = engine * self._partition.chips
            for lease in leases:
                chips, lost = (
                    tuple(first + chip for chip in each) for each in (lease.chips, lease.lost_chips)
                )
                found.append(msgspec.structs.replace(lease, chips=chips, lost_chips=lost))
        return found

    def _by_machine(self, chips: Sequence[int]) -> list[list[int]]:
        """Chips of the system, by machine: engines fill one after another (*assumed*)."""
        found: dict[int, list[int]] = {}
        for chip in chips:
            machine, place = divmod(chip, self._machine_chips)
            found.setdefault(machine, []).append(self._partition.first_chip + place)
        return list(found.values())


def check_groups(settings: SimulatedDayNight, deployment: SimulatedDeployment) -> None:
    """Raise ConfigError for groups that are not those of the deployment's engines."""
    partition, engines = deployment.cost_model.partition, deployment.replicas.count
    chips = partition.chips * engines
    if settings.chips != chips:
        raise ConfigError("chips", settings.chips, f"{chips}, of all engines")
    if engines > 1 and settings.group_chips != partition.chips:
        expected = f"{partition.chips}, all of an engine, where there are {engines}"
        raise ConfigError("group_chips", settings.group_chips, expected)


def _job_terms(settings: SimulatedDayNight, deployment: SimulatedDeployment) -> JobTerms:
    if settings.job is not None:
        return settings.job
    model = deployment.cost_model
    return JobTerms(
        system=model.system,
        model=model.model,
        recipe=TrainingRecipe(lnc=model.partition.lnc),
        calibration=model.calibration,
        rates=RecoveryRates(),
        start_s=settings.start_s,
    )


def _job_chips_min(settings: SimulatedDayNight, terms: JobTerms) -> int:
    """Chips that a training state needs; raises ConfigError where it never fits."""
    least = terms.fewest_chips
    lent = settings.lend_groups * settings.group_chips
    if least is None or least > lent:
        needs = "" if least is None else f": it needs {least} chips"
        expected = f"more, into which a training state of {terms.model.name} fits{needs}"
        raise ConfigError("lend_chips", lent, expected)
    return least

"""What a plan loses until a new replica serves: one is lost, or traffic rises at once.

The router gives each replica that serves an equal part at random, so that one that stays speaks for
all: it is simulated with its part before, with a larger one while others start, and for as long
again after, beside a new one. Requests that ran on a lost replica begin anew on the others.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ConfigError
from loadgen.measures.slo import Bound, Slo
from loadgen.workloads.traffic import Traffic
from serving.analysis.plan.class_demand import ClassBound, measure_of
from serving.analysis.plan.cold_start import ColdStart, cold_start_of
from serving.analysis.plan.plan import Plan
from serving.analysis.plan.plan_check import SizeTask, deployment_of
from serving.analysis.plan.plan_prefixes import CONVERSATION_PART, conversations
from serving.analysis.plan.plan_race import Progress, Race
from serving.analysis.plan.replica_share import Share
from serving.analysis.plan.timed_run import OutOfTime, ends_at, whole
from serving.analysis.steady_state.partitions import PartitionCandidate
from serving.simulator import Run, SimulatedDeployment, SimulationWorkers, simulate

Bools = NDArray[np.bool_]
Int64s = NDArray[np.int64]
Float64s = NDArray[np.float64]

RUNS_MAX: Final = 16
"""Seeds of a case, where few requests come to a replica in the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStartTerms:
    """`start_s`: until processes run; `surge`: the part by which requests rise at once, or None.

    Raises ConfigError for a time below 0, and a surge that is not above 0.
    """

    start_s: float
    surge: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.start_s < float("inf"):
            raise ConfigError("start-seconds", self.start_s, "from 0 on")
        if self.surge is not None and not 0 < self.surge < float("inf"):
            raise ConfigError("surge", f"{100 * self.surge:g}%", "above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitShares:
    """Of judged requests, the shares that keep a limit: of those that arrive until new replicas
    serve, and of those that arrive for as long again.
    """

    name: str
    percentile: float
    during: float
    after: float

    @property
    def kept(self) -> bool:
        """Whether enough keep it until the new ones serve."""
        return self.during >= self.percentile / 100


@dataclass(frozen=True, slots=True, kw_only=True)
class GapCase:
    """A number of replicas kept warm beside the plan's.

    So many serve `before`, `during` the cold start, and `after`; `simulated` requests of the time
    were judged, and `begun_anew` ran on the lost replica on average. No `limits`: none serves.
    """

    warm: int
    before: int
    during: int
    after: int
    simulated: int = 0
    begun_anew: float = 0.0
    limits: tuple[LimitShares, ...] = ()

    @property
    def kept(self) -> bool:
        """Whether the target is kept until the new replicas serve."""
        return bool(self.limits) and all(each.kept for each in self.limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStartGap:
    """What happens, the requests that arrive in the `gap_s` of it, and the cases simulated, by the
    replicas kept warm. Not `is_whole`: the time was over.
    """

    surge: float | None  # None: a replica is lost
    gap_s: float
    requests: float
    cases: tuple[GapCase, ...]
    is_whole: bool

    @property
    def fewest(self) -> GapCase | None:
        """With the fewest kept warm that keep the target; None where no case does."""
        return next((each for each in self.cases if each.kept), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanColdStart:
    """The time of a replica's start and what is lost meanwhile."""

    one: ColdStart
    gaps: tuple[ColdStartGap, ...]


def cold_starts_of(
    plan: Plan,
    terms: ColdStartTerms,
    *,
    workers: SimulationWorkers,
    progress: Progress = lambda _: None,
    ends_s: float = float("inf"),
) -> PlanColdStart:
    """Simulate a lost replica, and the surge if there is one, until `ends_s` of `time.monotonic`.

    Kept warm are 0, 1, 2, 4 and so on, then what lies between the last two: that more do not harm
    is assumed.
    """
    replicas = plan.fleet.replicas
    one = _cold_start(plan, terms, 1)

    def searched(surge: float | None, gap_s: float, at_most: int, after: int) -> ColdStartGap:
        factor = 1.0 if surge is None else 1.0 + surge
        lost = surge is None

        def case(warm: int) -> GapCase:
            before = replicas + warm
            given = GapCase(
                warm=warm, before=before, during=before - lost, after=max(after, before)
            )
            return _simulated(plan, given, factor, gap_s, workers, progress, ends_s)

        cases, is_whole = _fewest_warm(case, at_most)
        requests = factor * plan.question.demand.peak_rate_per_s * gap_s
        return ColdStartGap(
            surge=surge, gap_s=gap_s, requests=requests, cases=cases, is_whole=is_whole
        )

    gaps = [searched(None, one.total_s, replicas + 1, replicas)]
    if terms.surge is not None:
        after = ceil((1 + terms.surge) * replicas)  # each with the load that it has in the plan
        start = _cold_start(plan, terms, after - replicas)
        gaps.append(searched(terms.surge, start.total_s, after - replicas, after))
    return PlanColdStart(one=one, gaps=tuple(gaps))


def _cold_start(plan: Plan, terms: ColdStartTerms, replicas: int) -> ColdStart:
    check = plan.choice.check
    engines: list[PartitionCandidate] = [check.candidate]
    if check.prefill is not None:
        engines = [each for each in (check.prefill, check.candidate) for _ in range(each.replicas)]
    return cold_start_of(
        plan.question.sweep, check.precision, engines, start_s=terms.start_s, replicas=replicas
    )


def _fewest_warm(case: Callable[[int], GapCase], at_most: int) -> tuple[tuple[GapCase, ...], bool]:
    """By doubling and halving; the cases by `warm`, and whether time lasted."""
    found: dict[int, GapCase] = {}
    low, high = -1, 0  # `low` does not keep the target
    is_whole = True
    try:
        while not found.setdefault(high, case(high)).kept and high < at_most:
            low, high = high, min(at_most, max(1, 2 * high))
        while found[high].kept and high - low > 1:
            middle = (low + high) // 2
            if found.setdefault(middle, case(middle)).kept:
                high = middle
            else:
                low = middle
    except OutOfTime:
        is_whole = False
    return tuple(found[warm] for warm in sorted(found)), is_whole


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _GapRun:
    """Of each limit, whether the requests that it concerns keep it: `during` the gap and `after` it
    on a replica that stays, and after it `by_new`, on a new one: [requests].
    """

    during: tuple[Bools, ...]
    after: tuple[Bools, ...]
    by_new: tuple[Bools, ...]
    simulated: int
    begun_anew: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Dealt:
    """One replica's requests, and the class of each, [requests]; None without classes."""

    traffic: Traffic
    of_class: Int64s | None

    @classmethod
    def of(cls, whole: Share, which: Bools, *, from_s: float) -> Self:
        """Those that `which` names, [requests], with `from_s` as time 0."""
        traffic = whole.traffic.chosen(which)
        return cls(
            traffic=replace(traffic, arrival_s=traffic.arrival_s - from_s),
            of_class=None if whole.of_class is None else whole.of_class[which],
        )

    @property
    def arrival_s(self) -> Float64s:
        """Of each, [requests]."""
        return self.traffic.arrival_s

    def chosen(self, which: Bools) -> Self:
        """Some of them, a mask [requests]."""
        of_class = None if self.of_class is None else self.of_class[which]
        return replace(self, traffic=self.traffic.chosen(which), of_class=of_class)

    def of_limits(
        self, kept: Sequence[Bools], which: Bools, bounds: Sequence[Bound]
    ) -> tuple[Bools, ...]:
        """Of each bound what was `kept` by those of `which`, both [requests], that it concerns."""
        return tuple(
            each[which & self._concerned(bound)] for each, bound in zip(kept, bounds, strict=True)
        )

    def _concerned(self, bound: Bound) -> Bools:
        if self.of_class is None or not isinstance(bound, ClassBound):
            return np.ones(len(self.traffic), dtype=np.bool_)
        concerned: Bools = self.of_class == bound.number
        return concerned


@dataclass(frozen=True, slots=True, kw_only=True)
class _GapTask:
    task: SizeTask  # its demand is the one after a surge
    case: GapCase
    factor: float
    gap_s: float
    seed: int


def _simulated(
    plan: Plan,
    case: GapCase,
    factor: float,
    gap_s: float,
    workers: SimulationWorkers,
    progress: Progress,
    ends_s: float,
) -> GapCase:
    if not case.during:
        return case
    if time.monotonic() > ends_s:
        raise OutOfTime
    question = plan.question
    race = Race(question, workers, progress, ends_s=ends_s)
    race.say(f"cold start: {case.during:,} replicas for {factor:.3g} times the requests")
    task = race.task(plan.choice.setting, judged=question.check.judged, early_end=False)
    demand = question.demand.multiplied(factor, seed=question.check.seed)
    arriving = demand.peak_rate_per_s * gap_s / case.during  # at one replica
    runs = min(RUNS_MAX, max(1, ceil(question.check.judged / arriving)))
    tasks = [
        _GapTask(
            task=replace(task, demand=demand),
            case=case,
            factor=factor,
            gap_s=gap_s,
            seed=question.check.seed + number,
        )
        for number in range(demand.runs(case.before, runs))
    ]
    return _with_shares(case, question.slo, workers.map(_gap_run, tasks))


def _with_shares(case: GapCase, slo: Slo, runs: Sequence[_GapRun]) -> GapCase:
    simulated = sum(run.simulated for run in runs)
    if not simulated:
        return case
    staying = case.during / case.after
    limits = []
    for number, bound in enumerate(slo.bounds):
        during, after, new = (
            _share(np.concatenate([kept[number] for kept in each]))
            for each in zip(*((run.during, run.after, run.by_new) for run in runs), strict=True)
        )
        traffic_class = bound.traffic_class if isinstance(bound, ClassBound) else ""
        limits.append(
            LimitShares(
                name=measure_of(traffic_class, bound.name),
                percentile=bound.percentile,
                during=during,
                after=staying * after + (1 - staying) * new,
            )
        )
    return replace(
        case,
        simulated=simulated,
        begun_anew=float(np.mean([run.begun_anew for run in runs])),
        limits=tuple(limits),
    )


def _share(kept: Bools) -> float:
    return float(kept.mean()) if len(kept) else 1.0


def _gap_run(given: _GapTask) -> _GapRun:
    task, case = given.task, given.case
    own, other, begin_s = _parts(given)
    deployment = deployment_of(task, own.traffic)
    back_s = begin_s + given.gap_s
    end_s = back_s + given.gap_s
    running = own.traffic.first(0)
    if case.during < case.before:
        lost = other.chosen(other.arrival_s < begin_s)
        running = _running(deployment, lost.traffic, begin_s, task)
    chance = np.random.default_rng([given.seed, 5])
    anew = running.chosen(chance.random(len(running)) < 1 / case.during)
    new = other.chosen((other.arrival_s >= back_s) & (case.during < case.after))
    is_judged = (own.arrival_s >= begin_s) & (own.arrival_s < end_s)
    kept = _kept(deployment, own.traffic, anew, is_judged, task)
    is_new = new.arrival_s < end_s
    kept_by_new = _kept(deployment, new.traffic, new.traffic.first(0), is_new, task)
    is_during, bounds = own.arrival_s < back_s, task.slo.bounds
    return _GapRun(
        during=own.of_limits(kept, is_judged & is_during, bounds),
        after=own.of_limits(kept, is_judged & ~is_during, bounds),
        by_new=new.of_limits(kept_by_new, is_new, bounds),
        simulated=int((is_judged & is_during).sum()),
        begun_anew=len(running),
    )


def _kept(
    deployment: SimulatedDeployment, traffic: Traffic, anew: Traffic, judged: Bools, task: SizeTask
) -> Sequence[Bools]:
    """Of each limit, which of the `judged` requests of `traffic` keep it beside those that begin
    `anew`, [requests].
    """
    together, part = Traffic.merged([traffic, anew])
    is_judged = np.zeros(len(together), dtype=np.bool_)
    is_judged[part == 0] = judged
    if not judged.any():
        return [judged for _ in task.slo.bounds]
    # To the end: what waits until the others serve may keep its time between tokens.
    run = _served(deployment, together, task, judged=is_judged)
    return [~run.served.missed(bound)[part == 0] & judged for bound in task.slo.bounds]


def _served(
    deployment: SimulatedDeployment,
    traffic: Traffic,
    task: SizeTask,
    *,
    judged: Bools | None = None,
    until_s: float = float("inf"),
) -> Run:
    progress = ends_at(task.ends_at)
    return whole(
        simulate(deployment, traffic, judged=judged, until_s=until_s, progress=progress, logs=False)
    )


def _parts(given: _GapTask) -> tuple[_Dealt, _Dealt, float]:
    """The requests of a replica that stays and of one that is lost or new, and when it happens, in
    their time.

    Of all traffic of a rate and of its larger one; a router that draws a replica for each request,
    or for a conversation where it is known.
    """
    task, case, gap_s = given.task, given.case, given.gap_s
    requests = ceil(task.demand.peak_rate_per_s * gap_s)
    (whole,) = task.demand.shares(
        1, judged=max(1, requests), lead_s=task.lead_s + gap_s, seed=given.seed
    )
    begin_s = whole.warmup_s
    at_s = whole.traffic.arrival_s
    part = np.select(
        [at_s < begin_s, at_s < begin_s + gap_s],
        [1 / (given.factor * case.before), 1 / case.during],
        1 / case.after,
    )  # [requests]
    together = conversations(whole.traffic, CONVERSATION_PART * len(at_s) / case.before)
    chance = np.random.default_rng([given.seed, 4])
    drawn = chance.random(int(together.max(initial=-1)) + 1)[together]
    prefixes = task.demand.prefixes
    lead_s = task.lead_s if prefixes is None else max(task.lead_s, prefixes.lead_s)
    from_s = max(0.0, begin_s - lead_s)
    within = (at_s >= from_s) & (at_s < begin_s + 2 * gap_s + task.lead_s)
    own = _Dealt.of(whole, within & (drawn < part), from_s=from_s)
    other = _Dealt.of(whole, within & (drawn >= part) & (drawn < 2 * part), from_s=from_s)
    return own, other, begin_s - from_s


def _running(
    deployment: SimulatedDeployment, lost: Traffic, at_s: float, task: SizeTask
) -> Traffic:
    """The requests that run on the lost replica at its end, from then on."""
    if not len(lost):
        return lost
    run = _served(deployment, lost, task, until_s=at_s)
    last_s = run.served.last_token_s
    running = lost.chosen(np.isnan(last_s) | (last_s > at_s))
    return replace(running, arrival_s=np.full(len(running), at_s))

"""What a plan loses until a new replica serves: one is lost, or traffic rises at once.

The router gives each replica that serves an equal part at random, so that one that stays speaks for
all: it is simulated with its part before, with a larger one for as long as the others start, and
for as long again after. Requests that ran on a lost replica begin anew on the others.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ConfigError
from loadgen.measures.slo import Slo
from loadgen.workloads.traffic import Traffic
from serving.analysis.plan.cold_start import ColdStart, cold_start_of
from serving.analysis.plan.plan import Plan
from serving.analysis.plan.plan_check import OutOfTime, SizeTask, deployment_of, serve_share
from serving.analysis.plan.plan_demand import Share
from serving.analysis.plan.plan_growth import replica_rate_per_s, replicas_for
from serving.analysis.plan.plan_race import Progress, Race
from serving.analysis.steady_state.partitions import PartitionCandidate
from serving.simulator import SimulatedDeployment, SimulationWorkers, simulate

Bools = NDArray[np.bool_]
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

    gaps = [searched(None, one.total_s, replicas, replicas)]
    if terms.surge is not None:
        raised = (1 + terms.surge) * plan.question.demand.peak_rate_per_s
        after = max(replicas, replicas_for(raised, replica_rate_per_s(plan)))
        start = _cold_start(plan, terms, max(1, after - replicas))
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
    """One replica's: of each limit 1 for each request that kept it, else 0, [judged]; those
    `during` the gap, [judged].
    """

    kept: tuple[Float64s, ...]
    during: Bools
    begun_anew: int


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
    during = np.concatenate([run.during for run in runs])
    if not during.any():
        return case
    limits = []
    for number, bound in enumerate(slo.bounds):
        kept = np.concatenate([run.kept[number] for run in runs])
        after = kept[~during]
        limits.append(
            LimitShares(
                name=bound.name,
                percentile=bound.percentile,
                during=float(kept[during].mean()),
                after=float(after.mean()) if len(after) else 1.0,
            )
        )
    return replace(
        case,
        simulated=int(during.sum()),
        begun_anew=float(np.mean([run.begun_anew for run in runs])) * case.during,
        limits=tuple(limits),
    )


def _gap_run(given: _GapTask) -> _GapRun:
    task, case = given.task, given.case
    deployment = deployment_of(task)
    own, lost, begin_s = _parts(given)
    anew = own.first(0)
    if case.during < case.before:
        anew = _running(deployment, lost, begin_s, task)
        chance = np.random.default_rng([given.seed, 5])
        anew = anew.chosen(chance.random(len(anew)) < 1 / case.during)
    traffic, part = Traffic.merged([own, anew])
    end_s = begin_s + 2 * given.gap_s
    at_s = traffic.arrival_s
    judged = (part == 0) & (at_s >= begin_s) & (at_s < end_s)
    during = at_s[judged] < begin_s + given.gap_s
    if not judged.any():
        return _GapRun(
            kept=tuple(np.zeros(0) for _ in task.slo.bounds), during=during, begun_anew=len(anew)
        )
    share = Share(traffic=traffic, judged=judged, begin_s=begin_s, end_s=end_s, warmup_s=begin_s)
    run = serve_share(share, deployment, task, early_end=False)
    return _GapRun(kept=run.kept, during=during, begun_anew=len(anew))


def _parts(given: _GapTask) -> tuple[Traffic, Traffic, float]:
    """The requests of a replica that stays and of another one, and when it happens, in their time.

    Of all traffic of a rate and of its larger one; a router that draws a replica for each request.
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
    drawn = np.random.default_rng([given.seed, 4]).random(len(at_s))
    from_s = max(0.0, begin_s - task.lead_s)
    until_s = begin_s + 2 * gap_s + task.lead_s
    own = whole.traffic.chosen(drawn < part).window(from_s, until_s)
    other = whole.traffic.chosen((drawn >= part) & (drawn < 2 * part) & (at_s < begin_s))
    return own, other.window(from_s, until_s), begin_s - from_s


def _running(
    deployment: SimulatedDeployment, lost: Traffic, at_s: float, task: SizeTask
) -> Traffic:
    """The requests that run on the lost replica at its end, from then on."""
    if not len(lost):
        return lost
    progress = None if task.ends_at == float("inf") else task.look
    run = simulate(deployment, lost, until_s=at_s, progress=progress, logs=False)
    last_s = run.served.last_token_s
    running = lost.chosen(np.isnan(last_s) | (last_s > at_s))
    return replace(running, arrival_s=np.full(len(running), at_s))

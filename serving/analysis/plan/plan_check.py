"""A size checked against a target by simulation.

The lockstep scheduler serves the share of one or several replicas in virtual time. Tokens missing
at the end have missed the target; a size loaded above its steady state has too.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from emulator.specs.fault import Fault, FaultKind
from loadgen.measures.intervals import (
    TAIL,
    again_low,
    again_low_at_most,
    percentile_estimate,
    share_estimate,
)
from loadgen.measures.percentile import percentile
from loadgen.measures.samples import Samples
from loadgen.measures.slo import Bound, Slo
from loadgen.records.estimate import Estimate
from loadgen.workloads.traffic import Traffic
from serving.analysis.plan.class_demand import (
    ClassBound,
    ClassesDemand,
    levels_of_all,
)
from serving.analysis.plan.plan_demand import PlanDemand
from serving.analysis.plan.replica_share import Share
from serving.analysis.plan.share_run import (
    ShareRun,
    by_arrival,
    has_one_of,
    kept_of,
    measure_of_bound,
    times_of,
)
from serving.analysis.plan.size_check import Again, Check, TermCheck
from serving.analysis.plan.timed_run import ends_at, whole
from serving.analysis.steady_state.partitions import PartitionCandidate
from serving.analysis.steady_state.sweep import Sweep
from serving.simulator import (
    THIS_PROCESS,
    ReplicaSet,
    Run,
    SchedulerLimits,
    SimulatedDeployment,
    SimulationWorkers,
    TimedCall,
    known_percentile,
    simulate,
)
from serving.traffic.serving_run import Ending
from serving.wire.control_call import InjectRequest

Float64s = NDArray[np.float64]
Int64s = NDArray[np.int64]

_IN_ORDER: Final = (*(each for each in Ending if each is not Ending.HOPELESS), Ending.HOPELESS)
_LEAST: Final = 1e-3
"""Of a limit, what is reached at the least: replies of one token have no time between them."""
_ENDLESS: Final = 1e6
"""Of a limit, what tokens that never come are taken for."""
_BY_FAR: Final = 3
"""Times as many requests as may miss a limit."""
RUNS_AT_ONCE: Final = 2
"""Of several that follow each other, however many workers there are: the same everywhere."""
LEAST_LOADED: Final = "least-loaded"
SHOWN_PERCENTILES: Final = (50.0, 90.0, 99.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckTerms:
    """A rank's limits, requests to judge in each of `runs` runs, and the seed of the first run.

    With `window` runs are judged by so many requests after each other, too: of further windows a
    part of `again_tail` at most may miss a limit. `early_end` ends a run once it misses the target
    by far, which leaves percentiles open.
    """

    schedulers: SchedulerLimits
    judged: int
    seed: int
    runs: int = 1
    window: int | None = None
    again_tail: float = TAIL
    early_end: bool = True

    @property
    def seeds(self) -> range:
        """Of the runs."""
        return range(self.seed, self.seed + self.runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeTask:
    """One size to check.

    With `prefill`, a replica is a unit of pools: so many engines of either candidate, of which
    `prompts_alone` has those for prompts simulated, and nothing that decodes. `lead_s` of
    traffic surrounds the judged requests, or `before_s` are before them if that is more; a full
    replica takes `most_requests_per_s`. As the judged requests begin to arrive, engines lose so
    many chips of `lost`, by their numbers: those for prompts have the last, and what has no number
    there loses none. Of sessions those are judged that come from then on. What runs at `ends_at`,
    in Unix seconds, raises OutOfTime. With a `router` all replicas are simulated together behind
    it, or, of one unit, its engines for prompts are.
    """

    sweep: Sweep
    precision: str
    candidate: PartitionCandidate
    prefill: PartitionCandidate | None = None
    prompts_alone: bool = False
    demand: PlanDemand
    slo: Slo
    terms: CheckTerms
    replicas: int
    lead_s: float
    most_requests_per_s: float
    lost: tuple[int, ...] = ()
    before_s: float = 0.0
    ends_at: float = float("inf")
    router: str | None = None

    @property
    def replicas_at_once(self) -> int:
        """Replicas that are simulated at once, behind the router."""
        return 1 if self.router is None else self.replicas


def check_size(task: SizeTask) -> Check:
    """Simulate enough replicas to judge; raises ConfigError for a request that no rank holds, and
    OutOfTime.
    """
    return check_sizes([task], THIS_PROCESS)[0]


def check_sizes(tasks: Sequence[SizeTask], workers: SimulationWorkers) -> list[Check]:
    """`check_size` of each, the runs of all seeds side by side."""
    seeds = [(task, seed) for task in tasks for seed in task.terms.seeds]
    runs = iter(workers.map(_share_runs, seeds))
    return [_check(task, [*islice(runs, task.terms.runs)]) for task in tasks]


def check_in_turn(
    asked: Sequence[tuple[SizeTask, Sequence[int]]], workers: SimulationWorkers
) -> list[tuple[Check, int | None]]:
    """Check sizes by runs of these seeds, a few of each at a time, up to where one could not surely
    keep the target by all the runs of its terms; then also says which seed's run is worst.
    """
    runs: list[list[list[ShareRun]]] = [[] for _ in asked]
    worst: list[int | None] = [None for _ in asked]
    left = [*range(len(asked))]
    while left:
        given = [
            (asked[place][0], seed)
            for place in left
            for seed in asked[place][1][len(runs[place]) :][:RUNS_AT_ONCE]
        ]
        made = iter(workers.map(_share_runs, given))
        for place in left:
            task, seeds = asked[place]
            runs[place] += islice(made, min(RUNS_AT_ONCE, len(seeds) - len(runs[place])))
            if not _may_be_sure(task, runs[place]):
                margins = [_least_margin(task, run) for run in runs[place]]
                worst[place] = seeds[margins.index(min(margins))]
        left = [
            place
            for place in left
            if worst[place] is None and len(runs[place]) < len(asked[place][1])
        ]
    return [
        (_check(task, of_task), seed)
        for (task, _), of_task, seed in zip(asked, runs, worst, strict=True)
    ]


def check_by_seed(
    tasks: Sequence[SizeTask], seed: int, workers: SimulationWorkers
) -> list[tuple[Check, bool]]:
    """Check sizes by one run each, of the same seed; True: with further runs, up to those of its
    terms, it may yet surely keep the target.
    """
    runs = workers.map(_share_runs, [(task, seed) for task in tasks])
    return [
        (_check(task, [run]), _may_be_sure(task, [run]))
        for task, run in zip(tasks, runs, strict=True)
    ]


def _may_be_sure(task: SizeTask, runs: Sequence[Sequence[ShareRun]]) -> bool:
    """Whether all runs of the terms may show it, of which these are some."""
    if any(run.ending is Ending.HOPELESS for run in chain.from_iterable(runs)):
        return False
    return all(
        _may_pass(task, _window_margins(task, runs, bound), len(runs)) for bound in task.slo.bounds
    )


def _may_pass(task: SizeTask, known: Sequence[float], runs: int) -> bool:
    """Whether the margins of all runs of the terms may bound a limit, of which these are those
    `known` of so many.
    """
    count = round(len(known) * task.terms.runs / runs)
    if count < 2:
        return True
    most = again_low_at_most(known, count, tail=task.terms.again_tail)
    return min(most, *known) >= 0


def _least_margin(task: SizeTask, run: Sequence[ShareRun]) -> float:
    """How far a window is from a limit, of that which is the nearest or the farthest beyond it."""
    if any(share.ending is Ending.HOPELESS for share in run):
        return -math.inf
    margins = (_window_margins(task, [run], bound) for bound in task.slo.bounds)
    return min(chain.from_iterable(margins), default=math.inf)


def _share_runs(given: tuple[SizeTask, int]) -> list[ShareRun]:
    task, seed = given
    judged, lead_s, before_s = task.terms.judged, task.lead_s, task.before_s
    replicas = task.replicas // task.replicas_at_once
    if task.lost:  # turns may have come before it that would not have, had replies been the latest
        judged += math.ceil(task.demand.ramp_s * task.demand.peak_rate_per_s / replicas)
    shares = task.demand.shares(
        replicas, judged=judged, lead_s=lead_s, seed=seed, before_s=before_s
    )
    deployment = deployment_of(task, shares[0].traffic)
    if task.prompts_alone:
        parts = [deployment.parts_of(share.traffic)[-1] for share in shares]
        deployment = parts[0][0]
        shares = tuple(
            replace(share, traffic=prompts)
            for share, (_, prompts) in zip(shares, parts, strict=True)
        )
    # One of several may miss what all together keep, so that none of them settles it alone.
    early_end = task.terms.early_end and len(shares) == 1 and judged == task.terms.judged
    return [_serve(share, deployment, task, early_end=early_end) for share in shares]


def _check(task: SizeTask, of_seeds: Sequence[Sequence[ShareRun]]) -> Check:
    limits = _deployment(task, task.candidate).limits
    runs = [*chain.from_iterable(of_seeds)]
    first = runs[0]
    hit_share = sum(run.hit_tokens for run in runs) / max(1, sum(r.prompt_tokens for r in runs))
    times_s = {name: np.concatenate([run.times_s[name] for run in runs]) for name in first.times_s}
    return Check(
        precision=task.precision,
        candidate=task.candidate,
        prefill=task.prefill,
        prefill_policy=task.terms.schedulers.prefill_policy,
        limits=task.terms.schedulers.batch,
        replicas=task.replicas,
        simulated_replicas=len(runs),
        requests=len(times_s["ttft"]),
        simulated_requests=sum(run.simulated_requests for run in runs),
        begin_s=first.begin_s,
        end_s=first.end_s,
        warmup_s=first.warmup_s,
        terms=_terms(task, of_seeds, times_s),
        percentiles_s={
            name: tuple(_percentile(each, percentile) for percentile in SHOWN_PERCENTILES)
            for name, each in times_s.items()
        },
        replica_chip_watts=float(np.mean([run.chip_watts for run in runs])) / task.replicas_at_once,
        busy_share=float(np.mean([run.busy_share for run in runs])),
        throttled_share=float(np.mean([run.throttled_share for run in runs])),
        hit_share=None if task.demand.prefixes is None else hit_share,
        load_share=task.demand.peak_rate_per_s / task.replicas / task.most_requests_per_s,
        preemptions=sum(run.preemptions for run in runs),
        kv_used_share=max(run.kv_blocks_used_max for run in runs) / limits.kv_blocks_per_rank,
        steps=sum(run.steps for run in runs),
        ending=max((run.ending for run in runs), key=_IN_ORDER.index),
    )


def deployment_of(task: SizeTask, traffic: Traffic) -> SimulatedDeployment:
    """One replica, or one unit of pools, for such traffic; with a router all replicas."""
    deployment = _deployment(task, task.candidate)
    if task.prefill is None and task.router is not None:
        return replace(deployment, replicas=ReplicaSet(count=task.replicas, router=task.router))
    if task.prefill is None:
        return deployment
    router = task.router or (LEAST_LOADED if traffic.blocks is None else "prefix-aware")
    replicas = ReplicaSet(count=task.prefill.replicas, router=router)
    return replace(
        deployment,
        replicas=ReplicaSet(count=task.candidate.replicas, router=LEAST_LOADED),
        prefill=replace(_deployment(task, task.prefill), replicas=replicas),
    )


def _deployment(task: SizeTask, candidate: PartitionCandidate) -> SimulatedDeployment:
    """One engine of a partition."""
    schedulers = replace(task.terms.schedulers, max_model_len=task.sweep.model.max_context_tokens)
    return SimulatedDeployment(
        cost_model=task.sweep.cost_model(task.precision, candidate),
        limits=schedulers.with_kv(candidate.kv_capacity_tokens),
    )


def _serve(
    share: Share, deployment: SimulatedDeployment, task: SizeTask, *, early_end: bool
) -> ShareRun:
    classes = len(task.demand.classes) if isinstance(task.demand, ClassesDemand) else 1
    timed = simulate(
        deployment,
        share.traffic,
        judged=share.judged,
        window_s=share.judged_s,
        levels=[*map(missed_by_far, levels_of_all(task.demand, task.slo))] if early_end else (),
        until_s=share.judged_s[1] + 2 * task.lead_s + _longest_allowed_s(share, task.slo, classes),
        calls=_losses(task.lost, at_s=share.judged_s[0]),
        progress=ends_at(task.ends_at),
        logs=share.keeps_tokens(lost=bool(task.lost)),
    )
    run = whole(timed)
    served = run.served
    order = _judged_by_arrival(run, share, task)
    those = np.flatnonzero(run.judged)[order]
    began = those[~np.isnan(served.first_token_s[those])]
    begin_s, end_s, warmup_s = share.begin_s, share.end_s, share.warmup_s
    came_s = served.arrival_s[those]
    if share.traffic.sessions is not None and not np.isnan(came_s).all():
        begin_s, end_s = float(np.nanmin(came_s)), float(np.nanmax(came_s))
        warmup_s = begin_s
    assert served.hits is not None
    of_class = None if share.of_class is None else share.of_class[run.sent][those]
    has_one = has_one_of(run, order, task.demand, of_class)
    return ShareRun(
        simulated_requests=len(share.traffic),
        begin_s=begin_s,
        end_s=end_s,
        warmup_s=warmup_s,
        kept=tuple(kept_of(run, order, bound, of_class) for bound in task.slo.bounds),
        times_s=times_of(run, order, has_one),
        has_one=has_one,
        hit_tokens=int(served.hits[began].sum()),
        prompt_tokens=int(share.traffic.prompt_tokens[began].sum()),
        chip_watts=run.chip_watts,
        busy_share=run.busy_share,
        throttled_share=run.throttled_share,
        preemptions=served.preemptions,
        kv_blocks_used_max=served.kv_blocks_used_max,
        steps=served.steps,
        ending=served.ending,
    )


def _judged_by_arrival(run: Run, share: Share, task: SizeTask) -> Int64s:
    """Places among the judged requests; of sessions after a loss only of those that came then."""
    if share.traffic.sessions is None or not task.lost:
        return by_arrival(run)
    return by_arrival(run, from_s=share.judged_s[0], most=task.terms.judged)


def _losses(lost: Sequence[int], *, at_s: float) -> list[TimedCall]:
    """Of each engine's first chips."""
    return [
        TimedCall(
            at_s=at_s,
            call=InjectRequest(fault=Fault(kind=FaultKind.LOSE_CHIP, chip=chip)),
            replica=engine,
        )
        for engine, chips in enumerate(lost)
        for chip in range(chips)
    ]


def missed_by_far(bound: Bound) -> Bound:
    """The level of a run that another seed's would not lift to `bound`."""
    may_miss = 1 - bound.share
    return replace(bound, percentile=100 * (1 - min(_BY_FAR * may_miss, (1 + may_miss) / 2)))


def _longest_allowed_s(share: Share, slo: Slo, classes: int) -> float:
    """Latest end of the longest judged request within the target, from its arrival; infinite where
    one of the `classes` has no such end.
    """
    outputs = share.traffic.output_tokens[share.judged]
    limits = {
        name: [bound.limit_s for bound in slo.bounds if bound.name == name]
        for name in ("ttft", "tpot")
    }
    if not all(len(each) == classes for each in limits.values()) or not len(outputs):
        return float("inf")
    return max(limits["ttft"]) + max(limits["tpot"]) * float(outputs.max() - 1)


def _terms(
    task: SizeTask, of_seeds: Sequence[Sequence[ShareRun]], times_s: dict[str, Float64s]
) -> tuple[TermCheck, ...]:
    checks = []
    runs = [*chain.from_iterable(of_seeds)]
    for number, bound in enumerate(task.slo.bounds):
        kept = [run.kept[number] for run in runs]
        share = _share(np.concatenate(kept), runs)
        margins = _window_margins(task, of_seeds, bound)
        checks.append(
            TermCheck(
                name=bound.name,
                traffic_class=bound.traffic_class if isinstance(bound, ClassBound) else "",
                requests=sum(map(len, kept)),
                limit_s=bound.limit_s,
                percentile=bound.percentile,
                reached_s=known_percentile(times_s[measure_of_bound(bound)], bound.percentile),
                share=share.value,
                share_low=share.low,
                share_high=share.high,
                again=_again(task, of_seeds, margins, bound, requests=sum(map(len, kept))),
            )
        )
    return tuple(checks)


def _again(
    task: SizeTask,
    of_seeds: Sequence[Sequence[ShareRun]],
    margins: Sequence[float],
    bound: Bound,
    *,
    requests: int,
) -> Again | None:
    """Of windows of which so many `requests` have the limit; None for fewer than two."""
    window = task.terms.window
    low = again_low(margins, tail=task.terms.again_tail)
    if low is None or window is None:
        return None
    likely = math.fsum(margins) / len(margins)
    most_s, likely_s, least_s = (
        bound.limit_s * math.exp(-each)
        for each in (min(low, *margins), likely, max(2 * likely - low, *margins))
    )
    judged = sum(share.judged for run in of_seeds for share in run)
    windows = sum(_windows(run, window) for run in of_seeds)
    return Again(
        requests=min(window, judged // windows),  # a trace's window may have fewer
        of_class=round(requests / windows) if isinstance(bound, ClassBound) else None,
        confidence=1 - task.terms.again_tail,
        windows=len(margins),
        spread=float(np.std(margins, ddof=1)),
        least_s=least_s,
        likely_s=likely_s,
        most_s=most_s,
    )


def _windows(run: Sequence[ShareRun], window: int) -> int:
    return max(1, sum(share.judged for share in run) // window)


def _window_margins(
    task: SizeTask, runs: Sequence[Sequence[ShareRun]], bound: Bound
) -> list[float]:
    """Of each window, of the runs of one seed together, the logarithm of the limit to what its
    requests reach at the percentile: above 0 if it is kept. None of a run that was broken off, and
    of a window without a request that has the limit.
    """
    window, found, measure = task.terms.window, list[float](), measure_of_bound(bound)
    if window is None:
        return found
    for run in runs:
        windows = _windows(run, window)
        for parts in zip(*(share.in_windows(measure, windows) for share in run), strict=True):
            reached_s = _reached_s(np.concatenate(parts), bound)
            if reached_s is not None:
                found.append(math.log(bound.limit_s / max(reached_s, _LEAST * bound.limit_s)))
    return found


def _reached_s(times_s: Float64s, bound: Bound) -> float | None:
    """Endless where tokens never come; None of no requests, and where it is not known."""
    known = len(times_s) and not np.isnan(times_s).any()
    return min(percentile(times_s, bound.percentile), _ENDLESS * bound.limit_s) if known else None


def _share(kept: Float64s, runs: Sequence[ShareRun]) -> Estimate:
    if not len(kept):  # of a rare class: nothing is known
        return Estimate(value=1.0, low=0.0, high=1.0)
    if any(run.ending is Ending.HOPELESS for run in runs):
        return Estimate(value=float(kept.mean()))
    return share_estimate(Samples.in_order(kept))


def _percentile(times_s: Float64s, percentile: float) -> Estimate | None:
    """Of requests by arrival, [requests]; None where it is not known."""
    value = known_percentile(times_s, percentile)
    if value is None or not np.isfinite(times_s).all():
        return None if value is None else Estimate(value=value)
    around = percentile_estimate(Samples.in_order(times_s), np.sort(times_s), percentile)
    low = None if around.low is None else min(around.low, value)
    high = None if around.high is None else max(around.high, value)
    return Estimate(value=value, low=low, high=high)

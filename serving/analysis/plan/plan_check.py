"""A size checked against a target by simulation.

The lockstep scheduler serves the share of one or several replicas in virtual time. Tokens missing
at the end have missed the target; a size loaded above its steady state has too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from emulator.specs.fault import Fault, FaultKind
from loadgen.measures.intervals import again_low, percentile_estimate, share_estimate
from loadgen.measures.samples import Samples
from loadgen.measures.slo import Bound, Slo
from loadgen.records.estimate import Estimate
from loadgen.workloads.traffic import Traffic
from reporting.numbers import four_digits
from serving.analysis.plan.class_demand import (
    ClassBound,
    ClassesDemand,
    levels_of_all,
    measure_of,
    measure_words,
)
from serving.analysis.plan.plan_demand import PlanDemand, Share
from serving.analysis.plan.plan_options import unit_chips
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
from serving.traffic.engine_limits import BatchLimits
from serving.traffic.serving_run import Ending
from serving.wire.control_call import InjectRequest

Float64s = NDArray[np.float64]
Int64s = NDArray[np.int64]

_IN_ORDER: Final = (*(each for each in Ending if each is not Ending.HOPELESS), Ending.HOPELESS)
_BY_FAR: Final = 3
"""Times as many requests as may miss a limit."""
LEAST_LOADED: Final = "least-loaded"
SHOWN_PERCENTILES: Final = (50.0, 90.0, 99.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckTerms:
    """A rank's limits, requests to judge in each of `runs` runs, and the seed of the first run.

    With `window` runs are judged by so many requests after each other, too. `early_end` ends a run
    once it misses the target by far, which leaves percentiles open.
    """

    schedulers: SchedulerLimits
    judged: int
    seed: int
    runs: int = 1
    window: int | None = None
    early_end: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TermCheck:
    """One limit of the target; `reached_s` is None when the run ended before it was known.

    It is judged by `requests`: all, or those of a traffic class. `share` of these kept it, and with
    95 % confidence `share_low` to `share_high` do: requests that wait for each other count for
    fewer. After an early end it is an upper bound, without an interval. With the same confidence
    one more window of requests keeps it for at least `again_low` of them; None for fewer than two
    windows.
    """

    name: str
    limit_s: float
    percentile: float
    reached_s: float | None
    share: float
    share_low: float | None
    share_high: float | None
    again_low: float | None = None
    requests: int = 0
    traffic_class: str = ""

    @property
    def measure(self) -> str:
        """As `ttft`, or `chat ttft` of a class."""
        return measure_of(self.traffic_class, self.name)

    @property
    def label(self) -> str:
        """As `TTFT`, or `chat TTFT`."""
        return measure_words(self.measure)

    @property
    def kept(self) -> bool:
        """Whether enough requests kept the limit."""
        return self.share >= self.percentile / 100

    @property
    def share_words(self) -> str:
        """As `TTFT at most 92.5 % of 99 %`."""
        bound = "at most " if self.share_high is None else ""
        return f"{self.label} {bound}{100 * self.share:.4g} % of {self.percentile:g} %"

    @property
    def reached_words(self) -> str:
        """As `TTFT p99 734.2 ms`."""
        reached = (
            "not known" if self.reached_s is None else f"{four_digits(1e3 * self.reached_s)} ms"
        )
        return f"{self.label} p{self.percentile:g} {reached}"

    @property
    def is_sure(self) -> bool:
        """Whether the interval leaves no doubt of `kept`."""
        if self.share_low is None or self.share_high is None:
            return True
        wanted = self.percentile / 100
        return self.share_low >= wanted or self.share_high < wanted

    @property
    def is_surely_kept(self) -> bool:
        """Whether no interval leaves a doubt that it is; a bound does."""
        lows = (self.share_low, self.share_low if self.again_low is None else self.again_low)
        return all(low is not None and low >= self.percentile / 100 for low in lows)

    @property
    def may_be_kept(self) -> bool:
        """Whether the interval leaves room for `kept`."""
        return self.share_high is not None and self.share_high >= self.percentile / 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One size, simulated.

    Attributes:
        prefill_policy, limits: of the schedulers.
        requests: judged ones; `simulated_requests` include those around them.
        begin_s, end_s: of the judged arrivals, in the traffic's own time.
        percentiles_s: TTFT, TPOT, E2E of judged requests, and of each class's, at
            `SHOWN_PERCENTILES`, with their 95 % confidence; None: not known.
        replica_chip_watts: of all chips of a replica while judged requests arrive.
        busy_share: of that time, the part with a step.
        throttled_share: of steps' time, the lengthening by power limits.
        hit_share: of prompt tokens, found in prefix caches; None where prompts share nothing.
        load_share: peak rate over the replicas' highest steady-state rate.
        kv_used_share: maximum over a rank's pool.
    """

    precision: str
    candidate: PartitionCandidate
    prefill: PartitionCandidate | None
    prefill_policy: str | None
    limits: BatchLimits
    replicas: int
    simulated_replicas: int
    requests: int
    simulated_requests: int
    begin_s: float
    end_s: float
    warmup_s: float
    terms: tuple[TermCheck, ...]
    percentiles_s: dict[str, tuple[Estimate | None, ...]]
    replica_chip_watts: float
    busy_share: float
    throttled_share: float
    hit_share: float | None
    load_share: float
    preemptions: int
    kv_used_share: float
    steps: int
    ending: Ending

    @property
    def meets(self) -> bool:
        """Whether every limit was kept, at a load that can last."""
        return self.load_share <= 1 and all(term.kept for term in self.terms)

    @property
    def surely_meets(self) -> bool:
        """Whether it does with 95 % confidence."""
        return self.load_share <= 1 and all(term.is_surely_kept for term in self.terms)

    @property
    def may_meet(self) -> bool:
        """Whether more requests might show that it does."""
        return self.load_share <= 1 and all(term.may_be_kept for term in self.terms)

    @property
    def chips(self) -> int:
        """In service."""
        return self.replicas * self.replica_chips

    @property
    def replica_chips(self) -> int:
        """Of one replica, or unit of pools."""
        return unit_chips(self.candidate, self.prefill)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeTask:
    """One size to check.

    With `prefill`, a replica is a unit of pools: so many engines of either candidate. `lead_s` of
    traffic surrounds the judged requests, or `before_s` are before them if that is more; a full
    replica takes `most_requests_per_s`. As the judged requests begin to arrive, engines lose so
    many chips of `lost`, by their numbers: those for prompts have the last, and what has no number
    there loses none. What runs at `ends_at`, in Unix seconds, raises OutOfTime.
    """

    sweep: Sweep
    precision: str
    candidate: PartitionCandidate
    prefill: PartitionCandidate | None = None
    demand: PlanDemand
    slo: Slo
    terms: CheckTerms
    replicas: int
    lead_s: float
    most_requests_per_s: float
    lost: tuple[int, ...] = ()
    before_s: float = 0.0
    ends_at: float = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShareRun:
    """What the run of one replica's share shows of its judged requests.

    Attributes:
        kept: of each limit 1 for each request that kept it, else 0, by arrival: [judged], or those
            of the limit's class.
        times_s: TTFT, TPOT, E2E, of all and of each class: [requests that have one].
        hit_tokens, prompt_tokens: of the judged requests that have a first token.
    """

    simulated_requests: int
    begin_s: float
    end_s: float
    warmup_s: float
    kept: tuple[Float64s, ...]
    times_s: dict[str, Float64s]
    hit_tokens: int
    prompt_tokens: int
    chip_watts: float
    busy_share: float
    throttled_share: float
    preemptions: int
    kv_blocks_used_max: int
    steps: int
    ending: Ending


def check_size(task: SizeTask) -> Check:
    """Simulate enough replicas to judge; raises ConfigError for a request that no rank holds, and
    OutOfTime.
    """
    return check_sizes([task], THIS_PROCESS)[0]


def check_sizes(tasks: Sequence[SizeTask], workers: SimulationWorkers) -> list[Check]:
    """`check_size` of each, the runs of all seeds side by side."""
    seeds = [
        (task, seed)
        for task in tasks
        for seed in range(task.terms.seed, task.terms.seed + task.terms.runs)
    ]
    runs = iter(workers.map(_share_runs, seeds))
    return [_check(task, [*chain.from_iterable(islice(runs, task.terms.runs))]) for task in tasks]


def _share_runs(given: tuple[SizeTask, int]) -> list[ShareRun]:
    task, seed = given
    judged, lead_s, before_s = task.terms.judged, task.lead_s, task.before_s
    shares = task.demand.shares(
        task.replicas, judged=judged, lead_s=lead_s, seed=seed, before_s=before_s
    )
    deployment = deployment_of(task, shares[0].traffic)
    # One of several may miss what all together keep, so that none of them settles it alone.
    early_end = task.terms.early_end and len(shares) == 1
    return [_serve(share, deployment, task, early_end=early_end) for share in shares]


def _check(task: SizeTask, runs: Sequence[ShareRun]) -> Check:
    limits = _deployment(task, task.candidate).limits
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
        terms=_terms(task, runs, times_s),
        percentiles_s={
            name: tuple(_percentile(each, percentile) for percentile in SHOWN_PERCENTILES)
            for name, each in times_s.items()
        },
        replica_chip_watts=float(np.mean([run.chip_watts for run in runs])),
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
    """One replica, or one unit of pools, for such traffic."""
    deployment = _deployment(task, task.candidate)
    if task.prefill is None:
        return deployment
    router = LEAST_LOADED if traffic.blocks is None else "prefix-aware"
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
        levels=[*map(_missed_by_far, levels_of_all(task.demand, task.slo))] if early_end else (),
        until_s=share.judged_s[1] + 2 * task.lead_s + _longest_allowed_s(share, task.slo, classes),
        calls=_losses(task.lost, at_s=share.judged_s[0]),
        progress=ends_at(task.ends_at),
        logs=False,
    )
    run = whole(timed)
    served = run.served
    began = run.judged & ~np.isnan(served.first_token_s)
    assert served.hits is not None
    of_class = None if share.of_class is None else share.of_class[run.sent][run.judged]
    return ShareRun(
        simulated_requests=len(share.traffic),
        begin_s=share.begin_s,
        end_s=share.end_s,
        warmup_s=share.warmup_s,
        kept=tuple(_kept(run, bound, of_class) for bound in task.slo.bounds),
        times_s=_times_s(run, task.demand, of_class),
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


def _missed_by_far(bound: Bound) -> Bound:
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
    task: SizeTask, runs: Sequence[ShareRun], times_s: dict[str, Float64s]
) -> tuple[TermCheck, ...]:
    checks, window = [], task.terms.window
    for number, bound in enumerate(task.slo.bounds):
        kept = [run.kept[number] for run in runs]
        share = _share(np.concatenate(kept), runs)
        windows = [
            part.mean()
            for of_run in kept
            if window is not None and len(of_run)
            for part in np.array_split(of_run, max(1, len(of_run) // window))
        ]
        traffic_class = bound.traffic_class if isinstance(bound, ClassBound) else ""
        checks.append(
            TermCheck(
                name=bound.name,
                traffic_class=traffic_class,
                requests=sum(map(len, kept)),
                limit_s=bound.limit_s,
                percentile=bound.percentile,
                reached_s=known_percentile(
                    times_s[measure_of(traffic_class, bound.name)], bound.percentile
                ),
                share=share.value,
                share_low=share.low,
                share_high=share.high,
                again_low=again_low(windows),
            )
        )
    return tuple(checks)


def _times_s(run: Run, demand: PlanDemand, of_class: Int64s | None) -> dict[str, Float64s]:
    several = run.served.traffic.output_tokens[run.judged] > 1
    times_s = {"ttft": run.ttft_s, "tpot": run.tpot_s, "e2e": run.e2e_s}  # each [judged]
    has_one = {name: several if name == "tpot" else np.full(len(several), True) for name in times_s}
    found = {name: each[has_one[name]] for name, each in times_s.items()}
    if isinstance(demand, ClassesDemand):
        for number, traffic_class in enumerate(demand.classes):
            for name, each in times_s.items():
                own = has_one[name] & (of_class == number)
                found[measure_of(traffic_class.name, name)] = each[own]
    return found


def _kept(run: Run, bound: Bound, of_class: Int64s | None) -> Float64s:
    """1 for each judged request that kept the bound, else 0, by arrival: [judged of its class]."""
    served = run.served
    late = served.missed(bound) | served.failed
    if served.ending is Ending.TIME_UP:
        late |= np.isnan(served.first_token_s) if bound.name == "ttft" else ~served.finished
    kept = (~late[run.judged]).astype(np.float64)
    return kept[of_class == bound.number] if isinstance(bound, ClassBound) else kept


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

"""The curve's partitions under a latency target: the highest rate that keeps it, by simulation.

The curve is drawn from mean steps; queues, percentiles and arrivals are not in it. Here each of its
partitions serves a machine's worth of Poisson traffic in virtual time, as `plan` does it, and the
rate that is lost is divided over what loses it.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain, islice, zip_longest
from math import ceil
from typing import Final

from emulator.power.efficiency import WATTS_PER_MEGAWATT, PowerBasis
from emulator.power.system_power import SystemPower
from emulator.specs.system import SystemSpec
from loadgen.measures.slo import Slo
from loadgen.workloads.length_pairs import LengthPairs
from reporting.numbers import four_digits
from serving.analysis.pareto.pareto import MachineCurve, Pareto
from serving.analysis.plan.night import deepseek_day
from serving.analysis.plan.plan_check import SHOWN_PERCENTILES, CheckTerms, SizeTask
from serving.analysis.plan.plan_demand import RateDemand
from serving.analysis.plan.plan_margins import (
    RateKept,
    best_rates,
    highest_rates,
    rate_tasks,
    sure_rates,
)
from serving.analysis.plan.plan_options import Option, OptionTerms
from serving.analysis.plan.plan_pools import pool_option
from serving.analysis.plan.plan_question import PlanQuestion, SearchTerms
from serving.analysis.plan.plan_race import NO_POLICY, POLICIES_KEPT, Progress, Race
from serving.analysis.plan.plan_setting import Setting
from serving.analysis.plan.plan_task import FRESH_TIMES
from serving.analysis.plan.size_check import Check
from serving.analysis.steady_state.envelope import Envelope
from serving.analysis.steady_state.operating_point import OperatingPoint
from serving.analysis.steady_state.sweep import Sweep
from serving.simulator import THIS_PROCESS, SimulationWorkers

AT_TARGET: Final = 4
"""Partitions of a precision, the best at the target's tokens/s/user, beside the envelope's."""
_MEDIAN: Final = SHOWN_PERCENTILES.index(50.0)


class RateLoss(StrEnum):
    """What takes a part of the steady state's rate, in the order of the ladder."""

    INTERFERENCE = "prefill interference"
    QUEUEING = "queueing"
    SPREAD = "spread of lengths"
    BURSTS = "burstiness"
    CERTAINTY = "certainty"


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveTarget:
    """What the curve's partitions are simulated under; `search` has the budget and the policies."""

    slo: Slo
    lengths: LengthPairs
    lengths_in_words: str
    check: CheckTerms
    search: SearchTerms

    def question(self, sweep: Sweep, rate_per_s: float) -> PlanQuestion:
        """A plan's, for one rate; raises ConfigError for lengths of which none fits the context."""
        demand = RateDemand(
            rate_per_s=rate_per_s,
            lengths=self.lengths,
            context_tokens=sweep.model.max_context_tokens,
            lengths_in_words=self.lengths_in_words,
            lengths_seed=self.check.seed,
        )
        return PlanQuestion(
            sweep=sweep,
            demand=demand,
            slo=self.slo,
            day=deepseek_day(),
            check=self.check,
            search=self.search,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedPoint:
    """A machine full of one partition, or of pools, at the highest rate within a target.

    `rate` keeps it with the certainty that a plan asks, `kept` by the shorter runs of its headroom.
    `rungs` are rates under traffic between the steady state's and the one asked for, by what each
    adds to the one before; empty where no rate keeps the target, or the time was over.
    """

    question: PlanQuestion
    setting: Setting
    rate: RateKept
    kept: RateKept
    rungs: Mapping[RateLoss, RateKept] = field(default_factory=dict)

    @property
    def system(self) -> SystemSpec:
        """The machine."""
        return self.question.sweep.system

    @property
    def steady_requests_per_s(self) -> float:
        """Of the mean step within the target."""
        return self.setting.replicas * self.setting.option.requests_per_s

    @property
    def tokens_per_s_per_user(self) -> float | None:
        """One over the simulated TPOT's median; None: no rate keeps the target, or no reply has a
        second token.
        """
        if self.rate.check is None:
            return None
        tpot_s = self.rate.check.percentiles_s["tpot"][_MEDIAN]
        return None if tpot_s is None else 1 / tpot_s.value

    def tokens_per_s_per_mw(self, basis: PowerBasis) -> float:
        """Output tokens; the drawn watts are those of the simulation at that rate."""
        watts = self.setting.option.point.watts(basis)
        if basis is PowerBasis.DRAWN and self.rate.check is not None:
            watts = self._drawn_watts(self.rate.check)
        return self._tokens_per_s(self.rate.requests_per_s) / watts * WATTS_PER_MEGAWATT

    def steady_tokens_per_s_per_mw(self, basis: PowerBasis) -> float:
        """By the mean step within the target."""
        watts = self.setting.option.point.watts(basis)
        return self._tokens_per_s(self.steady_requests_per_s) / watts * WATTS_PER_MEGAWATT

    def _tokens_per_s(self, requests_per_s: float) -> float:
        return requests_per_s * self.setting.option.point.output_tokens

    def _drawn_watts(self, check: Check) -> float:
        sweep, chips = self.question.sweep, self.system.chips.count
        replica = sweep.replica(check.precision, check.candidate)
        idle_watts = (chips - self.setting.chips) * replica.idle_chip_watts
        chip_watts = self.setting.replicas * check.replica_chip_watts + idle_watts
        power = SystemPower(self.system)
        return power.facility_watts(chip_watts, chips=chips, season=sweep.season).total_watts

    def losses(self) -> dict[RateLoss, float]:
        """Shares of the steady state's rate; below 0 where more requests are served. Empty where a
        rate is not known.
        """
        rates = {**self.rungs, RateLoss.BURSTS: self.kept, RateLoss.CERTAINTY: self.rate}
        if not self.rungs or not all(rate.is_found for rate in rates.values()):
            return {}
        steady = before = self.steady_requests_per_s
        found = {}
        for loss, rate in rates.items():
            found[loss] = (before - rate.requests_per_s) / steady
            before = rate.requests_per_s
        return found

    @property
    def largest_loss(self) -> RateLoss | None:
        """None where losses are not known, or nothing is lost."""
        losses = self.losses()
        largest = max(losses, key=lambda each: losses[each], default=None)
        return None if largest is None or losses[largest] <= 0 else largest

    @property
    def is_whole(self) -> bool:
        """Whether its rate is found, and what takes the rest."""
        return self.rate.is_found and (bool(self.losses()) or not self.rate.requests_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedCurve:
    """The points found, of `candidates` partitions, in the order of their simulation.

    `unable`: further ones that miss the target on an idle machine. Not `is_whole`: the budget or an
    interrupt ended the search.
    """

    target: CurveTarget
    points: tuple[SimulatedPoint, ...]
    candidates: int
    unable: int
    is_whole: bool

    def of(self, machine: MachineCurve, basis: PowerBasis) -> list[SimulatedPoint]:
        """Those of a machine that keep the target at some rate, the best first."""
        kept = [
            each
            for each in self.points
            if each.rate.requests_per_s and each.system.name == machine.name
        ]
        return sorted(kept, key=lambda each: each.tokens_per_s_per_mw(basis), reverse=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A partition of a machine's curve, and what is asked of it: its steady state's rate."""

    option: Option
    question: PlanQuestion

    def settings(self) -> list[Setting]:
        """The whole machine with each policy."""
        option, replicas = self.option, _replicas(self.option)
        policies = self.question.search.policies[:POLICIES_KEPT]
        return [
            Setting(option=option, policy=policy, replicas=replicas)
            for policy in (NO_POLICY if option.is_pooled else policies)
        ]

    def with_policy_of(self, check: Check | None) -> Setting:
        """The setting that a check is of; any without one."""
        settings = self.settings()
        if check is None:
            return settings[0]
        return next(each for each in settings if each.policy == check.prefill_policy)


def simulated_curve(
    found: Pareto,
    target: CurveTarget,
    *,
    workers: SimulationWorkers = THIS_PROCESS,
    progress: Progress = lambda _: None,
) -> SimulatedCurve:
    """Simulate the most promising partition of each machine and precision, then the next ones.

    An interrupt, or the end of the budget, ends it with the points found so far.
    """
    begun_s = time.monotonic()
    ends_s = begun_s + target.search.budget_s
    points: list[SimulatedPoint] = []
    candidates: list[_Candidate] = []
    unable = 0

    def say(words: str) -> None:
        progress(f"{time.monotonic() - begun_s:6.1f} s  {words}")

    try:
        candidates, unable = _candidates(found, target)
        say(f"{len(candidates):,} partitions of the curve to simulate")
        at_once = ceil(workers.count / POLICIES_KEPT)
        for first in range(0, len(candidates), at_once):
            known = _rated(candidates[first : first + at_once], workers, ends_s)
            points += known
            points[len(points) - len(known) :] = _explained(known, target, workers, ends_s)
            for point in known:
                say(_in_words(point))
            if time.monotonic() > ends_s:
                break
    except KeyboardInterrupt:
        workers.stop()
    return SimulatedCurve(
        target=target,
        points=tuple(points),
        candidates=len(candidates),
        unable=unable,
        is_whole=len(points) == len(candidates) and all(each.is_whole for each in points),
    )


def _candidates(found: Pareto, target: CurveTarget) -> tuple[list[_Candidate], int]:
    """Of each machine and precision the most promising first, all of them by turns; and how many
    miss the target on an idle machine.
    """
    groups: list[list[_Candidate]] = []
    unable = 0
    for machine in found.machines:
        terms = OptionTerms.of(
            machine.sweep,
            target.question(machine.sweep, 1.0).demand,
            target.slo,
            seats=target.check.schedulers.max_num_seqs,
        )
        for points in _by_precision(machine.points):
            options = [_option(terms, each) for each in _chosen(points, found.basis, target.slo)]
            able = [each for each in options if each is not None and each.meets]
            able.sort(key=lambda each: _replicas(each) * each.promise(target.slo), reverse=True)
            unable += len(options) - len(able)
            groups.append([_candidate(each, machine.sweep, target) for each in able])
    by_turns = chain.from_iterable(zip_longest(*groups))
    return [each for each in by_turns if each is not None], unable


def _by_precision(points: Sequence[OperatingPoint]) -> list[list[OperatingPoint]]:
    found: dict[str, list[OperatingPoint]] = {}
    for point in points:
        found.setdefault(point.precision, []).append(point)
    return [*found.values()]


def _chosen(
    points: Sequence[OperatingPoint], basis: PowerBasis, slo: Slo
) -> Iterator[OperatingPoint]:
    """A point of each partition on the envelope, and of the best at the target's interactivity."""
    per_user = [each.tokens_per_s_per_user for each in points]
    per_mw = [each.output_tokens_per_s_per_mw(basis) for each in points]
    on_envelope = [points[place] for place in Envelope.of(per_user, per_mw).chosen.tolist()]
    least = 0.0 if slo.tpot_s is None else 1 / slo.tpot_s
    fast = [place for place in range(len(points)) if per_user[place] >= least]
    fast.sort(key=lambda place: per_mw[place], reverse=True)
    best = dict.fromkeys(points[place].family for place in fast)
    families = {*(each.family for each in on_envelope), *islice(best, AT_TARGET)}
    yield from {each.family: each for each in points if each.family in families}.values()


def _option(terms: OptionTerms, point: OperatingPoint) -> Option | None:
    if point.prefill is not None:
        return pool_option(terms, point)
    return terms.option((point.precision, point.candidate))


def _replicas(option: Option) -> int:
    """That fill the machine; a unit of pools does."""
    return 1 if option.is_pooled else option.candidate.replicas


def _candidate(option: Option, sweep: Sweep, target: CurveTarget) -> _Candidate:
    rate_per_s = _replicas(option) * option.requests_per_s
    return _Candidate(option=option, question=target.question(sweep, rate_per_s))


def _rated(
    candidates: Sequence[_Candidate], workers: SimulationWorkers, ends_s: float
) -> list[SimulatedPoint]:
    """Each with the policy that carries the highest rate, and what is sure of that; without those
    of which the time showed nothing.
    """
    ways = [[_rungs(each.question, one)[-1] for one in each.settings()] for each in candidates]
    points = [
        SimulatedPoint(
            question=each.question, setting=each.with_policy_of(kept.check), rate=kept, kept=kept
        )
        for each, kept in zip(candidates, best_rates(ways, workers, ends_s=ends_s), strict=True)
        if kept.is_found or kept.requests_per_s
    ]
    tasks = [_long_runs(each) for each in points if each.kept.requests_per_s]
    sure = iter(sure_rates(tasks, workers, ends_s=ends_s))
    points = [
        replace(each, rate=next(sure)) if each.kept.requests_per_s else each for each in points
    ]
    return [each for each in points if each.rate.is_found or each.rate.requests_per_s]


def _long_runs(point: SimulatedPoint) -> SizeTask:
    """Those by which a plan's last heat would judge the rate."""
    question = point.question
    factor = point.kept.requests_per_s / question.demand.peak_rate_per_s
    question = replace(question, demand=question.demand.sped_up(factor))
    race = Race(question, THIS_PROCESS, lambda _: None)
    return race.task(point.setting, judged=FRESH_TIMES * question.check.judged, is_fresh=True)


def _explained(
    points: Sequence[SimulatedPoint],
    target: CurveTarget,
    workers: SimulationWorkers,
    ends_s: float,
) -> list[SimulatedPoint]:
    """Each with the rungs of its ladder, if it keeps the target at some rate.

    Equal requests at even times are judged by the whole target, then, where TTFT is what they miss,
    by TPOT alone: prompts of others lengthen TPOT, waiting lengthens TTFT.
    """
    tasks = [_ladder(each) if each.rate.requests_per_s else [] for each in points]
    rates = iter(highest_rates([*chain.from_iterable(tasks)], workers, ends_s=ends_s))
    found = [[*islice(rates, len(each))] for each in tasks]
    tpot = tuple(each for each in target.slo.bounds if each.name == "tpot")
    late = [place for place, of in enumerate(found) if of and of[0].missed == "ttft" and tpot]
    by_tpot = [replace(tasks[place][0], slo=Slo(bounds=tpot)) for place in late]
    alone = dict(zip(late, highest_rates(by_tpot, workers, ends_s=ends_s), strict=True))
    explained = []
    for place, point in enumerate(points):
        rungs: dict[RateLoss, RateKept] = {}
        if found[place]:
            even, lengths = found[place][0], found[place][-1]
            if tpot:
                rungs[RateLoss.INTERFERENCE] = alone.get(place, even)
            if tpot != target.slo.bounds:
                rungs[RateLoss.QUEUEING] = even
            rungs[RateLoss.SPREAD] = lengths
        explained.append(replace(point, rungs=rungs))
    return explained


def _ladder(point: SimulatedPoint) -> list[SizeTask]:
    """Equal requests at even times, then the lengths asked for, unless these are equal too."""
    peak = point.question.demand.peak
    has_spread = any(
        len(set(each.tolist())) > 1 for each in (peak.prompt_tokens, peak.output_tokens)
    )
    return _rungs(point.question, point.setting)[: 1 + has_spread]


def _rungs(question: PlanQuestion, setting: Setting) -> list[SizeTask]:
    race = Race(question, THIS_PROCESS, lambda _: None)
    return [*rate_tasks(question, setting, race).values()]


def _in_words(point: SimulatedPoint) -> str:
    rate, setting = point.rate, point.setting
    said = f"{point.system.name} {setting.option.point.precision}: {setting.words}"
    if not rate.requests_per_s:
        return f"{said}: no rate keeps the target"
    share = 100 * rate.requests_per_s / point.steady_requests_per_s
    return (
        f"{said}: {four_digits(rate.requests_per_s)} requests/s, {share:.3g} % of its steady state"
    )

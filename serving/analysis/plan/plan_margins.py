"""What a plan has beside its target: the rate that it could take, and what it loses with chips.

The highest rate is simulated in steps away from the steady state: mean lengths at even times, then
the lengths asked for, then their arrivals. So what each of them costs stands beside the rate of the
mean step, from which `pareto` draws its curve.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil
from typing import Final, Self

from loadgen.workloads.length_pairs import IndependentLengths, LengthPairs, ObservedLengths
from loadgen.workloads.lengths import Uniform
from serving.analysis.plan.plan_check import Check, OutOfTime, SizeTask, check_sizes
from serving.analysis.plan.plan_demand import PlanDemand, RateDemand
from serving.analysis.plan.plan_question import PlanQuestion
from serving.analysis.plan.plan_race import LAST_TIMES, Race, Setting
from serving.simulator import SimulationWorkers

GROWTH: Final = 1.3
"""Between two rates tried, until one keeps the target and one does not."""
FINE: Final = 1.03
"""Ratio of both at last."""
LEAST_FACTOR: Final = 0.01
"""Of the demand: less is none."""
LOSS_S: Final = 20.0
"""Of arrivals that are judged after a loss, where they are fewer than the requests to judge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateKept:
    """The highest rate tried that keeps the target under some traffic, in words; 0: none did.

    `missed`: the limit that the next higher rate does not keep; empty where the steady state ends
    it. Not `is_found`: the time was over before the rates on both sides of it were close.
    """

    traffic: str
    requests_per_s: float
    missed: str = ""
    is_found: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What is lost at once, and the requests that arrive from then on.

    `check` judges those of the replica that loses chips, or of the replicas that are left; None:
    none is left.
    """

    what: str
    replicas_left: int
    lost_chips: int  # of an engine that goes on without them; 0: whole replicas are gone
    check: Check | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Margins:
    """Of a plan's setting; the last of `rates` is the one under the traffic asked for. No `losses`:
    there was no time for them.
    """

    rates: tuple[RateKept, ...]
    losses: tuple[Loss, ...]

    @property
    def most_requests_per_s(self) -> float:
        """Of the traffic asked for."""
        return self.rates[-1].requests_per_s


def margins_of(
    question: PlanQuestion,
    setting: Setting,
    race: Race,
    workers: SimulationWorkers,
    *,
    replicas_per_machine: int,
    is_sure: bool,
    rates_end_s: float = float("inf"),
) -> Margins:
    """Simulate them: the rates until `rates_end_s` of `time.monotonic`; then, if it is before that
    and the race's time lasts, the losses. `is_sure`: longer runs have kept the target.
    """
    judged = LAST_TIMES * question.check.judged
    under = _traffic(question)
    rated = [replace(race.task(setting, judged=judged), demand=demand) for _, demand in under]
    kept = [0.0] * (len(rated) - 1) + [float(is_sure)]
    found = highest_rates(rated, workers, kept=kept, ends_s=rates_end_s)
    rates = [replace(rate, traffic=words) for (words, _), rate in zip(under, found, strict=True)]
    steady = RateKept(
        traffic="by the mean step of the steady state",
        requests_per_s=setting.replicas * setting.option.requests_per_s,
    )
    losses = tuple[Loss, ...]()
    if time.monotonic() < rates_end_s:
        with suppress(OutOfTime):
            losses = _losses(question, setting, race, workers, replicas_per_machine)
    return Margins(rates=(steady, *rates), losses=losses)


def _traffic(question: PlanQuestion) -> list[tuple[str, PlanDemand]]:
    """From the steady state's to the one asked for; at once where prompts share prefixes, which
    mean lengths at even times do not have.
    """
    demand, shape = question.demand, question.sweep.shape
    if demand.prefixes is not None:
        return [("simulated with the lengths, prefixes and arrivals asked for", demand)]
    peak, rate_per_s = demand.peak, demand.peak_rate_per_s

    def even(lengths: LengthPairs) -> RateDemand:
        return RateDemand(
            rate_per_s=rate_per_s,
            lengths=lengths,
            context_tokens=question.sweep.model.max_context_tokens,
            lengths_in_words="",
            gaps="constant",
        )

    equal = IndependentLengths(
        prompt=Uniform(least=shape.prompt_tokens, most=shape.prompt_tokens),
        output=Uniform(least=shape.output_tokens, most=shape.output_tokens),
    )
    asked = ObservedLengths(prompt_tokens=peak.prompt_tokens, output_tokens=peak.output_tokens)
    return [
        ("simulated with mean lengths at even times", even(equal)),
        ("with the lengths asked for", even(asked)),
        ("and the arrivals asked for", demand),
    ]


@dataclass(slots=True, kw_only=True)
class _Bisection:
    """Of a task's factor of its demand; `most` is what the steady state takes."""

    task: SizeTask
    low: float = 0.0
    high: float
    missed: str = ""

    @classmethod
    def of(cls, task: SizeTask, low: float) -> Self:
        most = task.replicas * task.most_requests_per_s / task.demand.peak_rate_per_s
        return cls(task=task, low=low, high=most)

    @property
    def is_found(self) -> bool:
        """Whether its ends are as close as they need to be, or no rate keeps the target."""
        return self.high <= max(FINE * self.low, LEAST_FACTOR)

    @property
    def next_factor(self) -> float:
        if not self.low:
            return min(1.0, self.high) if not self.missed else self.high / GROWTH
        if not self.missed:
            return min(GROWTH * self.low, self.high)
        return float((self.low * self.high) ** 0.5)

    def next_task(self) -> SizeTask:
        demand = self.task.demand.multiplied(self.next_factor, seed=self.task.terms.seed)
        return replace(self.task, demand=demand)

    def learn(self, check: Check) -> None:
        if check.meets:
            self.low = self.next_factor
        else:
            self.high, self.missed = self.next_factor, _missed(check)

    def rate(self) -> RateKept:
        return RateKept(
            traffic="",
            requests_per_s=self.low * self.task.demand.peak_rate_per_s,
            missed=self.missed,
            is_found=self.is_found,
        )


def highest_rates(
    tasks: Sequence[SizeTask],
    workers: SimulationWorkers,
    *,
    kept: Sequence[float] = (),
    ends_s: float = float("inf"),
) -> list[RateKept]:
    """Of each task's traffic the highest rate that keeps the target, by bisection until `ends_s` of
    `time.monotonic`; the same seed at each rate. `kept`: multiples of each that are known to.
    """
    lows = kept or [0.0] * len(tasks)
    found = [_Bisection.of(task, low) for task, low in zip(tasks, lows, strict=True)]
    while time.monotonic() < ends_s:
        open_ones = [each for each in found if not each.is_found]
        if not open_ones:
            break
        ends_at = time.time() + ends_s - time.monotonic()
        try:
            checks = check_sizes(
                [replace(each.next_task(), ends_at=ends_at) for each in open_ones], workers
            )
        except OutOfTime:
            break
        for each, check in zip(open_ones, checks, strict=True):
            each.learn(check)
    return [each.rate() for each in found]


def _missed(check: Check) -> str:
    """The limit that the fewest requests keep, of those that too few keep."""
    late = [term for term in check.terms if not term.kept]
    return min(late, key=lambda term: term.share).name if late else ""


def _losses(
    question: PlanQuestion,
    setting: Setting,
    race: Race,
    workers: SimulationWorkers,
    replicas_per_machine: int,
) -> tuple[Loss, ...]:
    given = [*_loss_tasks(question, setting, race, replicas_per_machine)]
    checks = iter(check_sizes([task for _, _, task in given if task is not None], workers))
    return tuple(
        Loss(
            what=what,
            replicas_left=left,
            lost_chips=0 if task is None else task.lost_chips,
            check=None if task is None else next(checks),
        )
        for what, left, task in given
    )


def _loss_tasks(
    question: PlanQuestion, setting: Setting, race: Race, replicas_per_machine: int
) -> Iterator[tuple[str, int, SizeTask | None]]:
    """A chip, a tray and a machine: in words, the replicas that are left, and what is simulated.

    An engine goes on without a chip as the live one does; one that is no larger than what is lost
    is gone with its replica.
    """
    tray = question.sweep.system.chips_per_tray.count
    engine_chips = setting.option.candidate.partition.chips
    rate_per_s = question.demand.peak_rate_per_s / setting.replicas
    judged = min(question.check.judged, max(1, ceil(LOSS_S * rate_per_s)))
    task = race.task(setting, judged=judged, early_end=False)

    def without(replicas: int) -> SizeTask | None:
        left = setting.replicas - replicas
        if left < 1:
            return None
        fewer = replace(setting, replicas=left)
        return race.task(fewer, judged=question.check.judged, early_end=False)

    for what, chips in (("a chip", 1), (f"a tray, {tray} chips,", tray)):
        if chips < engine_chips:
            yield what, setting.replicas, replace(task, lost_chips=chips)
        else:
            gone = min(setting.replicas, max(1, chips // setting.option.replica_chips))
            yield what, setting.replicas - gone, without(gone)
    gone = min(setting.replicas, replicas_per_machine)
    yield "a whole machine", setting.replicas - gone, without(gone)

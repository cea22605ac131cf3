"""What a plan has beside its target: the rate that it could take, and what it loses with chips.

The highest rate is simulated in steps away from the steady state: mean lengths at even times, then
the lengths asked for, then their arrivals. So what each of them costs stands beside the rate of the
mean step, from which `pareto` draws its curve.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from math import ceil
from typing import Final, Self

from emulator.specs.system import SystemSpec
from loadgen.records.plain_number import counted
from loadgen.workloads.length_pairs import IndependentLengths, LengthPairs, ObservedLengths
from loadgen.workloads.lengths import Uniform
from serving.analysis.plan.class_demand import ClassesDemand
from serving.analysis.plan.plan_check import SizeTask, check_sizes
from serving.analysis.plan.plan_demand import PlanDemand, RateDemand
from serving.analysis.plan.plan_options import Option
from serving.analysis.plan.plan_question import LostPart, PlanQuestion
from serving.analysis.plan.plan_race import LAST_TIMES, Race
from serving.analysis.plan.plan_setting import Setting
from serving.analysis.plan.size_check import Check, quality
from serving.analysis.plan.timed_run import OutOfTime, unix_s
from serving.analysis.steady_state.partitions import PartitionCandidate
from serving.simulator import SimulationWorkers

GROWTH: Final = 1.3
"""Between two rates tried, until one keeps the target and one does not."""
SURE_GROWTH: Final = 1.06
"""The same, near a rate that shorter runs have found."""
FINE: Final = 1.03
"""Ratio of both at last."""
LEAST_FACTOR: Final = 0.01
"""Of the demand: less is none."""
_BELOW: Final = 1 - 1e-9
"""Of the steady state's rate, which rounding would put above itself."""
LOSS_S: Final = 20.0
"""Of arrivals that are judged after a loss, where they are fewer than the requests to judge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateKept:
    """The highest rate tried that keeps the target under some traffic, in words; 0: none did.

    `missed`: the limit that the next higher rate does not keep; empty where the steady state ends
    it. Not `is_found`: the time was over before the rates on both sides of it were close. `check`:
    the simulation at that rate; None where it was known before.
    """

    traffic: str
    requests_per_s: float
    missed: str = ""
    is_found: bool = True
    check: Check | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What is lost at once, and the requests that arrive from then on.

    `check` judges those of the replica that loses chips, or of the replicas that are left; None:
    none is left.
    """

    what: str
    replicas_left: int
    lost_chips: int = 0  # of engines that go on without them; 0: what loses chips is gone
    engines_left: int = 0  # of its side of a unit, whose other engines go on; 0: it is no unit
    check: Check | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Margins:
    """Of a plan's setting; the last of `rates` is the one under the traffic asked for. No `losses`:
    there was no time for them; None: one is asked for, and simulated apart.
    """

    rates: tuple[RateKept, ...]
    losses: tuple[Loss, ...] | None

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
    tasks = rate_tasks(question, setting, race)
    kept = [0.0] * (len(tasks) - 1) + [float(is_sure)]
    found = highest_rates([*tasks.values()], workers, kept=kept, ends_s=rates_end_s)
    rates = [replace(rate, traffic=words) for words, rate in zip(tasks, found, strict=True)]
    steady = RateKept(
        traffic="by the mean step of the steady state",
        requests_per_s=setting.replicas * setting.option.requests_per_s,
    )
    losses = tuple[Loss, ...]() if question.lose is None else None
    if losses is not None and time.monotonic() < rates_end_s:
        with suppress(OutOfTime):
            losses = _losses(question, setting, race, workers, replicas_per_machine)
    return Margins(rates=(steady, *rates), losses=losses)


def rate_tasks(question: PlanQuestion, setting: Setting, race: Race) -> dict[str, SizeTask]:
    """The setting under each traffic, in words, from the steady state's to the one asked for."""
    task = race.task(setting, judged=LAST_TIMES * question.check.judged)
    return {words: replace(task, demand=demand) for words, demand in _traffic(question)}


def _traffic(question: PlanQuestion) -> list[tuple[str, PlanDemand]]:
    """From the steady state's to the one asked for; at once where prompts share prefixes, which
    mean lengths at even times do not have.
    """
    demand, shape = question.demand, question.sweep.shape
    if isinstance(demand, ClassesDemand):  # whose lengths and targets go together
        return [("simulated with the classes asked for", demand)]
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
    """Of a demand's factor; `most` is what the steady state takes. `ways` are those that have kept
    the target at all factors where any did, and `checks` theirs at `low`. `is_sure`: intervals have
    to say that they do.
    """

    ways: Sequence[SizeTask]
    growth: float = GROWTH
    is_sure: bool = False
    low: float = 0.0
    high: float
    missed: str = ""
    checks: Sequence[Check] = ()

    @classmethod
    def of(cls, ways: Sequence[SizeTask], low: float = 0.0) -> Self:
        task = ways[0]
        most = task.replicas * task.most_requests_per_s / task.demand.peak_rate_per_s
        return cls(ways=ways, low=low, high=_BELOW * most)

    @classmethod
    def surely(cls, task: SizeTask) -> Self:
        return replace(cls.of([task]), growth=SURE_GROWTH, is_sure=True)

    @property
    def is_found(self) -> bool:
        """Whether its ends are as close as they need to be, or no rate keeps the target."""
        return self.high <= max(FINE * self.low, LEAST_FACTOR)

    @property
    def next_factor(self) -> float:
        if not self.low:
            return min(1.0, self.high) if not self.missed else self.high / self.growth
        if not self.missed:
            return min(self.growth * self.low, self.high)
        return float((self.low * self.high) ** 0.5)

    def next_tasks(self) -> list[SizeTask]:
        task = self.ways[0]
        demand = task.demand.multiplied(self.next_factor, seed=task.terms.seed)
        return [replace(each, demand=demand) for each in self.ways]

    def learn(self, checks: Sequence[Check]) -> None:
        kept = [
            place
            for place, check in enumerate(checks)
            if (check.surely_meets if self.is_sure else check.meets)
        ]
        if kept:
            self.low = self.next_factor
            self.ways = [self.ways[place] for place in kept]
            self.checks = [checks[place] for place in kept]
        else:
            self.high, self.missed = self.next_factor, _missed(max(checks, key=quality))

    def rate(self) -> RateKept:
        return RateKept(
            traffic="",
            requests_per_s=self.low * self.ways[0].demand.peak_rate_per_s,
            missed=self.missed,
            is_found=self.is_found,
            check=max(self.checks, key=quality, default=None),
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
    return best_rates([[task] for task in tasks], workers, kept=kept, ends_s=ends_s)


def best_rates(
    ways: Sequence[Sequence[SizeTask]],
    workers: SimulationWorkers,
    *,
    kept: Sequence[float] = (),
    ends_s: float = float("inf"),
) -> list[RateKept]:
    """`highest_rates` of several ways, such as policies, to serve each traffic: that of the best
    way, whose check it has. A way is out where another keeps the target and it does not.
    """
    lows = kept or [0.0] * len(ways)
    found = [_Bisection.of(each, low) for each, low in zip(ways, lows, strict=True)]
    return _bisected(found, workers, ends_s)


def sure_rates(
    tasks: Sequence[SizeTask], workers: SimulationWorkers, *, ends_s: float = float("inf")
) -> list[RateKept]:
    """`highest_rates` that keep the target with 95 % confidence, sought near each task's own."""
    return _bisected([_Bisection.surely(task) for task in tasks], workers, ends_s)


def _bisected(
    found: Sequence[_Bisection], workers: SimulationWorkers, ends_s: float
) -> list[RateKept]:
    while time.monotonic() < ends_s:
        open_ones = [each for each in found if not each.is_found]
        if not open_ones:
            break
        ends_at = unix_s(ends_s)
        tasks = [replace(task, ends_at=ends_at) for each in open_ones for task in each.next_tasks()]
        try:
            checks = iter(check_sizes(tasks, workers))
        except OutOfTime:
            break
        for each in open_ones:
            each.learn([*islice(checks, len(each.ways))])
    return [each.rate() for each in found]


def _missed(check: Check) -> str:
    """The limit that the fewest requests keep, of those that too few keep, or not surely."""
    late = [term for term in check.terms if not term.kept] or [
        term for term in check.terms if not term.is_surely_kept
    ]
    return min(late, key=lambda term: term.share).measure if late else ""


def _losses(
    question: PlanQuestion,
    setting: Setting,
    race: Race,
    workers: SimulationWorkers,
    replicas_per_machine: int,
) -> tuple[Loss, ...]:
    given = [*_loss_tasks(question, setting, race, replicas_per_machine)]
    checks = iter(check_sizes([task for _, task in given if task is not None], workers))
    return tuple(
        loss if task is None else replace(loss, check=next(checks)) for loss, task in given
    )


def _loss_tasks(
    question: PlanQuestion, setting: Setting, race: Race, replicas_per_machine: int
) -> Iterator[tuple[Loss, SizeTask | None]]:
    """A chip, a tray and a machine: each without its check, and what is simulated.

    An engine goes on without a chip as the live one does, and so does a unit of pools without an
    engine; replicas and units that are no larger than what is lost are gone.
    """
    system, option = question.sweep.system, setting.option
    rate_per_s = question.demand.peak_rate_per_s / setting.replicas
    judged = min(question.check.judged, max(1, ceil(LOSS_S * rate_per_s)))
    task = race.task(setting, judged=judged, early_end=False)

    def without(replicas: int) -> SizeTask | None:
        left = setting.replicas - replicas
        if left < 1:
            return None
        fewer = replace(setting, replicas=left)
        return race.task(fewer, judged=question.check.judged, early_end=False)

    def gone(lost: LostPart, replicas: int) -> tuple[Loss, SizeTask | None]:
        loss = Loss(what=lost_words(lost, system), replicas_left=setting.replicas - replicas)
        return loss, without(replicas)

    for lost in (LostPart.CHIP, LostPart.TRAY):
        chips = lost.chips_of(system)
        if chips >= option.replica_chips:
            yield gone(lost, min(setting.replicas, hit(option.replica_chips, chips)))
            continue
        for side in sides_of(option):
            what = lost_words(lost, system, side)
            loss = Loss(what=what, replicas_left=setting.replicas, lost_chips=chips)
            yield loss, replace(task, lost=side.lost(chips))
    yield gone(LostPart.MACHINE, min(setting.replicas, replicas_per_machine))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSide:
    """The equal engines of a replica, or of one side of a unit of pools, whose numbers begin with
    `first`.
    """

    words: str
    candidate: PartitionCandidate
    engines: int
    first: int = 0

    @property
    def engine_chips(self) -> int:
        """Of one engine in service."""
        return self.candidate.partition.chips

    def lost(self, chips: int) -> tuple[int, ...]:
        """Chips that each engine of the unit loses: of the first ones here, one after the other."""
        left = (
            chips - engine * self.engine_chips for engine in range(ceil(chips / self.engine_chips))
        )
        each = (min(self.engine_chips, chips) for chips in left)
        return (*[0] * self.first, *islice(each, self.engines))


def hit(engine_chips: int, chips: int) -> int:
    """The most engines, or replicas, that lie on so many chips, a tray's.

    They lie side by side from a tray's first chip on; a larger one has all of them.
    """
    if chips < engine_chips:
        return 1
    trays = (range(first, first + chips) for first in range(0, chips * engine_chips, chips))
    return max(len({chip // engine_chips for chip in tray}) for tray in trays)


def sides_of(option: Option) -> tuple[EngineSide, ...]:
    """Of a replica its engine; of a unit of pools both sides, the one that decodes first."""
    prefill, candidate = option.point.prefill, option.candidate
    if prefill is None:
        return (EngineSide(words="", candidate=candidate, engines=1),)
    return (
        EngineSide(
            words="of an engine that decodes", candidate=candidate, engines=candidate.replicas
        ),
        EngineSide(
            words="of an engine for prompts",
            candidate=prefill,
            engines=prefill.replicas,
            first=candidate.replicas,
        ),
    )


def lost_words(lost: LostPart, system: SystemSpec, side: EngineSide | None = None) -> str:
    """As `a chip`, or `a tray, 4 chips of an engine that decodes,`."""
    of = f" {side.words}" if side is not None and side.words else ""
    match lost:
        case LostPart.CHIP:
            return f"a chip{of}"
        case LostPart.TRAY:
            return f"a tray, {counted(lost.chips_of(system), 'chip')}{of},"
    return "a whole machine"

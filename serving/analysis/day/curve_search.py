"""The search for a replica's curve: which rates are simulated.

Exact runs bracket the capacity from the steady state's guess; an overload finds saturation, a few
more rates complete the curve. Longer runs say up to which rate the target is kept for minutes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Final

from emulator.errors import ConfigError
from serving.analysis.day.replica_curve import ReplicaCurve
from serving.analysis.day.replica_run import (
    RatePoint,
    RateTask,
    ReplicaUnderTest,
    run_at_rate,
    saturated_per_s,
)
from serving.simulator.simulation_workers import SimulationWorkers

Progress = Callable[[str], None]

_BELOW: Final = (0.08, 0.2, 0.4, 0.6, 0.85)
"""Rates below the bracket, as shares of the capacity: a night's, a morning's, and a day's, between
which times bend more than equal ratios do.
"""
_NEAR: Final = 0.8
"""Of the bracket's lower end: from there to its upper one queues come and go in minutes."""
_ABOVE: Final = 1.2
"""Of the bracket's upper end: attainment falls, queues are still finite."""
_BRACKET_SHARE: Final = 0.08
"""The bracket's final width, as a share of its upper end."""
_FIRST: Final = (0.45, 0.7)
"""First rates, as shares of the steady state's, which knows no queue."""
_ROUNDS_MAX: Final = 8
_OVERLOAD: Final = 1.5
"""Times the lowest rate that misses the target: a permanent queue."""
_BEGUN_SHARE: Final = 0.85
"""Of the arrivals, below which a queue grows; the rest is chance at the ends of a short run."""
_TIMES: Final = 20
"""Times the requests to judge by, of each rate: queues come and go in minutes."""
_JUDGED_S: Final = 600.0
"""In which they arrive, at most; all of it near a capacity, however many they are: a queue that
grows by a hundredth of the rate is then seconds long.
"""
_LOWER: Final = 0.99
"""Times a rate that does not last, the next one that may."""
_LOWER_MAX: Final = 40
"""Such rates, until two thirds of the first one."""
_LEAD_JUDGED: Final = 0.5
"""Of their time, traffic before and after the judged requests: waves of requests that began and end
together last for minutes.
"""
_TTFT_LIMITS: Final = 4.0
"""Judged requests arrive for at least this many TTFT limits: a queue takes time to grow."""
_SERVING_SHARES: Final = (1.0, 0.75, 0.5, 0.25)
"""Of an engine's groups, beside the fewest: what lies between changes little."""
_EACH_UP_TO: Final = 4
"""Groups, of which every number is simulated."""
_LEADS: Final = 2.0
"""The same, in mean request durations, at least."""


def turns_of(groups: int) -> int:
    """Replicas that get requests by turns: half of the groups, as many as serve in between a day's
    least and most (*assumed*).
    """
    return max(1, groups // 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveTerms:
    """A rate is judged by `_TIMES` times `judged` requests, by fewer where they take longer than
    `_JUDGED_S`, and by more to build a queue; near a capacity by all that come in `_JUDGED_S`. Of
    `turns` replicas each gets every so many-th of Poisson arrivals.
    """

    required_share: float
    judged: int = 600
    judged_least: int = 60
    turns: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("judged", "judged_least", "turns"):
            if getattr(self, name) < 1:
                raise ConfigError(name, getattr(self, name), "at least 1")
        if not 0 < self.required_share < 1:
            raise ConfigError("required_share", self.required_share, "above 0, below 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstGuess:
    """Steady-state rate within the target; seconds between tokens then and of a lone request."""

    rate_per_s: float
    tpot_s: float
    alone_s: float


def find_curve(
    replica: ReplicaUnderTest,
    guess: FirstGuess,
    terms: CurveTerms,
    workers: SimulationWorkers,
    progress: Progress = lambda _: None,
) -> ReplicaCurve:
    """Simulate several rates; raises ConfigError when none keeps the target.

    Rates and watts of the curve are those of one of the groups that serve.
    """
    search = _Search(replica=replica, guess=guess, terms=terms, workers=workers, progress=progress)
    low, high = search.bracket()
    capacity_per_s = (low + high) / 2
    below = [share * capacity_per_s for share in reversed(_BELOW)]
    most_per_s = search.complete(
        high * _OVERLOAD, [high * _ABOVE, *below], near=(_NEAR * low, high)
    )
    search.narrow(most_per_s)
    lasting_per_s = search.lasting(most_per_s)
    return search.curve(most_per_s, lasting_per_s, groups=replica.serving)


def find_partition_curves(
    replica: ReplicaUnderTest,
    guess: FirstGuess,
    terms: CurveTerms,
    workers: SimulationWorkers,
    progress: Progress = lambda _: None,
    *,
    groups_min: int,
) -> dict[int, ReplicaCurve]:
    """Curves of an engine by how many of its groups serve, down to `groups_min`, or to the last of
    which the target can be kept. Raises ConfigError where all together do not keep it.
    """
    groups = replica.groups
    found: dict[int, ReplicaCurve] = {}
    for serving in sizes_of(groups, groups_min=groups_min):
        part = serving / groups
        progress(f"{serving} of {groups} groups serve")
        guessed = replace(guess, rate_per_s=part * guess.rate_per_s)
        there = replica.with_away(groups - serving)
        try:
            found[serving] = find_curve(there, guessed, terms, workers, progress)
        except ConfigError as error:
            if error.field != "slo" or not found:
                raise
            progress(str(error))
            break
    return dict(sorted(found.items()))


def sizes_of(groups: int, *, groups_min: int) -> list[int]:
    """Numbers of serving groups that are simulated, from all of them down."""
    if groups <= _EACH_UP_TO:
        return list(range(groups, groups_min - 1, -1))
    shares = {max(groups_min, round(share * groups)) for share in _SERVING_SHARES}
    return sorted({groups_min, *shares}, reverse=True)


@dataclass(kw_only=True)
class _Search:
    replica: ReplicaUnderTest
    guess: FirstGuess
    terms: CurveTerms
    workers: SimulationWorkers
    progress: Progress
    found: dict[float, RatePoint] = field(default_factory=dict)

    def points(self) -> list[RatePoint]:
        return [self.found[rate] for rate in sorted(self.found)]

    def run(self, rates_per_s: Sequence[float]) -> list[RatePoint]:
        points = self.workers.map(run_at_rate, [self._task(rate) for rate in rates_per_s])
        self._note(points)
        return points

    def _note(self, points: Sequence[RatePoint]) -> None:
        for point in points:
            self.found[point.rate_per_s] = point
            self.progress(
                f"one replica at {point.rate_per_s:,.4g} requests/s: {point.both_share:.2%} of "
                f"{point.judged} within the target, {point.chip_watts:,.0f} W, {point.steps} steps"
            )

    def bracket(self) -> tuple[float, float]:
        """Neighbouring rates; the lower keeps the target, the higher does not."""
        low, high = 0.0, float("inf")
        rates = [share * self.guess.rate_per_s for share in _FIRST]
        for _ in range(_ROUNDS_MAX):
            for point in self.run(rates):
                if not self._keeps(point):
                    high = min(high, point.rate_per_s)
            kept = [p.rate_per_s for p in self.points() if p.rate_per_s < high]
            low = max(kept, default=0.0)
            if high == float("inf"):
                rates = [1.4 * low, 2.0 * low]
            elif low and high - low <= _BRACKET_SHARE * high:
                return low, high
            elif not low:
                rates = [0.25 * high, 0.5 * high]
            else:
                rates = [low + (high - low) * part for part in (1 / 3, 2 / 3)]
        if low:
            return low, min(high, low * (1 + _BRACKET_SHARE))
        raise self._missed(high)

    def _missed(self, rate_per_s: float) -> ConfigError:
        return ConfigError(
            "slo",
            str(self.replica.slo),
            f"one that a replica of {self.replica.candidate.partition.chips} chips "
            f"keeps at {rate_per_s:.3g} requests/s or less; it does not",
        )

    def complete(
        self, overload_per_s: float, rates_per_s: Sequence[float], *, near: tuple[float, float]
    ) -> float:
        """Simulate these rates, and for longer all between those `near` a capacity; returns
        requests begun per second at the overload.
        """
        lowest, highest = near
        longer = [rate for rate in {*self.found, *rates_per_s} if lowest <= rate <= highest]
        others = [rate for rate in rates_per_s if rate not in longer]
        tasks = [self._task(overload_per_s), *map(self._longer_task, sorted(longer, reverse=True))]
        tasks += map(self._task, others)
        found = self.workers.map(_look, list(enumerate(tasks)))
        begun_per_s = next(each for each in found if isinstance(each, float))
        self.progress(f"one replica overloaded: {begun_per_s:,.4g} requests/s begin")
        self._note([each for each in found if isinstance(each, RatePoint)])
        return begun_per_s

    def narrow(self, most_per_s: float) -> None:
        """Bracket the capacity again where longer runs have widened it: the lower end of the first
        bracket misses the target in them, or is more than begins at an overload.
        """
        for _ in range(_ROUNDS_MAX):
            below = [point for point in self.points() if point.rate_per_s < most_per_s]
            missed = [point.rate_per_s for point in below if not self._keeps(point)]
            high = min(missed, default=most_per_s)
            low = max((p.rate_per_s for p in below if p.rate_per_s < high), default=0.0)
            if not low or high - low <= _BRACKET_SHARE * high:
                break
            points = self.workers.map(run_at_rate, [self._longer_task((low + high) / 2)])
            self._note(points)

    def curve(self, most_per_s: float, lasting_per_s: float, *, groups: int = 1) -> ReplicaCurve:
        """Of one of so many groups, by the rates below `most_per_s`, both rates those of all."""
        replica = self.replica
        points = [point for point in self.points() if point.rate_per_s < most_per_s]
        return ReplicaCurve(
            points=tuple(point.of_group(groups) for point in points),
            saturated_per_s=most_per_s / groups,
            required_share=self.terms.required_share,
            lasting_per_s=lasting_per_s / groups,
            idle_watts=replica.idle_chip_watts * replica.candidate.partition.chips / replica.groups,
            ttft_limit_s=replica.slo.ttft_s,
            tpot_limit_s=replica.slo.tpot_s,
        )

    def lasting(self, most_per_s: float) -> float:
        """The rate where the curve meets the target, or the next one below it that keeps the
        target for `_JUDGED_S`; raises ConfigError without one.
        """
        rate_per_s = most_per_s
        for _ in range(_LOWER_MAX):
            met_per_s = self.curve(most_per_s, most_per_s).capacity_per_s
            rate_per_s = min(met_per_s, rate_per_s * _LOWER)
            if not rate_per_s:
                break
            (point,) = self.workers.map(run_at_rate, [self._longer_task(rate_per_s)])
            self._note([point])
            if self._keeps(point):
                return rate_per_s
        raise self._missed(rate_per_s)

    def _keeps(self, point: RatePoint) -> bool:
        """Whether enough were in time and no queue grew: with one, a longer run would miss."""
        begun = point.served_per_s >= _BEGUN_SHARE * point.rate_per_s
        return begun and point.both_share >= self.terms.required_share

    def _longer_task(self, rate_per_s: float) -> RateTask:
        """By all that come in `_JUDGED_S`."""
        task = self._task(rate_per_s)
        return replace(task, judged=max(task.judged, ceil(rate_per_s * _JUDGED_S)))

    def _task(self, rate_per_s: float) -> RateTask:
        guess, terms = self.guess, self.terms
        # Between tokens as at this rate, by a straight line from a lone request to the guess.
        load = min(1.0, rate_per_s / guess.rate_per_s)
        tpot_s = guess.alone_s + load * (guess.tpot_s - guess.alone_s)
        lead_s = _LEADS * self.replica.mean_output_tokens * tpot_s
        ttft_s = self.replica.slo.ttft_s or 0.0
        least = max(terms.judged_least, ceil(rate_per_s * max(lead_s, _TTFT_LIMITS * ttft_s)))
        judged = max(least, min(_TIMES * terms.judged, ceil(rate_per_s * _JUDGED_S)))
        return RateTask(
            replica=self.replica,
            rate_per_s=rate_per_s,
            judged=judged,
            lead_s=max(lead_s, _LEAD_JUDGED * judged / rate_per_s),
            turns=terms.turns,
            seed=terms.seed,
        )


def _look(numbered: tuple[int, RateTask]) -> RatePoint | float:
    """The first task is the overload."""
    number, task = numbered
    return run_at_rate(task) if number else saturated_per_s(task)

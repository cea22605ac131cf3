"""Error of the walk: one replica's hour simulated step by step, beside its walk by the curves.

The replica gets requests by turns with the others that serve, at random times in each interval.
Parts of some minutes are simulated in parallel, each within a minute before and after that is
served and not judged.
"""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ConfigError
from loadgen.measures.percentile import percentile
from loadgen.workloads.traffic import Traffic
from serving.analysis.day.day_result import DayResult
from serving.analysis.day.day_trace import HOUR_S
from serving.analysis.day.replica_run import SHOWN_PERCENTILE, ReplicaUnderTest, serve
from serving.simulator.simulation_workers import SimulationWorkers

Progress = Callable[[str], None]
Float64s = NDArray[np.float64]

PART_S: Final = 600.0
"""Simulated as one; a reply takes seconds, so a minute of warm-up is enough."""
_STREAM: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class HourCheck:
    """The exactly simulated part of the day, in parts with `warmup_s` before and after each."""

    begin_s: float
    length_s: float = HOUR_S
    warmup_s: float = 60.0
    part_s: float = PART_S


@dataclass(frozen=True, slots=True, kw_only=True)
class BothWays:
    """One figure by the exact run and by the walk."""

    exact: float
    walked: float

    @property
    def difference(self) -> float:
        """Walked less exact."""
        return self.walked - self.exact

    @property
    def relative(self) -> float:
        """The difference over the exact figure; 0 when both are 0."""
        return self.difference / self.exact if self.exact else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactHour:
    """One replica's day from `begin_s` on, for `length_s`, in `parts`.

    `requests` are a random draw of the walk's `expected_requests`: `output_tokens` differ by
    chance, by about 1/sqrt(requests). The walk's percentiles are means of the curve's over
    requests.
    """

    policy: str
    begin_s: float
    length_s: float
    warmup_s: float
    parts: int
    requests: int
    expected_requests: float
    steps: int
    ttft: BothWays
    tpot: BothWays
    both: BothWays
    ttft_p99_s: BothWays
    tpot_p99_s: BothWays
    tpot_mean_s: BothWays
    output_tokens: BothWays
    joules: BothWays
    wall_s: float

    @property
    def output_tokens_sigma(self) -> float:
        """One relative standard deviation, by the number of requests alone."""
        return float(1 / np.sqrt(self.requests))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Part:
    """Requests that arrive from `begin_s` to `end_s` are judged, the others only served."""

    replica: ReplicaUnderTest
    traffic: Traffic
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Seen:
    ttft_s: Float64s  # [judged]
    tpot_s: Float64s  # [judged]
    shares_kept: tuple[float, float, float]
    output_tokens: int
    joules: float
    steps: int


def _see(part: _Part) -> _Seen:
    arrival_s = part.traffic.arrival_s
    judged = (arrival_s >= part.begin_s) & (arrival_s < part.end_s)
    length_s = part.end_s - part.begin_s
    if not judged.any():
        none = np.zeros(0)
        return _Seen(
            ttft_s=none,
            tpot_s=none,
            shares_kept=(1.0, 1.0, 1.0),
            output_tokens=0,
            joules=part.replica.deployment().idle_watts * length_s,
            steps=0,
        )
    served = serve(part.replica, part.traffic, judged)
    return _Seen(
        ttft_s=served.ttft_s,
        tpot_s=served.tpot_s,
        shares_kept=served.shares(part.replica.slo),
        output_tokens=served.output_tokens,
        joules=served.chip_watts * length_s,
        steps=served.served.steps,
    )


def exact_hour(
    result: DayResult,
    replica: ReplicaUnderTest,
    check: HourCheck,
    workers: SimulationWorkers,
    *,
    seed: int = 0,
    progress: Progress = lambda _: None,
) -> ExactHour:
    """Simulate the hour. Raises ConfigError for a time outside of the day, or without requests."""
    began = perf_counter()
    interval_s = result.walk.demand.interval_s
    first, last = _intervals_of(result, begin_s=check.begin_s, length_s=check.length_s)
    around, per_part = (round(each / interval_s) for each in (check.warmup_s, check.part_s))
    parts = _parts(result, replica, first, last, around, per_part, seed=seed)
    seen: list[_Seen] = []
    for each in workers.results(_see, parts):
        seen.append(each)
        progress(f"exact run: {len(seen)} of {len(parts)} parts done")
    if not any(len(each.ttft_s) for each in seen):
        raise ConfigError("check-hour", check.begin_s / HOUR_S, "some requests")
    wall_s = perf_counter() - began
    return _held(result, replica, seen, first, last, warmup_s=around * interval_s, wall_s=wall_s)


def _held(
    result: DayResult,
    replica: ReplicaUnderTest,
    seen: list[_Seen],
    first: int,
    last: int,
    *,
    warmup_s: float,
    wall_s: float,
) -> ExactHour:
    curve, interval_s = result.machine.curve, result.walk.demand.interval_s
    ttft_s = np.concatenate([each.ttft_s for each in seen])
    tpot_s = np.concatenate([each.tpot_s for each in seen])
    judged = np.array([len(each.ttft_s) for each in seen])
    ttft, tpot, both = np.average([each.shares_kept for each in seen], axis=0, weights=judged)
    rates = result.walk.group_rates[first:last]
    given = rates * interval_s  # requests of the one group in each interval

    def held(exact: float, walked: Float64s) -> BothWays:
        """Mean of the walk's values over requests."""
        return BothWays(exact=float(exact), walked=float((walked * given).sum() / given.sum()))

    return ExactHour(
        policy=result.policy,
        begin_s=first * interval_s,
        length_s=(last - first) * interval_s,
        warmup_s=warmup_s,
        parts=len(seen),
        requests=len(ttft_s),
        expected_requests=float(given.sum()),
        steps=sum(each.steps for each in seen),
        ttft=held(ttft, curve.share("ttft_share", rates)),
        tpot=held(tpot, curve.share("tpot_share", rates)),
        both=held(both, curve.share("both_share", rates)),
        ttft_p99_s=held(percentile(ttft_s, SHOWN_PERCENTILE), curve.seconds("ttft_p99_s", rates)),
        tpot_p99_s=held(percentile(tpot_s, SHOWN_PERCENTILE), curve.seconds("tpot_p99_s", rates)),
        tpot_mean_s=held(tpot_s.mean(), curve.seconds("tpot_mean_s", rates)),
        output_tokens=BothWays(
            exact=float(sum(each.output_tokens for each in seen)),
            walked=float(given.sum()) * replica.mean_output_tokens,
        ),
        joules=BothWays(
            exact=sum(each.joules for each in seen),
            walked=float(curve.chip_watts(rates).sum()) * interval_s,
        ),
        wall_s=wall_s,
    )


def _intervals_of(result: DayResult, *, begin_s: float, length_s: float) -> tuple[int, int]:
    """The first and past-the-end interval; ConfigError outside the day or with a backlog."""
    walk = result.walk
    interval_s = walk.demand.interval_s
    first, last = round(begin_s / interval_s), round((begin_s + length_s) / interval_s)
    if not 0 <= first < last <= len(walk.demand.arrivals):
        expected = f"within the {walk.demand.length_s / HOUR_S:g} hours of the day"
        raise ConfigError("check-hour", begin_s / HOUR_S, expected)
    if walk.backlog[first:last].any():
        raise ConfigError("check-hour", begin_s / HOUR_S, "an hour without a backlog")
    return first, last


def _parts(
    result: DayResult,
    replica: ReplicaUnderTest,
    first: int,
    last: int,
    around: int,
    per_part: int,
    *,
    seed: int,
) -> list[_Part]:
    """The stretch cut up, each part with up to `around` intervals on both sides."""
    interval_s = result.walk.demand.interval_s
    begin = max(0, first - around)
    end = min(len(result.walk.demand.arrivals), last + around)
    traffic = _share_of_one(result, replica, begin, end, seed=seed)
    parts = []
    for start in range(first, last, max(1, per_part)):
        stop = min(last, start + max(1, per_part))
        from_s = (max(begin, start - around) - begin) * interval_s
        to_s = (min(end, stop + around) - begin) * interval_s
        parts.append(
            _Part(
                replica=replica,
                traffic=traffic.window(from_s, to_s),
                begin_s=(start - begin) * interval_s - from_s,
                end_s=(stop - begin) * interval_s - from_s,
            )
        )
    return parts


def _share_of_one(
    result: DayResult, replica: ReplicaUnderTest, first: int, last: int, *, seed: int
) -> Traffic:
    """Those intervals' requests that come to one group by its turns, from time 0."""
    walk = result.walk
    interval_s = walk.demand.interval_s
    rng = np.random.default_rng([seed, _STREAM])
    arrivals = walk.demand.arrivals[first:last]
    # Without a backlog a group's rate is the arrivals' over the groups that serve.
    share = np.where(
        arrivals > 0, walk.group_rates[first:last] * interval_s / np.maximum(arrivals, 1), 0.0
    )
    number = np.repeat(np.arange(len(arrivals)), arrivals)
    arrival_s = np.sort((number + rng.random(len(number))) * interval_s)
    turns = np.floor(np.cumsum(np.clip(share, 0.0, 1.0)[number]) + rng.random())
    arrival_s = arrival_s[np.diff(turns, prepend=0.0) > 0]
    prompts, outputs = replica.lengths.draw_pairs(rng, len(arrival_s))
    return Traffic(arrival_s=arrival_s, prompt_tokens=prompts, output_tokens=outputs)

"""How far the walk is from the exact run: one replica's hour, every step of it simulated.

The replica gets what the walk gave each group: of the requests of every interval its random part,
at random times in it. vLLM's schedulers serve them step by step, with the minutes before as a
warm-up. The same replica by the curves is then held against it.
"""

from dataclasses import dataclass
from time import perf_counter
from typing import Final

import numpy as np

from emulator.errors import ConfigError
from serving.traffic.traffic import Traffic
from serving.virtual_day.day_result import DayResult
from serving.virtual_day.replica_run import ReplicaUnderTest, serve

HOUR_S: Final = 3_600.0
_STREAM: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class BothWays:
    """One figure by the exact run and by the walk."""

    exact: float
    walked: float

    @property
    def difference(self) -> float:
        """The walk's less the exact run's."""
        return self.walked - self.exact

    @property
    def relative(self) -> float:
        """The difference over the exact one; 0 when both are 0."""
        return self.difference / self.exact if self.exact else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactHour:
    """One replica from `begin_s` of the day on, for `length_s`.

    `expected_requests` is what the walk gave a group; `requests` is what chance then made of it,
    so that `output_tokens` differ by chance too, about one over the root of the requests.
    """

    policy: str
    begin_s: float
    length_s: float
    warmup_s: float
    requests: int
    expected_requests: float
    steps: int
    ttft: BothWays
    tpot: BothWays
    both: BothWays
    output_tokens: BothWays
    joules: BothWays
    wall_s: float

    @property
    def output_tokens_sigma(self) -> float:
        """One standard deviation of chance in the tokens, relative: of the count alone."""
        return float(1 / np.sqrt(self.requests))


def exact_hour(
    result: DayResult,
    replica: ReplicaUnderTest,
    *,
    begin_s: float,
    length_s: float = HOUR_S,
    warmup_s: float = 60.0,
    seed: int = 0,
) -> ExactHour:
    """Simulate it; raises ConfigError for a time outside of the day, or without requests."""
    began = perf_counter()
    walk, curve = result.walk, result.machine.curve
    interval_s = walk.demand.interval_s
    first, last = round(begin_s / interval_s), round((begin_s + length_s) / interval_s)
    if not 0 <= first < last <= len(walk.demand.arrivals):
        expected = f"within the {walk.demand.length_s / HOUR_S:g} hours of the day"
        raise ConfigError(field="check-hour", value=begin_s / HOUR_S, expected=expected)
    if walk.backlog[first:last].any():
        raise ConfigError(
            field="check-hour", value=begin_s / HOUR_S, expected="an hour without a backlog"
        )
    lead = min(first, round(warmup_s / interval_s))
    traffic = _share_of_one(result, replica, first - lead, last, seed=seed)
    judged = traffic.arrival_s >= lead * interval_s
    if not judged.any():
        raise ConfigError(field="check-hour", value=begin_s / HOUR_S, expected="some requests")
    served = serve(replica, traffic, judged)
    ttft, tpot, both = served.shares(replica.slo)
    rates = walk.group_rates[first:last]
    given = rates * interval_s  # requests of the one group in each interval

    def walked(name: str) -> float:
        return float((curve.share(name, rates) * given).sum() / given.sum())

    return ExactHour(
        policy=result.policy,
        begin_s=first * interval_s,
        length_s=(last - first) * interval_s,
        warmup_s=lead * interval_s,
        requests=int(judged.sum()),
        expected_requests=float(given.sum()),
        steps=served.run.steps,
        ttft=BothWays(exact=ttft, walked=walked("ttft_share")),
        tpot=BothWays(exact=tpot, walked=walked("tpot_share")),
        both=BothWays(exact=both, walked=walked("both_share")),
        output_tokens=BothWays(
            exact=float(served.output_tokens),
            walked=float(given.sum()) * replica.mean_output_tokens,
        ),
        joules=BothWays(
            exact=served.chip_watts * (last - first) * interval_s,
            walked=float(curve.chip_watts(rates).sum()) * interval_s,
        ),
        wall_s=perf_counter() - began,
    )


def _share_of_one(
    result: DayResult, replica: ReplicaUnderTest, first: int, last: int, *, seed: int
) -> Traffic:
    """One group's requests of those intervals, from time 0: a random part of each one's."""
    walk = result.walk
    interval_s = walk.demand.interval_s
    rng = np.random.default_rng([seed, _STREAM])
    arrivals = walk.demand.arrivals[first:last]
    # Without a backlog a group's rate is the arrivals' over the groups that serve.
    share = np.where(
        arrivals > 0, walk.group_rates[first:last] * interval_s / np.maximum(arrivals, 1), 0.0
    )
    counts = rng.binomial(arrivals, np.clip(share, 0.0, 1.0))
    number = np.repeat(np.arange(len(counts)), counts)
    arrival_s = np.sort((number + rng.random(len(number))) * interval_s)
    prompts, outputs = replica.lengths.draw_pairs(rng, len(number))
    return Traffic(arrival_s=arrival_s, prompt_tokens=prompts, output_tokens=outputs)

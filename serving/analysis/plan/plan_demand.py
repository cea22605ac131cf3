"""The traffic that a plan is for, at its peak, and what one of so many replicas gets of it.

A router gives each replica the same share at random; a few of them speak for all.
"""

from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ConfigError
from loadgen.workloads.length_pairs import LengthPairs
from loadgen.workloads.traffic import Traffic

Bools = NDArray[np.bool_]
Float64s = NDArray[np.float64]

LENGTHS_SAMPLE = 20_000
"""So many pairs of lengths stand for a distribution, when its means are asked for."""
COPIES_SPREAD_S = 10.0
"""Copies of a request come up to so much later: users who do the same do not do it in step."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Share:
    """What one replica gets: requests before the judged ones, those, and some after them.

    `begin_s` and `end_s` are when judged requests arrive, in the demand's own time; `warmup_s` is
    how long before that the replica has been at work. `traffic` begins with the warm-up.
    """

    traffic: Traffic
    judged: Bools  # [requests]
    begin_s: float
    end_s: float
    warmup_s: float

    @property
    def judged_s(self) -> tuple[float, float]:
        """When judged requests arrive, in the traffic's time."""
        return self.warmup_s, self.warmup_s + self.end_s - self.begin_s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RateDemand:
    """Requests that arrive independently of each other at one rate.

    Requests longer than `context_tokens` are dropped as they are drawn. Raises ConfigError for a
    rate that is not above 0, or lengths of which none fits the context.
    """

    rate_per_s: float
    lengths: LengthPairs
    context_tokens: int
    lengths_in_words: str
    lengths_seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.rate_per_s < float("inf"):
            raise ConfigError(field="rate", value=self.rate_per_s, expected="above 0")
        if not len(self.peak):
            raise too_long(self.context_tokens)

    @property
    def peak_rate_per_s(self) -> float:
        """The only rate."""
        return self.rate_per_s

    @property
    def peak(self) -> Traffic:
        """A sample: always the same."""
        return self._drawn(self.rate_per_s, LENGTHS_SAMPLE, self.lengths_seed)

    def in_words(self) -> str:
        """The rate and the lengths."""
        return f"{self.rate_per_s:g} requests/s, Poisson; {self.lengths_in_words}"

    def shares(self, replicas: int, *, judged: int, lead_s: float, seed: int) -> tuple[Share, ...]:
        """What one replica gets, with `judged` requests to judge and those of `lead_s` before and
        after them: a random part of independent arrivals is such arrivals too.
        """
        rate_per_s = self.rate_per_s / replicas
        around = ceil(rate_per_s * lead_s)
        traffic = self._drawn(rate_per_s, judged + 2 * around, seed)
        number = np.arange(len(traffic))
        mask = (number >= around) & (number < around + judged)
        begin_s, end_s = traffic.arrival_s[mask][[0, -1]]
        share = Share(
            traffic=traffic,
            judged=mask,
            begin_s=float(begin_s),
            end_s=float(end_s),
            warmup_s=float(begin_s),
        )
        return (share,)

    def _drawn(self, rate_per_s: float, requests: int, seed: int) -> Traffic:
        traffic = Traffic.poisson(
            rate_per_s=rate_per_s, lengths=self.lengths, seed=seed, requests=requests
        )
        return traffic.within_context(self.context_tokens)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TraceDemand:
    """Recorded traffic, whose busiest `window_s` a plan is made for.

    The busiest window is the one whose requests have the most tokens, prompts and replies
    together. Raises ConfigError for a window that is not above 0, or traffic without a rate because
    all of it comes at one time.
    """

    traffic: Traffic
    window_s: float
    source: str

    def __post_init__(self) -> None:
        if not 0 < self.window_s < float("inf"):
            raise ConfigError(field="window", value=self.window_s, expected="above 0 s")
        if not self.traffic.span_s:
            raise ConfigError(
                field="trace",
                value=f"{self.source} ({len(self.traffic)} requests)",
                expected="requests at two or more times",
            )

    @property
    def _span(self) -> tuple[float, float]:
        return busiest_window(self.traffic, self.window_s)

    @property
    def peak(self) -> Traffic:
        """Of the busiest window."""
        return self.traffic.window(*self._span)

    @property
    def peak_rate_per_s(self) -> float:
        """Of the busiest window."""
        begin_s, end_s = self._span
        return len(self.peak) / (end_s - begin_s)

    def in_words(self) -> str:
        """The window, counted from the first request."""
        begin_s, end_s = self._span
        return (
            f"{self.source}: {len(self.traffic):,} requests in {self.traffic.span_s:,.0f} s; "
            f"busiest {end_s - begin_s:,.0f} s: from {begin_s:,.0f} s on, {len(self.peak):,} "
            f"requests, {self.peak_rate_per_s:,.4g} requests/s"
        )

    def shares(self, replicas: int, *, judged: int, lead_s: float, seed: int) -> tuple[Share, ...]:
        """What some of `replicas` get, together about `judged` requests to judge if there are such.

        Those are of the busiest window that holds enough for one replica, at most `window_s`; where
        it has too few for one, several replicas are looked at, at most all. Requests from `lead_s`
        before them, where the traffic has those, until `lead_s` after them are part of it.
        """
        begin_s, end_s = self._span
        enough_s = (end_s - begin_s) * min(1.0, judged * replicas / len(self.peak))
        if enough_s < end_s - begin_s:
            offset_s, until_s = busiest_window(self.peak, enough_s)
            begin_s, end_s = begin_s + offset_s, begin_s + until_s
        from_s = max(0.0, begin_s - lead_s)
        nearby = self.traffic.window(from_s, end_s + lead_s)
        within = (nearby.arrival_s >= begin_s - from_s) & (nearby.arrival_s < end_s - from_s)
        per_replica = max(int(within.sum()), 1) / replicas
        parts = min(replicas, max(1, ceil(judged / per_replica - 0.5)))
        replica = np.random.default_rng(seed).integers(replicas, size=len(nearby))
        return tuple(
            Share(
                traffic=nearby.chosen(replica == part),
                judged=within[replica == part],
                begin_s=begin_s,
                end_s=end_s,
                warmup_s=begin_s - from_s,
            )
            for part in range(parts)
        )


PlanDemand = RateDemand | TraceDemand
"""Traffic whose peak a plan is made for."""


def busiest_window(traffic: Traffic, window_s: float) -> tuple[float, float]:
    """Begin and end of the `window_s` whose requests have the most tokens; it begins at a request.

    All of the traffic when that is shorter.
    """
    if traffic.arrival_s[-1] < window_s:
        return 0.0, float(np.nextafter(traffic.arrival_s[-1], np.inf))
    tokens = traffic.prompt_tokens + traffic.output_tokens
    before = np.concatenate([[0], np.cumsum(tokens)])  # [requests + 1]
    ends = np.searchsorted(traffic.arrival_s, traffic.arrival_s + window_s)
    first = int((before[ends] - before[:-1]).argmax())
    begin_s = float(traffic.arrival_s[first])
    return begin_s, begin_s + window_s


def multiplied(traffic: Traffic, factor: float, *, seed: int) -> Traffic:
    """`factor` times as many requests in the same time, with the same daily curve.

    Whole copies come up to `COPIES_SPREAD_S` later than the recorded ones, each request for itself;
    what is left of the factor is a random part. Raises ConfigError for a factor that is not above
    0, or so large that the copies are more than 10 million.
    """
    if not 0 < factor < float("inf") or factor * len(traffic) > 1e7:
        raise ConfigError(
            field="scale", value=factor, expected="above 0, at most 10 million requests"
        )
    rng = np.random.default_rng(seed)
    whole, rest = divmod(factor, 1.0)
    copies = int(whole) + (rng.random(len(traffic)) < rest)  # [requests]
    which = np.repeat(np.arange(len(traffic)), copies)
    later_s = rng.uniform(0.0, COPIES_SPREAD_S, len(which))
    later_s[np.diff(which, prepend=-1) > 0] = 0.0  # the recorded one stays where it is
    arrival_s = traffic.arrival_s[which] + later_s
    order = np.argsort(arrival_s, kind="stable")
    return Traffic(
        arrival_s=arrival_s[order],
        prompt_tokens=traffic.prompt_tokens[which][order],
        output_tokens=traffic.output_tokens[which][order],
    )


def too_long(context_tokens: int) -> ConfigError:
    """The refusal of traffic that no engine could serve."""
    return ConfigError(
        field="lengths",
        value="all requests",
        expected=f"prompt and reply together within the context of {context_tokens:,} tokens",
    )

"""A plan's traffic at its peak, and the share of one replica.

A router gives each replica the same share at random, conversations whole where it is known what
prompts share; a few replicas speak for all.
"""

from dataclasses import dataclass, field, replace
from math import ceil

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ConfigError
from loadgen.arrivals.arrival_spec import Gaps
from loadgen.workloads.length_pairs import LengthPairs
from loadgen.workloads.traffic import Traffic
from serving.analysis.plan.plan_prefixes import (
    CONVERSATION_PART,
    Prefixes,
    conversations,
    copied,
    uncommon,
)
from serving.analysis.plan.replica_share import Share
from serving.analysis.plan.session_demand import SessionDemand

Int64s = NDArray[np.int64]
Float64s = NDArray[np.float64]

LENGTHS_SAMPLE = 20_000
"""Pairs of lengths that stand for a distribution, for its means."""
COPIES_SPREAD_S = 10.0
"""Largest delay of a copied request: similar users do not act in step."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RateDemand:
    """Independent arrivals at one rate, without requests longer than `context_tokens`.

    Raises ConfigError for a rate that is not above 0, or lengths of which none fits the context.
    """

    rate_per_s: float
    lengths: LengthPairs
    context_tokens: int
    lengths_in_words: str
    lengths_seed: int = 0
    gaps: Gaps = "poisson"

    def __post_init__(self) -> None:
        if not 0 < self.rate_per_s < float("inf"):
            raise ConfigError("rate", self.rate_per_s, "above 0")
        if not len(self.peak):
            raise too_long(self.context_tokens)

    @property
    def peak_rate_per_s(self) -> float:
        """The only rate."""
        return self.rate_per_s

    @property
    def prefixes(self) -> None:
        """Its prompts share nothing."""
        return None

    @property
    def ramp_s(self) -> float:
        """Requests are under way as soon as they arrive."""
        return 0.0

    @property
    def peak(self) -> Traffic:
        """A deterministic sample."""
        return self._sampled()[0]

    def sped_up(self, factor: float) -> "RateDemand":
        """The same requests, `factor` times as fast."""
        return replace(self, rate_per_s=factor * self.rate_per_s)

    def multiplied(self, factor: float, *, seed: int) -> "RateDemand":
        """So many times the requests, in the same time."""
        del seed
        return self.sped_up(factor)

    def in_words(self) -> str:
        """The rate and the lengths."""
        return f"{self.rate_per_s:g} requests/s, Poisson; {self.lengths_in_words}"

    def runs(self, replicas: int, most: int) -> int:
        """How many seeds, up to `most`, give shares that differ."""
        del replicas
        return most

    def shares(
        self, replicas: int, *, judged: int, lead_s: float, seed: int, before_s: float = 0.0
    ) -> tuple[Share, ...]:
        """One replica's share, with `lead_s` of traffic around `judged` requests, or `before_s`
        before them if that is more; a random part of independent arrivals is independent too.
        """
        rate_per_s = self.rate_per_s / replicas
        after, before = (ceil(rate_per_s * each) for each in (lead_s, max(lead_s, before_s)))
        traffic, of_class = self._drawn(rate_per_s, before + judged + after, seed)
        number = np.arange(len(traffic))
        mask = (number >= before) & (number < before + judged)
        begin_s, end_s = traffic.arrival_s[mask][[0, -1]]
        share = Share(
            traffic=traffic,
            judged=mask,
            begin_s=float(begin_s),
            end_s=float(end_s),
            warmup_s=float(begin_s),
            of_class=of_class,
        )
        return (share,)

    def _sampled(self) -> tuple[Traffic, Int64s | None]:
        return self._drawn(self.rate_per_s, LENGTHS_SAMPLE, self.lengths_seed)

    def _drawn(self, rate_per_s: float, requests: int, seed: int) -> tuple[Traffic, Int64s | None]:
        """Requests, and the class of each, [requests]."""
        traffic = Traffic.drawn(
            rate_per_s=rate_per_s,
            lengths=self.lengths,
            seed=seed,
            requests=requests,
            gaps=self.gaps,
        )
        return traffic.within_context(self.context_tokens), None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TraceDemand:
    """Recorded traffic; a plan is for its busiest `window_s`, by prompt and reply tokens.

    `prefixes` are what the prompts of its peak share; None where that is not known.

    Raises ConfigError for a window that is not above 0, or traffic that all comes at one time.
    """

    traffic: Traffic
    window_s: float
    source: str
    prefixes: Prefixes | None = field(init=False)

    def __post_init__(self) -> None:
        if not 0 < self.window_s < float("inf"):
            raise ConfigError("window", self.window_s, "above 0 s")
        if not self.traffic.span_s:
            raise ConfigError(
                "trace",
                f"{self.source} ({len(self.traffic)} requests)",
                "requests at two or more times",
            )
        object.__setattr__(self, "prefixes", Prefixes.of(self.traffic, *self._span))

    @property
    def ramp_s(self) -> float:
        """As of a rate: what came before is sent for its prefixes alone."""
        return 0.0

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

    def sped_up(self, factor: float) -> "TraceDemand":
        """The same requests, `factor` times as fast, and their window."""
        return replace(self, traffic=self.traffic.sped_up(factor), window_s=self.window_s / factor)

    def multiplied(self, factor: float, *, seed: int) -> "TraceDemand":
        """So many times the requests, in the same time; see `multiplied`."""
        return replace(self, traffic=multiplied(self.traffic, factor, seed=seed))

    def in_words(self) -> str:
        """The window, counted from the first request."""
        begin_s, end_s = self._span
        return (
            f"{self.source}: {len(self.traffic):,} requests in {self.traffic.span_s:,.0f} s; "
            f"busiest {end_s - begin_s:,.0f} s: from {begin_s:,.0f} s on, {len(self.peak):,} "
            f"requests, {self.peak_rate_per_s:,.4g} requests/s"
        )

    def runs(self, replicas: int, most: int) -> int:
        """How many seeds, up to `most`, differ: they deal out what was recorded."""
        return most if replicas > 1 else 1

    def shares(
        self, replicas: int, *, judged: int, lead_s: float, seed: int, before_s: float = 0.0
    ) -> tuple[Share, ...]:
        """Shares of some of `replicas`, with together about `judged` requests to judge.

        They lie in the busiest window, shortened to what one replica needs; a window too short for
        one takes several replicas. Traffic runs from `lead_s` before, or `before_s` if that is
        more, as far as recorded, to `lead_s` after it. A conversation stays on its replica.
        """
        begin_s, end_s = self._span
        enough_s = (end_s - begin_s) * min(1.0, judged * replicas / len(self.peak))
        if enough_s < end_s - begin_s:
            offset_s, until_s = busiest_window(self.peak, enough_s)
            begin_s, end_s = begin_s + offset_s, begin_s + until_s
        from_s = max(0.0, begin_s - max(lead_s, before_s))
        nearby = self.traffic.window(from_s, end_s + lead_s)
        within = (nearby.arrival_s >= begin_s - from_s) & (nearby.arrival_s < end_s - from_s)
        per_replica = max(int(within.sum()), 1) / replicas
        parts = min(replicas, max(1, ceil(judged / per_replica - 0.5)))
        together = conversations(nearby, CONVERSATION_PART * len(nearby) / replicas)
        rng = np.random.default_rng(seed)
        replica = rng.integers(replicas, size=int(together.max(initial=-1)) + 1)[together]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficPart:
    """Requests that are dealt out to one of several at random, by `shares` that add up to 1.

    One seed gives each conversation of a trace, or a request that shares nothing, to one part.
    """

    shares: tuple[float, ...]
    number: int
    seed: int

    @property
    def share(self) -> float:
        """Its own."""
        return self.shares[self.number]

    def of_rate(self, demand: RateDemand | SessionDemand) -> RateDemand | SessionDemand:
        """A random part of independent arrivals is independent too."""
        return demand.multiplied(self.share, seed=self.seed)

    def of_trace(self, traffic: Traffic) -> Traffic:
        """The part's requests at their times."""
        together = conversations(traffic, uncommon(traffic))  # [requests]
        count = int(together.max(initial=-1)) + 1
        dealt = np.random.default_rng(self.seed).choice(len(self.shares), size=count, p=self.shares)
        return traffic.chosen(dealt[together] == self.number)


PlanDemand = RateDemand | TraceDemand | SessionDemand
"""Traffic whose peak a plan is made for."""


def busiest_window(traffic: Traffic, window_s: float) -> tuple[float, float]:
    """Begin (a request) and end of the `window_s` with the most tokens; shorter traffic whole."""
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

    Copies of a conversation come up to `COPIES_SPREAD_S` after the original, each by its own delay,
    and share with others only what is common to many requests; the fractional part is a random
    subset of conversations. Without known prefixes each request is one. Raises ConfigError for a
    factor not above 0, or above 10 million requests.
    """
    if not 0 < factor < float("inf") or factor * len(traffic) > 1e7:
        raise ConfigError("scale", factor, "above 0, at most 10 million requests")
    rng = np.random.default_rng(seed)
    whole, rest = divmod(factor, 1.0)
    together = conversations(traffic, uncommon(traffic))  # [requests]
    copies = int(whole) + (rng.random(int(together.max()) + 1) < rest)  # [conversations]
    first = np.append(0, copies.cumsum())
    later_s = rng.uniform(0.0, COPIES_SPREAD_S, int(first[-1]))
    later_s[first[:-1][copies > 0]] = 0.0  # the recorded one stays where it is
    which = np.repeat(np.arange(len(traffic)), copies[together])
    copy = np.arange(len(which)) - np.searchsorted(which, which)
    arrival_s = traffic.arrival_s[which] + later_s[first[together[which]] + copy]
    order = np.argsort(arrival_s, kind="stable")
    return Traffic(
        arrival_s=arrival_s[order],
        prompt_tokens=traffic.prompt_tokens[which][order],
        output_tokens=traffic.output_tokens[which][order],
        blocks=copied(traffic, which[order], copy[order]),
    )


def too_long(context_tokens: int) -> ConfigError:
    """The error for traffic of which no request fits."""
    return ConfigError(
        "lengths",
        "all requests",
        f"prompt and reply together within the context of {context_tokens:,} tokens",
    )

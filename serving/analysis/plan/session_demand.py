"""Sessions that arrive at a rate: turns of conversations and calls of agents, with pauses between.

When a turn comes is known only once the reply before it has ended. What has to be known before goes
by the latest time at which it comes where every reply keeps the target: which turns are judged, how
long sessions go on, how long a cache has to keep what they share.
"""

from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import ceil, inf, sqrt
from typing import Final, Self

import numpy as np

from emulator.errors import ConfigError
from loadgen.arrivals.arrival_spec import ArrivalSpec
from loadgen.measures.slo import Slo
from loadgen.records.arrays import Float64s, Int64s
from loadgen.workloads.class_draft import draft_class
from loadgen.workloads.plan_words import laid_over
from loadgen.workloads.planned_traffic import class_traffic
from loadgen.workloads.traffic import Traffic
from loadgen.workloads.workload_spec import WorkloadSpec
from serving.analysis.plan.plan_prefixes import Prefixes
from serving.analysis.plan.replica_share import Share

SAMPLE: Final = 20_000
"""About so many requests stand for all, for their means and what they share."""
FIRST_SESSIONS: Final = 256
"""Of which the mean number of requests says how many sessions these are."""
RAMP_PERCENTILE: Final = 99.0
"""Of requests: so many come within the ramp after their session's begin."""
MOST_SESSIONS: Final = SAMPLE
"""Drawn for that, where first turns are longer than the context."""
MOST_LEFT_OUT: Final = 0.99
"""Of sessions: where fewer are left, too many would have to be drawn."""
SPREADS: Final = 4.0
"""Standard deviations of how many requests some sessions have, for which enough are drawn."""
_AT_ONE_PER_S: Final = ArrivalSpec(rate="1")


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestReply:
    """Seconds to the first token and between tokens, of the latest reply within a target; infinite
    without a limit.
    """

    first_token_s: float
    token_s: float

    @classmethod
    def within(cls, slo: Slo) -> Self:
        """Of several limits of a kind, at percentiles of their own, the loosest."""
        ttft_s, tpot_s = (
            max((each.limit_s for each in slo.bounds if each.name == name), default=inf)
            for name in ("ttft", "tpot")
        )
        return cls(first_token_s=ttft_s, token_s=tpot_s)

    def after_s(self, traffic: Traffic) -> Float64s:
        """How long after its session's begin each request comes at the latest, [requests].

        Raises ConfigError where one waits for another's reply, whose end has no limit.
        """
        sessions = traffic.sessions
        come_s = np.zeros(len(traffic))
        if sessions is None or not len(sessions.waits[0]):
            return come_s
        for name, limit_s in (("TTFT", self.first_token_s), ("TPOT", self.token_s)):
            if limit_s == inf:
                expected = "limits of TTFT and TPOT: a session's turn comes when a reply has ended"
                raise ConfigError("slo", f"no {name}", expected)
        reply_s = self.first_token_s + self.token_s * (traffic.output_tokens - 1)
        waiting, before = sessions.waits
        while True:
            later_s = come_s.copy()
            comes_s = (come_s + reply_s)[before] + sessions.think_s[waiting]
            np.maximum.at(later_s, waiting, comes_s)
            if (later_s == come_s).all():
                return come_s
            come_s = later_s

    def sped_up(self, factor: float) -> Self:
        """In the same time over `factor`."""
        return type(self)(first_token_s=self.first_token_s / factor, token_s=self.token_s / factor)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SessionDemand:
    """Independent arrivals of sessions at one rate, each whole on one replica.

    A session ends before a turn that is longer than `context_tokens`. `caches`: what turns share
    is kept. `peak` is a sample of requests, at the latest times at which they come; `prefixes` are
    what these share, None where they share nothing.

    Raises ConfigError for a rate that is not above 0, and where hardly a first turn fits.
    """

    sessions_per_s: float
    workload: WorkloadSpec
    latest: LatestReply
    context_tokens: int
    caches: bool = True
    lengths_seed: int = 0
    peak: Traffic = field(init=False)
    prefixes: Prefixes | None = field(init=False)
    ramp_s: float = field(init=False)
    """From the first arrival on until nearly as many sessions are under way as stay so."""
    requests_of_session: float = field(init=False)
    left_out: float = field(init=False)
    """Part of the sessions, whose first turn is longer than the context."""
    requests_spread: float = field(init=False)
    """Of n requests' sessions, as many as come on average, the requests have a standard deviation
    of this times the root of n: sqrt(E[k^2] / E[k]) of sessions of k requests.
    """

    def __post_init__(self) -> None:
        if not 0 < self.sessions_per_s < float("inf"):
            raise ConfigError("rate", self.sessions_per_s, "above 0")
        first, _ = self._drawn(FIRST_SESSIONS, self.lengths_seed)
        sessions = min(ceil(SAMPLE * FIRST_SESSIONS / max(1, len(first))), MOST_SESSIONS)
        sample, after_s = self._drawn(sessions, self.lengths_seed)
        begun = np.unique(_heads(sample), return_counts=True)[1]  # [sessions that fit]
        left_out = 1 - len(begun) / sessions
        if left_out > MOST_LEFT_OUT:
            fit = f"{len(begun):,} of {sessions:,} first turns"
            least = f"{100 * (1 - MOST_LEFT_OUT):g} %"
            expected = f"{least} of them within the context of {self.context_tokens:,} tokens"
            raise ConfigError("lengths", fit, expected)
        come_s = sample.arrival_s / self.sessions_per_s + after_s
        order = np.argsort(come_s, kind="stable")
        peak = Traffic(
            arrival_s=come_s[order],
            prompt_tokens=sample.prompt_tokens[order],
            output_tokens=sample.output_tokens[order],
            blocks=sample.blocks and sample.blocks.chosen(order),
        )
        ramp_s = float(np.percentile(after_s, RAMP_PERCENTILE))
        found = Prefixes.of(peak, 0.0, float("inf"))
        for name, value in (
            ("peak", peak),
            # A session that begins in the ramp has been there from its first turn on.
            ("prefixes", found and replace(found, lead_s=ramp_s, lead_share=1.0)),
            ("ramp_s", ramp_s),
            ("requests_of_session", float(begun.mean())),
            ("left_out", left_out),
            (
                "requests_spread",
                float(np.sqrt((begun.astype(np.float64) ** 2).mean() / begun.mean())),
            ),
        ):
            object.__setattr__(self, name, value)

    @property
    def peak_rate_per_s(self) -> float:
        """Requests per second of all sessions."""
        return self.sessions_per_s * (1 - self.left_out) * self.requests_of_session

    def sped_up(self, factor: float) -> Self:
        """The same sessions in the same time over `factor`, pauses and replies too."""
        workload = replace(self.workload, think_s=self.workload.think_s / factor)
        latest = self.latest.sped_up(factor)
        faster = replace(self, workload=workload, latest=latest)
        return faster.multiplied(factor, seed=0)

    def multiplied(self, factor: float, *, seed: int) -> Self:
        """So many times the sessions, in the same time."""
        del seed
        return replace(self, sessions_per_s=factor * self.sessions_per_s)

    def in_words(self) -> str:
        """The rate, the sessions and the lengths."""
        spec = self.workload
        assert spec.input_lengths is not None
        assert spec.output_lengths is not None
        said = (
            f"{self.sessions_per_s:g} sessions/s, Poisson, of {self.requests_of_session:.3g} "
            f"requests in mean",
            *self._left_out_words(),
            *laid_over(spec),
            f"new tokens of each request {spec.input_lengths.words}, replies of "
            f"{spec.output_lengths.words}",
        )
        return "; ".join(said)

    def _left_out_words(self) -> tuple[str, ...]:
        if not self.left_out:
            return ()
        words = f"without {100 * self.left_out:.3g} % of the sessions"
        return (f"{words}, whose first turn is longer than the context",)

    def runs(self, replicas: int, most: int) -> int:
        """How many seeds, up to `most`, give shares that differ."""
        del replicas
        return most

    def shares(
        self, replicas: int, *, judged: int, lead_s: float, seed: int, before_s: float = 0.0
    ) -> tuple[Share, ...]:
        """One replica's sessions: a random part of independent arrivals is independent too.

        Of the requests that come after the ramp, `lead_s` and `before_s`, at the latest, so many
        are judged; sessions go on to arrive for `lead_s` after them.
        """
        per_s = self.sessions_per_s / replicas
        begin_s = max(lead_s, before_s, self.ramp_s)
        enough = judged + SPREADS * self.requests_spread * sqrt(judged)
        fit = enough / self.requests_of_session
        fit += SPREADS * sqrt(fit) * (self.left_out > 0)
        sessions = ceil(per_s * (begin_s + lead_s) + fit / (1 - self.left_out))
        sessions += ceil(SPREADS * sqrt(sessions))
        while True:
            traffic, after_s = self._drawn(sessions, seed)
            arrival_s = traffic.arrival_s / per_s
            come_s = arrival_s + after_s
            order = np.argsort(come_s, kind="stable")
            those = order[come_s[order] >= begin_s][:judged]
            if len(those) == judged:
                break
            sessions *= 2  # chance left out more of a few
        end_s = float(come_s[those[-1]])
        is_judged = np.zeros(len(traffic), dtype=np.bool_)
        is_judged[those] = True
        sent = arrival_s <= end_s + lead_s
        share = Share(
            traffic=replace(traffic, arrival_s=arrival_s).chosen(sent),
            judged=is_judged[sent],
            begin_s=begin_s,
            end_s=end_s,
            warmup_s=begin_s,
        )
        return (share,)

    def _drawn(self, sessions: int, seed: int) -> tuple[Traffic, Float64s]:
        """The first so many sessions of a seed, one a second, and `LatestReply.after_s`."""
        room = 1 << (sessions - 1).bit_length()
        whole, after_s, begun_s = _drawn(
            self.workload,
            self.latest,
            sessions=max(room, FIRST_SESSIONS),
            seed=seed,
            context_tokens=self.context_tokens,
            caches=self.caches,
        )
        those = whole.arrival_s <= begun_s[sessions - 1]
        return whole.chosen(those), after_s[those]


@lru_cache(maxsize=16)
def _drawn(
    workload: WorkloadSpec,
    latest: LatestReply,
    *,
    sessions: int,
    seed: int,
    context_tokens: int,
    caches: bool,
) -> tuple[Traffic, Float64s, Float64s]:
    """The requests that fit, `LatestReply.after_s`, and when each session begins, [sessions]."""
    draft = draft_class(replace(workload, sessions=sessions), _AT_ONE_PER_S, seed=seed)
    whole = class_traffic(draft).traffic
    begun_s = whole.arrival_s[np.unique(_heads(whole))]
    traffic = whole.within_context(context_tokens)
    if not caches:
        traffic = replace(traffic, blocks=None)
    return traffic, latest.after_s(traffic), begun_s


def _heads(traffic: Traffic) -> Int64s:
    """The first request of each one's session, [requests]."""
    sessions = traffic.sessions
    return np.arange(len(traffic)) if sessions is None else sessions.heads

"""What the simulation of a size has shown, limit by limit of the target."""

from dataclasses import dataclass
from typing import Final

from loadgen.records.estimate import Estimate
from reporting.numbers import four_digits
from serving.analysis.plan.class_demand import measure_of, measure_words
from serving.analysis.plan.plan_options import unit_chips
from serving.analysis.steady_state.partitions import PartitionCandidate
from serving.traffic.engine_limits import BatchLimits
from serving.traffic.serving_run import Ending

FRESH_PASSED: Final = 10
"""Further runs in a row that all keep a limit of a plan's answer,"""
STANDS_TAIL: Final = 0.05 / FRESH_PASSED
"""each limit with 95 % confidence: of one more run so little is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """What one more run of so many `requests` reaches at the limit's percentile: about `likely_s`,
    the geometric mean of the runs that there are; with this `confidence` at least `least_s`, and
    with the same at most `most_s`: no less than the worst of those runs, and no more than the best.

    `of_class`: about so many of the requests are of the limit's class. `windows` were judged,
    with a standard deviation of their logarithms, `spread`. Many runs together reach more than
    `likely_s`, as slow ones have most of the slowest requests.
    """

    requests: int
    of_class: int | None = None
    confidence: float
    windows: int
    spread: float
    least_s: float
    likely_s: float
    most_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TermCheck:
    """One limit of the target; `reached_s` is None when the run ended before it was known.

    It is judged by `requests`: all, or those of a traffic class. `share` of these kept it, and with
    95 % confidence `share_low` to `share_high` do: requests that wait for each other count for
    fewer. After an early end it is an upper bound, without an interval. `again` is None for fewer
    than two runs.
    """

    name: str
    limit_s: float
    percentile: float
    reached_s: float | None
    share: float
    share_low: float | None
    share_high: float | None
    again: Again | None = None
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
    def again_words(self) -> str:
        """As `; one more run of 3,000 requests: about 700 ms, at least 640 and at most 800 ms with
        99.5 % confidence each`.
        """
        if (again := self.again) is None:
            return ""
        least, likely, most = (
            four_digits(1e3 * each) for each in (again.least_s, again.likely_s, again.most_s)
        )
        of_class = f" (of which about {again.of_class:,})" if again.of_class is not None else ""
        return (
            f"; one more run of {again.requests:,} requests{of_class}: about {likely} ms, "
            f"at least {least} and at most {most} ms "
            f"with {100 * again.confidence:g} % confidence each"
        )

    @property
    def is_sure(self) -> bool:
        """Whether the interval leaves no doubt of `kept`."""
        if self.share_low is None or self.share_high is None:
            return True
        wanted = self.percentile / 100
        return self.share_low >= wanted or self.share_high < wanted

    @property
    def is_surely_kept(self) -> bool:
        """Whether no interval leaves a doubt that it is, or that one more run keeps it."""
        if self.share_low is None or self.share_low < self.percentile / 100:
            return False
        return self.again is None or self.again.most_s <= self.limit_s

    @property
    def is_why_refuted(self) -> bool:
        """Whether it is not surely kept; after an early end, whether this was missed."""
        return not (self.kept if self.share_low is None else self.is_surely_kept)

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
    def reached_words(self) -> str:
        """Of each limit, as `TTFT p99 734.2 ms, TPOT p99 26.5 ms`."""
        return ", ".join(term.reached_words for term in self.terms)

    @property
    def meets(self) -> bool:
        """Whether every limit was kept, at a load that can last."""
        return self.load_share <= 1 and all(term.kept for term in self.terms)

    @property
    def surely_meets(self) -> bool:
        """Whether it does with 95 % confidence."""
        return self.load_share <= 1 and all(term.is_surely_kept for term in self.terms)

    @property
    def verdict(self) -> str:
        """As `meets the target`; few runs only seem to show it."""
        again = (term.again for term in self.terms)
        if not self.meets:
            return "DOES NOT MEET the target"
        if not self.surely_meets:
            return "does not surely meet the target"
        if any(each is not None and each.confidence < 1 - STANDS_TAIL for each in again):
            return "seems to meet the target, by few runs"
        return "meets the target"

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


def quality(check: Check) -> tuple[float, float]:
    """The more, the better: the worst limit's share of requests, then how far it is from it.

    A run that was broken off is worse than any other: its shares are bounds.
    """
    share = min(min(1.0, term.share / (term.percentile / 100)) for term in check.terms)
    if any(term.share_high is None for term in check.terms):
        share -= 1.0
    ratios = [
        float("inf") if term.reached_s is None else term.reached_s / term.limit_s
        for term in check.terms
    ]
    return share, -max(ratios)

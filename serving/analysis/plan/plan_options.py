"""Partitions that could meet a target, the smallest plan first, by the steady state alone.

The cost model bounds a replica's requests by the mean time between tokens and a long prompt's first
token. Queues and percentiles are left to simulation, a thousand times slower.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from emulator.units import NS_PER_S
from loadgen.measures.percentile import percentile
from loadgen.measures.slo import Slo
from serving.analysis.plan.plan_demand import PlanDemand
from serving.analysis.steady_state.operating_point import OperatingPoint
from serving.analysis.steady_state.partitions import PartitionCandidate
from serving.analysis.steady_state.replica import Replica
from serving.analysis.steady_state.sweep import Sweep

LEAST_SHARE: Final = 0.05
"""Prompts' least share of a replica's time in the first guess, which bounds the replicas."""
KV_BLOCK_TOKENS_MAX: Final = 256
"""A pool counts in blocks and keeps one for itself: two of the largest that there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A partition at the highest load of a replica.

    Attributes:
        point: of a full machine, the largest batch within the target when as many requests begin as
            end, or one request a rank.
        meets: an idle replica keeps the target.
        alone_ns: between tokens of a lone request.
        prompt_ns: first token on an idle replica, at the target's percentile of prompt lengths.
        requests_per_s: of one replica within the target.
        most_requests_per_s: of a full replica: above it the queue grows without end.
        steady: requests per second of a replica and ns between tokens, by ascending batches.
    """

    point: OperatingPoint
    meets: bool
    alone_ns: float
    prompt_ns: float
    requests_per_s: float
    replicas: int
    most_requests_per_s: float
    steady: tuple[tuple[float, float], ...]

    def tpot_ns_at(self, requests_per_s: float) -> float:
        """Between tokens at the next batch that serves as many requests, at most `point`'s."""
        enough = (tpot_ns for most, tpot_ns in self.steady if most >= requests_per_s)
        return min(next(enough, self.point.tpot_ns), self.point.tpot_ns)

    @property
    def candidate(self) -> PartitionCandidate:
        """The partition."""
        return self.point.candidate

    @property
    def replica_chips(self) -> int:
        """Chips of one replica."""
        return self.candidate.partition.chips

    @property
    def chips(self) -> int:
        """Chips of all replicas for the peak."""
        return self.replicas * self.replica_chips


class Options:
    """A machine's options for traffic and a target, evaluated lazily."""

    def __init__(self, sweep: Sweep, demand: PlanDemand, slo: Slo, *, seats: int) -> None:
        """`seats`: a rank's concurrency limit. Raises ConfigError when the model fits nowhere."""
        peak = demand.peak
        self._sweep = sweep
        self._slo = slo
        self._seats = seats
        self._peak_rate_per_s = demand.peak_rate_per_s
        # The prompt that the target's percentile of prompts does not exceed.
        self._long_prompt = int(percentile(peak.prompt_tokens, slo.ttft_percentile))
        self._longest = int((peak.prompt_tokens + peak.output_tokens).max())
        self._tasks = sweep.tasks()  # by chips of a replica
        self._looked_at = 0
        self._found: dict[tuple[int, int, int], Option] = {}

    def smallest_first(self) -> tuple[Option, ...]:
        """By chips of the plan, then power, until no larger partition can be a smaller plan.

        Those that cannot meet the target come last, the fastest first. Of LNCs the best one stays.
        """
        while self._looked_at < len(self._tasks):
            least = min((each.chips for each in self._found.values() if each.meets), default=None)
            if least is not None and self._next_chips() > least:
                break
            self._look_at_next()
        return self.known()

    def below(self, chips: int) -> tuple[Option, ...]:
        """All with replicas of fewer chips, in the same order."""
        while self._looked_at < len(self._tasks) and self._next_chips() < chips:
            self._look_at_next()
        return tuple(each for each in self.known() if each.replica_chips < chips)

    def known(self) -> tuple[Option, ...]:
        """All evaluated ones, in the same order."""
        return tuple(sorted(self._found.values(), key=_order))

    def _next_chips(self) -> int:
        return self._tasks[self._looked_at][1].partition.chips

    def _look_at_next(self) -> None:
        precision, candidate = self._tasks[self._looked_at]
        self._looked_at += 1
        if candidate.kv_capacity_tokens < self._longest + KV_BLOCK_TOKENS_MAX:
            return  # the longest request would wait for ever
        replica = self._sweep.replica(precision, candidate)
        option = self._option(replica)
        partition = candidate.partition
        shape = (partition.chips, partition.tp, partition.ep)
        self._found[shape] = min(self._found.get(shape, option), option, key=_order)

    def _option(self, replica: Replica) -> Option:
        slo, long_prompt = self._slo, self._long_prompt
        longer = replace(self._sweep, shape=replace(self._sweep.shape, prompt_tokens=long_prompt))
        prompt_ns = longer.replica(replica.precision, replica.candidate).prompt_ns
        alone_ns = replica.decode(1).duration_ns
        in_time = slo.ttft_s is None or prompt_ns <= slo.ttft_s * NS_PER_S
        limit_ns = float("inf") if slo.tpot_s is None else slo.tpot_s * NS_PER_S
        points = [replica.operating_point(batch) for batch in replica.seated(self._seats) or [1]]
        point = _largest_within(replica, points, limit_ns)
        replicas = replica.candidate.replicas
        if point is not None:
            requests_per_s = point.requests_per_s / replicas
        else:
            requests_per_s = _beside_prompts(alone_ns, replica.prompt_ns, limit_ns)
        return Option(
            point=point or points[0],
            meets=in_time and alone_ns <= limit_ns,
            alone_ns=alone_ns,
            prompt_ns=prompt_ns,
            requests_per_s=requests_per_s,
            replicas=max(1, ceil(self._peak_rate_per_s / requests_per_s)),
            most_requests_per_s=max(each.requests_per_s for each in points) / replicas,
            steady=tuple((each.requests_per_s / replicas, each.tpot_ns) for each in points),
        )


def strongest(options: Iterable[Option], *, below_chips: int) -> Option | None:
    """The option that takes the most with fewer chips; last any that misses the target idle."""
    smaller = [option for option in options if option.replica_chips < below_chips]
    return min(
        smaller,
        key=lambda option: (
            not option.meets,
            -replicas_below(option, below_chips) * option.requests_per_s,
            _order(option),
        ),
        default=None,
    )


def replicas_below(option: Option, chips: int) -> int:
    """The most replicas that together have fewer than `chips` chips."""
    return (chips - 1) // option.replica_chips


def _order(option: Option) -> tuple[object, ...]:
    """Ties of chips and power go to the smaller replica, whose loss is the smaller loss."""
    partition = option.candidate.partition
    sizes = (partition.chips, partition.tp, partition.ep, partition.lnc, partition.attention_split)
    if option.meets:
        watts = option.point.drawn_watts / option.point.candidate.replicas * option.replicas
        return (0, option.chips, watts, *sizes)
    return (1, option.alone_ns, option.prompt_ns, *sizes)


def _beside_prompts(alone_ns: float, prompt_ns: float, limit_ns: float) -> float:
    """Requests per second whose prompts leave a lone request its time between tokens: with the
    prompts' share of all time, alone / (1 - share) is the limit.

    A first guess, for lightly loaded replicas, of whose steps most have no prompt.
    """
    share = max(LEAST_SHARE, 1 - alone_ns / limit_ns)
    return share / prompt_ns * NS_PER_S


def _largest_within(
    replica: Replica, points: Sequence[OperatingPoint], limit_ns: float
) -> OperatingPoint | None:
    """About the largest batch with its mean time between tokens within the limit.

    By bisection after the last of `points` (ascending batches) within it, also where times do not
    grow with the batch.
    """
    best: OperatingPoint | None = None
    for point in points:
        if point.tpot_ns > limit_ns:
            break
        best = point
    else:
        return best
    if best is None:
        return None
    low, high = best.batch, point.batch
    while high - low > max(1, low // 16):  # a sixteenth is finer than the estimate is good
        middle = (low + high) // 2
        between = replica.operating_point(middle)
        if between.tpot_ns <= limit_ns:
            low, best = middle, between
        else:
            high = middle
    return best

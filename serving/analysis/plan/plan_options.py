"""Partitions that could meet a target, by the steady state alone.

The cost model bounds a replica's requests by the mean time between tokens and a long prompt's first
token. Queues and percentiles are left to simulation, a thousand times slower.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor
from typing import Final, Self

import numpy as np

from emulator.arrays import Bools, Int64s
from emulator.units import NS_PER_S
from loadgen.measures.percentile import percentile
from loadgen.measures.slo import Slo
from loadgen.records.plain_number import counted
from serving.analysis.plan.class_demand import steady_target
from serving.analysis.plan.plan_demand import PlanDemand
from serving.analysis.plan.plan_prefixes import Prefixes
from serving.analysis.steady_state.operating_point import OperatingPoint
from serving.analysis.steady_state.partitions import PartitionCandidate
from serving.analysis.steady_state.replica import Replica
from serving.analysis.steady_state.sweep import PARALLEL_FROM, Sweep, Task
from serving.simulator import SimulationWorkers

LEAST_SHARE: Final = 0.05
"""Prompts' least share of a replica's time in the first guess, which bounds the replicas."""
NEAR: Final = 1.04
"""Ratio of sizes that may stand for each other."""
_PARTS_OF_PROCESS: Final = 4
_LEFT_MIN: Final = 1e-3
KV_BLOCK_TOKENS_MAX: Final = 256
"""A pool counts in blocks and keeps one for itself: two of the largest that there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A partition, or a unit of pools, at the highest load of a replica.

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

    def promise(self, slo: Slo) -> float:
        """Requests per second of a replica, times what a long prompt leaves of its time to the
        first token: how promising it is to simulate.
        """
        ttft_s = float("inf") if slo.ttft_s is None else slo.ttft_s
        return self.requests_per_s * max(1 - self.prompt_ns / (ttft_s * NS_PER_S), _LEFT_MIN)

    @property
    def candidate(self) -> PartitionCandidate:
        """The partition; of pools the one that decodes."""
        return self.point.candidate

    @property
    def is_pooled(self) -> bool:
        """Whether it is a unit of pools."""
        return self.point.prefill is not None

    @property
    def replica_chips(self) -> int:
        """Chips of one replica, or of one unit of pools."""
        return unit_chips(self.candidate, self.point.prefill)

    @property
    def chips(self) -> int:
        """Chips of all replicas for the peak."""
        return self.replicas * self.replica_chips


def unit_chips(candidate: PartitionCandidate, prefill: PartitionCandidate | None) -> int:
    """Of one replica, or of all engines of a unit of pools: so many of each are in one. With their
    spares.
    """
    if prefill is None:
        return _engine_chips(candidate)
    return sum(each.replicas * _engine_chips(each) for each in (candidate, prefill))


def _engine_chips(candidate: PartitionCandidate) -> int:
    return candidate.partition.chips + candidate.partition.spares


def unit_words(candidate: PartitionCandidate, prefill: PartitionCandidate | None) -> str:
    """As `29 chips (tp 1, ep 29, lnc 2)`, or both pools of a unit."""
    if prefill is None:
        return _partition_words(candidate)
    both = (f"{each.replicas} x {_partition_words(each)}" for each in (prefill, candidate))
    return f"({' for prompts + '.join(both)} to decode)"


def _partition_words(candidate: PartitionCandidate) -> str:
    partition = candidate.partition
    spares = f", {counted(partition.spares, 'spare')}" if partition.spares else ""
    return f"{counted(partition.chips, 'chip')} ({partition.division}{spares})"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionTerms:
    """What a partition is asked: a peak's rate and lengths, a target, and a rank's `seats`.

    `long_prompt` is the one that the target's percentile of prompts does not exceed, by the tokens
    to compute: those beside the `long_cached_tokens` that a cache finds, without bounds or as an
    engine has it (`as_kept`). `fuller` is
    the mean length of the prompt that a token to compute is in, in mean prompts: 1 if all are
    equal.
    """

    sweep: Sweep
    slo: Slo
    seats: int
    rate_per_s: float
    long_prompt: int
    fuller: float
    longest: int
    long_cached_tokens: int = 0
    prefixes: Prefixes | None = None

    @classmethod
    def of(cls, sweep: Sweep, demand: PlanDemand, slo: Slo, *, seats: int) -> Self:
        """Those of `demand`'s peak."""
        peak, prefixes = demand.peak, demand.prefixes
        steady_slo, of_ttft = steady_target(demand, slo)
        cached = np.zeros(len(peak), np.int64)
        if prefixes is not None:
            cached = prefixes.cached_within(float("inf"))
        computed = peak.prompt_tokens - cached
        long = _long(computed, steady_slo, of_ttft)
        return cls(
            sweep=sweep,
            slo=steady_slo,
            seats=seats,
            rate_per_s=demand.peak_rate_per_s,
            long_prompt=int(peak.prompt_tokens[long]),
            long_cached_tokens=int(cached[long]),
            fuller=float(1 + np.var(computed) / np.mean(computed) ** 2),
            longest=int((peak.prompt_tokens + peak.output_tokens).max()),
            prefixes=prefixes,
        )

    def as_kept(self, replica: Replica) -> tuple[Self, Replica]:
        """Long prompt and mean request with the prefixes that the engine's KV keeps while it
        computes prompts without a pause: then no requests, however many are cached, bring more new
        tokens, so that at the highest load it keeps them for no less.
        """
        if self.prefixes is None:
            return self, replica
        step, prompts = replica.prefill()
        tokens_per_s = prompts * replica.shape.computed_tokens / step.duration_ns * NS_PER_S
        kept_s = replica.candidate.kv_capacity_tokens / tokens_per_s
        cached = self.prefixes.cached_within(kept_s)
        long = _long(self.prefixes.prompt_tokens - cached, self.slo)
        terms = replace(
            self,
            long_prompt=int(self.prefixes.prompt_tokens[long]),
            long_cached_tokens=int(cached[long]),
        )
        return terms, replica.with_shape(self.prefixes.shape(replica.shape, kept_s))

    def prompt_ns(self, replica: Replica) -> float:
        """Of the long prompt, from an idle replica's first step to its first token."""
        return replica.prompt_ns_of(self.long_prompt, self.long_cached_tokens)

    def is_in_time(self, prompt_ns: float) -> bool:
        """Whether the target's TTFT allows it."""
        return self.slo.ttft_s is None or prompt_ns <= self.slo.ttft_s * NS_PER_S

    def fits(self, task: Task) -> bool:
        """Whether the longest request would not wait for ever."""
        return task[1].kv_capacity_tokens >= self.longest + KV_BLOCK_TOKENS_MAX

    def option(self, task: Task) -> Option | None:
        """None where it does not fit."""
        return self.option_of(self.sweep.replica(*task)) if self.fits(task) else None

    def option_of(self, replica: Replica) -> Option:
        """Of a replica into which the longest request fits."""
        slo = self.slo
        kept, of_kept = self.as_kept(replica)
        bound = of_kept.shape.computed_tokens / replica.shape.computed_tokens
        prompt_ns = kept.prompt_ns(of_kept)
        # An idle replica keeps all that came.
        in_time = self.is_in_time(prompt_ns) or self.is_in_time(self.prompt_ns(replica))
        replica = of_kept
        alone_ns = replica.decode(1).duration_ns
        limit_ns = float("inf") if slo.tpot_s is None else slo.tpot_s * NS_PER_S
        batches = replica.seated(self.seats) or [1]
        points = replica.operating_points(sorted({*batches[::2], batches[-1]}))
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
            replicas=max(1, ceil(self.rate_per_s / requests_per_s)),
            most_requests_per_s=bound * max(each.requests_per_s for each in points) / replicas,
            steady=tuple((each.requests_per_s / replicas, each.tpot_ns) for each in points),
        )


def _long(computed: Int64s, slo: Slo, those: Bools | slice = slice(None)) -> int:
    """The request of the peak, by its number, that the target's percentile of `those` does not
    exceed, by `computed` tokens: [requests].
    """
    return int((computed == percentile(computed[those], slo.ttft_percentile)).argmax())


def best_options(options: Iterable[Option]) -> tuple[Option, ...]:
    """Of each chips, tp and ep the best, by chips of the plan, then power.

    Those that cannot meet the target come last, the fastest first.
    """
    best: dict[tuple[int, int, int], Option] = {}
    for option in options:
        partition = option.candidate.partition
        shape = (partition.chips, partition.tp, partition.ep)
        best[shape] = min(best.get(shape, option), option, key=_order)
    return tuple(sorted(best.values(), key=_order))


def parts_of(tasks: Sequence[Task], workers: SimulationWorkers) -> list[Sequence[Task]]:
    """For the workers, as far as it is worth their start."""
    parts = 1
    if workers.count > 1 and len(tasks) >= PARALLEL_FROM:
        parts = _PARTS_OF_PROCESS * workers.count
    return [tasks[first::parts] for first in range(parts)]


def near_sizes(sizes: Iterable[int], machine_chips: int) -> set[int]:
    """Of ascending `sizes` of replicas, in chips, those to look at: the smallest, those that divide
    a machine, and others at least `NEAR` times the one before.
    """
    chosen: set[int] = set()
    last = 0.0
    for size in sizes:
        if machine_chips % size == 0 or size >= NEAR * last:
            chosen.add(size)
            last = size
    return chosen


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


def size_ends(least: int, most: int, *, ratio: float) -> list[int]:
    """Numbers of chips from `least` on, each about `ratio` times the one before, to `most`."""
    ends = [least]
    while ends[-1] < most:
        ends.append(min(most, max(ends[-1] + 1, floor(ends[-1] * ratio))))
    return ends

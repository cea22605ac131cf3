"""Partitions that could meet a target, the smallest plan first, by the steady state alone.

The cost model says how many requests a replica takes while the mean time between tokens keeps to
the target, and whether the first token of a long prompt can come in time at all. It knows no queue
and no percentile: that is for simulation to say, which is a thousand times slower.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from emulator.units import NS_PER_S
from serving.planning.operating_point import OperatingPoint
from serving.planning.partitions import Candidate
from serving.planning.plan_demand import Demand
from serving.planning.replica import Replica
from serving.planning.slo import Slo
from serving.planning.sweep import Sweep

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A partition at the most that a replica of it can take; `point` is of a full machine.

    `meets` says whether the steady state keeps the target; if not, `point` is that of one request
    a rank, the best that the partition does. `prompt_ns` is the first token of a prompt as long as
    the target's percentile of prompts, on an idle replica. `replicas` is what the peak asks for.
    """

    point: OperatingPoint
    meets: bool
    prompt_ns: float
    replicas: int

    @property
    def candidate(self) -> Candidate:
        """The partition."""
        return self.point.candidate

    @property
    def replica_chips(self) -> int:
        """Chips of one replica."""
        return self.candidate.partition.chips

    @property
    def chips(self) -> int:
        """Chips of all replicas that the peak asks for."""
        return self.replicas * self.replica_chips

    @property
    def requests_per_s(self) -> float:
        """What one replica takes."""
        return self.point.requests_per_s / self.candidate.replicas


def ranked_options(
    sweep: Sweep, demand: Demand, slo: Slo, progress: Progress
) -> tuple[Option, ...]:
    """Options in the order in which they are worth a simulation: fewest chips, then least power.

    Those that cannot meet the target come last, the fastest first. Of options that differ in LNC
    alone the better one stays. Partitions that are larger than a plan that was found are not
    looked at. Raises ConfigError when the model fits nowhere.
    """
    peak = demand.peak
    long_prompt = _long_prompt(peak.prompt_tokens, slo)
    found: dict[tuple[int, int, int], Option] = {}
    least_chips: int | None = None
    tasks = sweep.tasks()
    progress(f"{len(tasks)} partitions have room for {sweep.model.name}")
    for precision, candidate in tasks:
        partition = candidate.partition
        if least_chips is not None and partition.chips > least_chips:
            break
        replica = sweep.replica(precision, candidate)
        if not replica.kv_batch_max:
            continue
        option = _option(sweep, replica, demand.peak_rate_per_s, slo, long_prompt)
        if option.meets:
            least_chips = min(least_chips or option.chips, option.chips)
        shape = (partition.chips, partition.tp, partition.ep)
        found[shape] = min(found.get(shape, option), option, key=_order)
    return tuple(sorted(found.values(), key=_order))


def next_to_try(options: Iterable[Option], *, below_chips: int) -> Option | None:
    """The option that takes the most of the peak with fewer chips than that; None without any."""
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
    """The most replicas of an option that together have fewer than `chips` chips."""
    return (chips - 1) // option.replica_chips


def _order(option: Option) -> tuple[object, ...]:
    """Ties of chips and power go to the smaller replica, whose loss is the smaller loss."""
    partition = option.candidate.partition
    sizes = (partition.chips, partition.tp, partition.ep, partition.lnc)
    if option.meets:
        watts = option.point.drawn_watts / option.point.candidate.replicas * option.replicas
        return (0, option.chips, watts, *sizes)
    return (1, option.point.tpot_ns, option.prompt_ns, *sizes)


def _option(
    sweep: Sweep, replica: Replica, peak_rate_per_s: float, slo: Slo, long_prompt: int
) -> Option:
    prompt_ns = _prompt_ns(sweep, replica, long_prompt)
    in_time = slo.ttft_s is None or prompt_ns <= slo.ttft_s * NS_PER_S
    limit_ns = float("inf") if slo.tpot_s is None else slo.tpot_s * NS_PER_S
    point = _largest_within(replica, limit_ns) if in_time else None
    best = point or replica.operating_point(1)
    per_replica = best.requests_per_s / best.candidate.replicas
    return Option(
        point=best,
        meets=point is not None,
        prompt_ns=prompt_ns,
        replicas=max(1, ceil(peak_rate_per_s / per_replica)),
    )


def _prompt_ns(sweep: Sweep, replica: Replica, long_prompt: int) -> float:
    shape = replace(sweep.shape, prompt_tokens=long_prompt)
    longer = replace(sweep, shape=shape)
    return longer.replica(replica.precision, replica.candidate).prompt_ns


def _largest_within(replica: Replica, limit_ns: float) -> OperatingPoint | None:
    """The point of the largest batch whose mean time between tokens is within the limit.

    Times grow with the batch; where they do not quite, the batch that is found is within all the
    same.
    """
    batches = list(replica.batches())
    if not batches:
        return None
    low, high = 0, batches[-1] + 1  # low is within, high is not or does not fit
    best: OperatingPoint | None = None
    for batch in batches:
        point = replica.operating_point(batch)
        if point.tpot_ns > limit_ns:
            high = batch
            break
        low, best = batch, point
    while high - low > max(1, low // 16):  # a sixteenth is finer than the estimate is good
        middle = (low + high) // 2
        point = replica.operating_point(middle)
        if point.tpot_ns <= limit_ns:
            low, best = middle, point
        else:
            high = middle
    return best


def _long_prompt(prompt_tokens: np.ndarray, slo: Slo) -> int:
    """The prompt that the target's percentile of prompts does not exceed."""
    return int(np.percentile(prompt_tokens, slo.ttft_percentile, method="inverted_cdf"))

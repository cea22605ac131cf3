"""One replica simulated exactly at one rate: latencies and power.

vLLM's schedulers serve arrivals in virtual time; judged requests come after a warm-up and before a
tail. Replicas get Poisson arrivals by turns, and are alike: one speaks for all. Of an engine whose
parts change hands, some may be away: its own hand-over took them out. What simulates is imported
when it is needed, since a day whose curve is kept needs none of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ConfigError
from emulator.ultraserver.step_cost import StepCostModel
from loadgen.measures.percentile import percentile
from loadgen.measures.slo import Slo
from loadgen.workloads.length_pairs import ObservedLengths
from loadgen.workloads.traffic import Traffic
from serving.analysis.steady_state.partitions import PartitionCandidate
from serving.analysis.steady_state.sweep import Sweep
from serving.traffic.engine_limits import EngineLimits
from serving.wire.control_call import DrainRequest
from serving.wire.machine_state import FOR_MAINTENANCE

if TYPE_CHECKING:
    from serving.simulator import Run, SimulatedDeployment, TimedCall

Bools = NDArray[np.bool_]
Float64s = NDArray[np.float64]

SHOWN_PERCENTILE = 99.0
TAIL = (10.0, 50.0, 90.0, 95.0, 98.0, SHOWN_PERCENTILE, 99.5, 99.9)
"""Percentiles of a rate's latencies, from which those of several rates together are found."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReplicaUnderTest:
    """A replica, its limits and target; raises ConfigError for lengths above the context.

    `group_chips` change hands together, `away` such groups are out all the time, the last ones;
    None: all of it is one group.
    """

    sweep: Sweep
    precision: str
    candidate: PartitionCandidate
    limits: EngineLimits
    lengths: ObservedLengths
    slo: Slo
    group_chips: int | None = None
    away: int = 0

    def __post_init__(self) -> None:
        longest = int((self.lengths.prompt_tokens + self.lengths.output_tokens).max())
        context = self.sweep.model.max_context_tokens
        if longest > context:
            expected = f"prompts and replies within the context of {context:,} tokens"
            raise ConfigError("lengths", longest, expected)

    def cost_model(self) -> StepCostModel:
        """Of the replica whose chips lie the farthest apart."""
        return self.sweep.cost_model(self.precision, self.candidate)

    def deployment(self) -> SimulatedDeployment:
        """The replica for `simulate()`."""
        from serving.simulator import SimulatedDeployment

        return SimulatedDeployment(cost_model=self.cost_model(), limits=self.limits)

    @property
    def groups(self) -> int:
        """That change hands each by itself."""
        return self.candidate.partition.chips // self.chips_per_group

    @property
    def chips_per_group(self) -> int:
        """All of a replica's, unless its parts change hands."""
        return self.group_chips or self.candidate.partition.chips

    def engines(self, groups: int) -> int:
        """Of so many groups: one, or a replica each."""
        return 1 if self.group_chips else groups

    @property
    def idle_chip_watts(self) -> float:
        """Of a chip that computes nothing."""
        return self.sweep.system.chip.idle_watts.value

    @property
    def serving(self) -> int:
        """Groups that are not away."""
        return self.groups - self.away

    @property
    def away_watts(self) -> float:
        """Of the groups that are away, idle."""
        return self.away * self.chips_per_group * self.idle_chip_watts

    def with_away(self, groups: int) -> ReplicaUnderTest:
        """The same with so many groups away."""
        return replace(self, away=groups)

    def departures(self) -> tuple[TimedCall, ...]:
        """The calls by which the groups that are away have left, one after another."""
        from serving.simulator import TimedCall

        chips = self.chips_per_group
        firsts = (number * chips for number in range(self.groups - 1, self.serving - 1, -1))
        return tuple(TimedCall(at_s=0.0, call=_drain(range(at, at + chips))) for at in firsts)

    @property
    def mean_output_tokens(self) -> float:
        """Over the observed pairs."""
        return float(self.lengths.output_tokens.mean())

    @property
    def mean_prompt_tokens(self) -> float:
        """Over the observed pairs."""
        return float(self.lengths.prompt_tokens.mean())


def _drain(chips: Iterable[int]) -> DrainRequest:
    """Whatever the chips do then: no job's state has to fit."""
    return DrainRequest(chips=tuple(chips), grace_s=0.0, purpose=FOR_MAINTENANCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RateTask:
    """One replica at one rate: `judged` requests, `lead_s` of traffic before and after them, by
    `turns` with so many others.
    """

    replica: ReplicaUnderTest
    rate_per_s: float
    judged: int
    lead_s: float
    seed: int
    turns: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RatePoint:
    """A replica's latencies and power at one rate.

    Attributes:
        ttft_share, tpot_share, both_share: of judged requests, within the target's limits.
        chip_watts: of all chips that are there, idle time between steps included.
        served_per_s: requests begun per second while judged ones arrived, at most the rate.
        ttft_p99_s, tpot_p99_s, tpot_mean_s: of judged requests.
        ttft_tail_s, tpot_tail_s: the percentiles `TAIL`, of the same.
    """

    rate_per_s: float
    judged: int
    ttft_share: float
    tpot_share: float
    both_share: float
    chip_watts: float
    served_per_s: float
    ttft_p99_s: float
    tpot_p99_s: float
    tpot_mean_s: float
    ttft_tail_s: tuple[float, ...]
    tpot_tail_s: tuple[float, ...]
    steps: int

    def of_group(self, groups: int) -> RatePoint:
        """The part of one of `groups` that share the requests."""
        return replace(
            self,
            rate_per_s=self.rate_per_s / groups,
            chip_watts=self.chip_watts / groups,
            served_per_s=self.served_per_s / groups,
        )


def serve(
    replica: ReplicaUnderTest, traffic: Traffic, judged: Bools, *, until_s: float = np.inf
) -> Run:
    """Simulate the traffic on one replica; `judged` [requests] has at least one."""
    from serving.simulator import simulate

    return simulate(
        replica.deployment(),
        traffic,
        judged=judged,
        until_s=until_s,
        calls=replica.departures(),
        logs=False,  # the same figures without a record of each token
    )


def run_at_rate(task: RateTask) -> RatePoint:
    """Simulate one replica at one rate. Raises ConfigError for requests that no rank can hold."""
    lead = ceil(task.rate_per_s * task.lead_s)
    traffic = _drawn(task, task.judged + 2 * lead)
    number = np.arange(len(traffic))
    judged = (number >= lead) & (number < lead + task.judged)
    served = serve(task.replica, traffic, judged)
    ttft, tpot, both = served.shares(task.replica.slo)
    return RatePoint(
        rate_per_s=task.rate_per_s,
        judged=task.judged,
        ttft_share=ttft,
        tpot_share=tpot,
        both_share=both,
        chip_watts=served.chip_watts - task.replica.away_watts,
        served_per_s=min(task.rate_per_s, served.begun_per_s),
        ttft_p99_s=percentile(served.ttft_s, SHOWN_PERCENTILE),
        tpot_p99_s=percentile(served.tpot_s, SHOWN_PERCENTILE),
        tpot_mean_s=float(served.tpot_s.mean()),
        ttft_tail_s=_tail(served.ttft_s),
        tpot_tail_s=_tail(served.tpot_s),
        steps=served.served.steps,
    )


def _tail(seconds: Float64s) -> tuple[float, ...]:
    return tuple(percentile(seconds, each) for each in TAIL)


def saturated_per_s(task: RateTask) -> float:
    """Requests begun per second with `rate_per_s` an overload, until the last arrival."""
    return overloaded(task).begun_per_s


def overloaded(task: RateTask) -> Run:
    """The replica with `rate_per_s` an overload, until the last arrival."""
    lead = ceil(task.rate_per_s * task.lead_s)
    traffic = _drawn(task, lead + task.judged)
    later = np.arange(len(traffic)) >= lead
    return serve(task.replica, traffic, later, until_s=float(traffic.arrival_s[-1]))


def _drawn(task: RateTask, requests: int) -> Traffic:
    return Traffic.drawn(
        rate_per_s=task.rate_per_s,
        lengths=task.replica.lengths,
        seed=task.seed,
        requests=requests,
        gaps="gamma",  # the sum of so many exponential ones
        burstiness=task.turns,
    )

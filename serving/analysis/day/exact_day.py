"""A day of all groups of a machine, simulated step by step with its hand-overs.

Every group is a replica behind a router by turns, or a part of the one engine. The same policies,
hand-over machine and memory as a server's move them; requests come at random times in the minutes
that the walk counts them in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from loadgen.measures.slo import Slo
from loadgen.workloads.length_pairs import ObservedLengths
from loadgen.workloads.traffic import Traffic
from serving.analysis.day.day_demand import DayDemand
from serving.analysis.day.replica_run import ReplicaUnderTest
from serving.analysis.day.training_yield import GroupHandover
from serving.policy.day_night.observation import Observation
from serving.policy.day_night.policy import Decision, Policy

if TYPE_CHECKING:
    from serving.simulator.day_night import DaySample, SimulatedDayNight
    from serving.simulator.job_cost import JobTerms
    from serving.simulator.machine_calls import TimedCall
    from serving.simulator.request_stream import EndedRequests

Float64s = NDArray[np.float64]
Int64s = NDArray[np.int64]
Progress = Callable[[str], None]

_STREAM: Final = 4
_TIMES_S: Final = (1e-4, 1e4)
_BIN: Final = 0.005
"""Of the logarithm: percentiles are right to a quarter of a percent."""
_BINS: Final = int(np.log(_TIMES_S[1] / _TIMES_S[0]) / _BIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactTerms:
    """How a machine's groups are simulated: `look_s` between decisions, what its `job` trains, and
    the rate of a group by which policies decide.
    """

    groups: int
    look_s: float
    grace_s: float
    job: JobTerms
    handover: GroupHandover
    capacity_per_s: float
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Planned(Policy):
    """Serving groups by look, decided before."""

    name = "planned"

    begins_s: float
    look_s: float
    serving: tuple[int, ...]

    def decide(self, observed: Observation) -> Decision:
        """The look's number, the last one after the plan."""
        look = round((observed.now_s - self.begins_s) / self.look_s)
        number = self.serving[min(look, len(self.serving) - 1)]
        return Decision(serving_groups=number, reason="as it was planned")

    def describe(self) -> str:
        """State what it does."""
        return "planned: serving groups by look, decided before"


class RequestCounts:
    """Requests by look of their arrival, within the target's limits, and their times. Mutable."""

    def __init__(self, looks: int, look_s: float, slo: Slo) -> None:
        self._look_s = look_s
        self._slo = slo
        self.arrived: Int64s = np.zeros(looks, dtype=np.int64)
        self.kept: Int64s = np.zeros((3, looks), dtype=np.int64)  # TTFT, TPOT, both
        self.output_tokens: Int64s = np.zeros(looks, dtype=np.int64)
        self._times: NDArray[np.int32] = np.zeros((2, looks, _BINS + 2), dtype=np.int32)

    def add(self, ended: EndedRequests) -> None:
        """Count requests that have ended."""
        look = (ended.arrival_s // self._look_s).astype(np.int64)
        looks = len(self.arrived)
        limits = (self._slo.ttft_s, self._slo.tpot_s)
        times = (ended.ttft_s, ended.tpot_s)
        within = [
            t <= (np.inf if limit is None else limit)
            for t, limit in zip(times, limits, strict=True)
        ]
        self.arrived += np.bincount(look, minlength=looks)
        self.output_tokens += np.bincount(look, ended.output_tokens, looks).astype(np.int64)
        for row, kept in enumerate((*within, within[0] & within[1])):
            self.kept[row] += np.bincount(look[kept], minlength=looks)
        for kind, seconds in enumerate(times):
            with np.errstate(divide="ignore"):
                above = np.floor(np.log(seconds / _TIMES_S[0]) / _BIN) + 1
            place = np.clip(above, 0, _BINS + 1).astype(np.int64)
            np.add.at(self._times[kind], (look, place), 1)

    def percentile_s(self, kind: int, looks: slice, q: float) -> float:
        """Of TTFT (0) or TPOT (1) of the requests of `looks`, in the middle of a bin."""
        counts = self._times[kind, looks].sum(axis=0).cumsum()
        place = int(counts.searchsorted(np.ceil(q / 100 * counts[-1])))
        return float(_TIMES_S[0] * np.exp((place - 0.5) * _BIN))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExactDay:
    """What a machine did: requests by look, and totals as each look began and at the end."""

    look_s: float
    requests: RequestCounts
    samples: Sequence[DaySample]

    def column(self, name: str) -> Float64s:
        """What a total of the samples grew by in each look, [looks]."""
        totals = np.array([getattr(each, name) for each in self.samples], dtype=np.float64)
        return np.diff(totals)[: len(self.requests.arrived)]


def exact_day(
    replica: ReplicaUnderTest,
    demand: DayDemand,
    terms: ExactTerms,
    policy: Policy,
    *,
    calls: Sequence[TimedCall] = (),
    progress: Progress = lambda _: None,
) -> ExactDay:
    """Simulate the demand of one machine under a policy, from all groups serving.

    Raises ConfigError for a load under which too many requests wait.
    """
    from serving.simulator import ReplicaSet
    from serving.simulator.request_stream import RequestStream
    from serving.simulator.serve_stream import serve_stream

    look_intervals = round(terms.look_s / demand.interval_s)
    looks = -(-len(demand.arrivals) // look_intervals)
    counts = RequestCounts(looks, terms.look_s, replica.slo)
    look_requests = np.add.reduceat(
        demand.arrivals, np.arange(0, len(demand.arrivals), look_intervals)
    )
    stream = RequestStream(
        pieces=_pieces(demand, look_intervals, replica.lengths, seed=terms.seed, progress=progress),
        count=int(demand.arrivals.sum()),
        piece_max=int(look_requests.max()),
        output_max=int(replica.lengths.output_tokens.max()),
        ended=counts.add,
    )
    replicas = ReplicaSet(count=replica.engines(terms.groups))
    deployment = replace(replica.deployment(), replicas=replicas)
    settings = _settings(replica, demand, terms, policy)
    samples = serve_stream(deployment, stream, settings, calls=calls)
    return ExactDay(look_s=terms.look_s, requests=counts, samples=samples)


def _pieces(
    demand: DayDemand,
    look_intervals: int,
    lengths: ObservedLengths,
    *,
    seed: int,
    progress: Progress,
) -> Iterator[Traffic]:
    """Requests of each look, at random times in their intervals."""
    rng = np.random.default_rng([seed, _STREAM])
    for first in range(0, len(demand.arrivals), look_intervals):
        progress(
            f"exact day: {first * demand.interval_s / 3600:.1f} of {demand.length_s / 3600:g} h"
        )
        counts = demand.arrivals[first : first + look_intervals]
        number = first + np.repeat(np.arange(len(counts)), counts)
        arrival_s = np.sort((number + rng.random(len(number))) * demand.interval_s)
        prompts, outputs = lengths.draw_pairs(rng, len(number))
        yield Traffic(arrival_s=arrival_s, prompt_tokens=prompts, output_tokens=outputs)


def _settings(
    replica: ReplicaUnderTest, demand: DayDemand, terms: ExactTerms, policy: Policy
) -> SimulatedDayNight:
    from serving.simulator.day_night import SimulatedDayNight

    group_chips = replica.chips_per_group
    begins_s, past = demand.begins.timestamp(), demand.past
    ends_s = past.end_s - past.bucket_s * np.arange(len(past))[::-1]
    return SimulatedDayNight(
        policy="never",
        own_policy=policy,
        day_length_s=86_400.0,
        day_start="00:00",
        zone="UTC",
        chips=group_chips * terms.groups,
        group_chips=group_chips,
        lend_groups=terms.groups - terms.handover.groups_min,
        grace_s=terms.grace_s,
        slo=replica.slo,
        group_requests_per_s=terms.capacity_per_s,
        group_requests_source="from the simulated curve",
        reading_s=terms.handover.restore_s,
        start_s=terms.job.start_s,
        job=terms.job,
        look_s=terms.look_s,
        begins_s=begins_s,
        past=tuple(zip(ends_s.tolist(), past.requests_per_s.tolist(), strict=True)),
    )

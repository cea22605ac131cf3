"""Error of the walk by sampling: ten minutes of a machine, simulated step by step beside the walk.

A sample is a row by its working machine-time, a time without a backlog, and one of the machine's
replicas, which are alike and independent. Its error is the walk's figure less the exact one; the
mean of N independent ones has a 95 % interval by Student's t.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ConfigError
from loadgen.measures.intervals import independent_estimate
from serving.analysis.day.day_result import DayResult
from serving.analysis.day.exact_hour import PART_S, ExactHour, HourCheck, exact_hour
from serving.analysis.day.replica_run import ReplicaUnderTest
from serving.analysis.fleet.row_week import RowWeek
from serving.simulator import THIS_PROCESS, SimulationWorkers

Float64s = NDArray[np.float64]
Progress = Callable[[str], None]

SAMPLE_S: Final = PART_S
_STREAM: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanError:
    """A mean over samples, with half of its 95 % interval; None of one sample."""

    mean: float
    half_width: float | None

    @classmethod
    def of(cls, errors: Sequence[float]) -> "MeanError":
        """Of independent ones, at least one."""
        found = independent_estimate(np.array(errors))
        half_width = None if found.high is None else found.high - found.value
        return cls(mean=found.value, half_width=half_width)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MachineSample:
    """Of one row: both ways from `begin_s` on, for SAMPLE_S."""

    building: str
    system: str
    begin_s: float
    exact: ExactHour

    @property
    def kept_error(self) -> float:
        """Share of requests within both limits, walked less exact."""
        return self.exact.both.difference

    @property
    def watts_error(self) -> float:
        """Of the chips' energy, relative to the exact one."""
        return self.exact.joules.relative

    @property
    def tpot_error(self) -> float:
        """Of the mean time per output token, relative to the exact one."""
        return self.exact.tpot_mean_s.relative


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampledMachines:
    """Samples in the order in which they were drawn.

    `candidates`: the share of the machines' time that could be drawn: it had requests and no
    backlog.
    """

    samples: tuple[MachineSample, ...]
    candidates: float

    @property
    def errors(self) -> dict[str, MeanError]:
        """Of each figure, by its name."""
        names = ("kept_error", "watts_error", "tpot_error")
        return {
            name: MeanError.of([getattr(each, name) for each in self.samples]) for name in names
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Task:
    result: DayResult
    replica: ReplicaUnderTest
    begin_s: float
    seed: int


def _sampled(task: _Task) -> ExactHour:
    check = HourCheck(begin_s=task.begin_s, length_s=SAMPLE_S)
    return exact_hour(task.result, task.replica, check, THIS_PROCESS, seed=task.seed)


def sampled_machines(
    rows: Sequence[RowWeek],
    replicas: Mapping[str, ReplicaUnderTest],
    count: int,
    *,
    seed: int,
    workers: SimulationWorkers,
    progress: Progress = lambda _: None,
) -> SampledMachines:
    """Draw and simulate, with the replica of each row's system. Raises ConfigError where there is
    nothing to draw.
    """
    weights = [_weights(row) for row in rows]
    flat = np.concatenate(weights)
    if not flat.any():
        raise ConfigError("sample", count, "a time with requests and without a backlog")
    rng = np.random.default_rng([seed, _STREAM])
    drawn = rng.choice(len(flat), size=count, p=flat / flat.sum())
    per_row = len(weights[0])
    tasks = [
        _Task(
            result=rows[place // per_row].result,
            replica=replicas[rows[place // per_row].task.row.system],
            begin_s=float(place % per_row) * SAMPLE_S,
            seed=seed + number,
        )
        for number, place in enumerate(drawn.tolist())
    ]
    found: list[MachineSample] = []
    for place, exact in zip(drawn.tolist(), workers.results(_sampled, tasks), strict=True):
        row = rows[place // per_row].task
        begin_s = float(place % per_row) * SAMPLE_S
        found.append(
            MachineSample(
                building=row.building, system=row.row.system, begin_s=begin_s, exact=exact
            )
        )
        progress(f"exact runs: {len(found)} of {count} samples done")
    working = sum(float(row.duty.working.sum()) for row in rows)
    share = float(flat.sum()) * (SAMPLE_S / rows[0].result.walk.demand.interval_s) / working
    return SampledMachines(samples=tuple(found), candidates=share)


def _weights(row: RowWeek) -> Float64s:
    """Working machines in each stretch of SAMPLE_S that can be drawn, else 0, [stretches]."""
    walk = row.result.walk
    span = round(SAMPLE_S / walk.demand.interval_s)
    stretches = len(walk.demand.arrivals) // span
    whole = stretches * span
    by_stretch = [
        values[:whole].reshape(stretches, span)
        for values in (row.duty.working, walk.backlog, walk.demand.arrivals)
    ]
    working, backlog, arrivals = by_stretch
    usable = (backlog == 0).all(axis=1) & (arrivals > 0).all(axis=1)
    weights: Float64s = working.mean(axis=1) * usable
    return weights

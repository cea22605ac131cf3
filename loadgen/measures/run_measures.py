"""The figures of a run as values, between `loadgen.measures` and `loadgen.reports`."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from loadgen.records.arrival_process import ArrivalProcess
from loadgen.records.estimate import Estimate

PERCENTILES: tuple[float, ...] = (50.0, 90.0, 95.0, 99.0, 99.9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Samples of one measure (at least one): exact percentiles, each with its interval.

    `percentiles` has the keys of PERCENTILES.
    """

    samples: int
    mean: Estimate
    deviation: float
    least: float
    most: float
    percentiles: Mapping[float, Estimate]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundKept:
    """One bound of an SLO. `value` is the measured percentile, with failed requests as infinitely
    late; None: infinite.
    """

    measure: str
    limit: float
    percentile: float
    value: float | None
    kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SloKept:
    """A class against its SLO.

    `attainment` is the share of its requests, failed ones included, that kept every bound;
    `goodput_per_s` their number and `goodput_tokens_per_s` their output tokens, per second of the
    window.
    """

    words: str
    bounds: tuple[BoundKept, ...]
    attainment: Estimate | None
    goodput_per_s: float | None
    goodput_tokens_per_s: float | None

    @property
    def kept(self) -> bool:
        """Whether every bound was kept."""
        return all(bound.kept for bound in self.bounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassMeasures:
    """Figures of one traffic class, or of all together.

    `distributions` has the names of `definitions.DISTRIBUTIONS` with a sample, `rates` the known
    ones of `definitions.RATES`. `requests` = completed + failed + aborted. `arrivals` are the
    sessions' real beginnings, in the asked time. `short_replies` and `long_replies` have fewer and
    more tokens than asked for, `overfull_replies` more chunks than tokens; `resent`: see `Result`.
    """

    name: str
    requests: int
    completed: int
    failed: int
    aborted: int
    errors: Mapping[str, int]
    example_errors: Mapping[str, str]
    input_tokens: int
    cached_tokens: int | None
    output_tokens: int
    chunks: int
    uncounted_replies: int
    short_replies: int
    long_replies: int
    overfull_replies: int
    resized_prompts: int
    distributions: Mapping[str, Distribution]
    rates: Mapping[str, Estimate]
    arrivals: ArrivalProcess
    slo: SloKept | None = None
    resent: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyMeasures:
    """Figures of the server's meters over the measured window, named as in `definitions.ENERGY`;
    None if unknown. `metered_s` is the time between the two readings.
    """

    metered_s: float | None = None
    average_watts: float | None = None
    chip_average_watts: float | None = None
    provisioned_watts: float | None = None
    joules_per_output_token: float | None = None
    output_tokens_per_s_per_mw: float | None = None
    output_tokens_per_s_per_provisioned_mw: float | None = None
    tokens_per_s_per_chip: float | None = None
    server_queue_ms: float | None = None
    prefix_hit_share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMeasures:
    """All figures of a run.

    `time`, "emulated" or "wall", is that of every duration not named wall. `window_s` and `wall_s`
    are the measured window in the run's and in wall time, which a simulated run does not take;
    `lag_s` the emulation's own lateness.
    `busy`: a process of the load generator had too little of a core left; `late`: its event loop
    was too late, for whatever reason. `warnings` are caveats of figures, with the cure.
    """

    time: str
    dilation: float
    window_s: float | None
    wall_s: float | None
    lag_s: float | None
    total: ClassMeasures
    classes: Mapping[str, ClassMeasures]
    energy: EnergyMeasures
    loop_lag_p99_ms: float | None
    cpu_share: float | None
    busy: bool
    late: bool
    warnings: tuple[str, ...] = field(default=())

    @property
    def saturated(self) -> bool:
        """Whether the load generator was too slow for its figures to be the server's."""
        return self.busy or self.late

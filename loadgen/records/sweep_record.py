"""The record of a sweep: loads, measures of each point, conclusions.

Reports are made from this alone; each point names the file of its run.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec

from loadgen.errors import FileError, OptionError
from loadgen.records.estimate import Estimate

Axis = Literal["rate", "concurrency"]
Verdict = Literal["kept", "missed", "undecided"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PointFigures:
    """One run's measures of all requests; None where unknown.

    Times and rates are in the sweep's `time`. `requests_per_s` and `output_tokens_per_s` were
    completed; `sent_per_s` is the rate of begun sessions; `interactivity_p50` is in tokens per
    second and user. `failed_share` is of all requests but aborted ones.
    """

    requests_per_s: Estimate | None = None
    sent_per_s: float | None = None
    output_tokens_per_s: Estimate | None = None
    goodput_per_s: Estimate | None = None
    ttft_p50_ms: Estimate | None = None
    ttft_p99_ms: Estimate | None = None
    tpot_p50_ms: Estimate | None = None
    tpot_p99_ms: Estimate | None = None
    e2e_mean_ms: Estimate | None = None
    e2e_p50_ms: Estimate | None = None
    e2e_p99_ms: Estimate | None = None
    interactivity_p50: Estimate | None = None
    tokens_per_s_per_mw: float | None = None
    tokens_per_s_per_chip: float | None = None
    average_watts: float | None = None
    failed_share: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SaturationFound:
    """Whether a run was beyond the server's capacity, with the reason in words.

    `over` is None for a run too short to say. `growth_share` is the part of the requests due late
    in the run by which the backlog grew, and `deviations` its standard deviations under chance;
    None for a closed loop, whose backlog cannot grow.
    """

    over: bool | None
    words: str
    growth_share: float | None = None
    deviations: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundShare:
    """One bound of the SLO over all runs at a load: the share of its samples that kept it.

    `needed` is the percentile as a share. `low` and `high` bound the true share with the search's
    confidence; `effective` is the number of independent samples worth as much.
    """

    traffic_class: str
    words: str
    needed: float
    share: float
    low: float
    high: float
    samples: int
    effective: float
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One run of a sweep. `load` is the asked one: sessions per second, or in flight.

    `stage` is "grid" for given loads, "search" for those of the search for the highest load and its
    repeats. `results` is the run's file, beside the sweep's own. `bounds` and `verdict` are of all
    runs at this load so far; None without an SLO.
    """

    load: float
    stage: Literal["grid", "search"]
    results: str
    seed: int
    requests: int
    figures: PointFigures
    saturation: SaturationFound
    bounds: tuple[BoundShare, ...] = ()
    verdict: Verdict | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Knee:
    """The load beyond which more costs more latency than it brings throughput.

    The measured load with the largest throughput / mean E2E latency (`power`, requests/s²); loads
    from `low` to `high` cannot be told from it. `at_edge`: it is the first or last load, so the
    knee may lie beyond.
    """

    load: float
    requests_per_s: float
    e2e_mean_ms: float
    power: float
    low: float
    high: float
    at_edge: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BestLoad:
    """The highest load that kept the SLO with confidence, and the lowest above that did not.

    `load` is None if none kept it, `above` if no load tried failed to. `confidence` is that of each
    verdict, repeats included. `words` says how the search ended.
    """

    load: float | None
    above: float | None
    slo: str
    confidence: float
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRecord:
    """A whole sweep, its points in the order of their runs.

    `time` is "emulated" or "wall". `pareto_per_mw` and `pareto_per_chip` are positions in `points`
    of those undominated in interactivity and tokens/s/MW (or /chip), by interactivity. `stopped`
    says why there are no more points; `problem` what prevented a run, or is empty.
    """

    command: str
    url: str
    model: str
    axis: Axis
    time: str
    workload: str
    started_at: str
    points: tuple[SweepPoint, ...]
    stopped: str
    knee: Knee | None = None
    best: BestLoad | None = None
    highest_requests_per_s: Estimate | None = None
    pareto_per_mw: tuple[int, ...] = ()
    pareto_per_chip: tuple[int, ...] = ()
    interrupted: bool = False
    problem: str = ""
    notes: tuple[str, ...] = ()


FORMAT: Final = "ultraserve-loadgen-sweep/1"
NAME: Final = "sweep.json"
"""The file's name in a sweep's folder."""


def write_sweep(path: Path, sweep: SweepRecord) -> None:
    """Write it whole; raises OptionError if the file cannot be written."""
    text = json.dumps({"format": FORMAT, **asdict(sweep)}, indent=1)
    try:
        path.write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        expected = f"a folder that can be written ({error.strerror})"
        raise OptionError("--dir", path.parent, expected) from error


def read_sweep(path: Path) -> SweepRecord:
    """Read a file of `write_sweep`; raises FileError."""
    try:
        written = json.loads(path.read_bytes())
        found = written.pop("format", None) if isinstance(written, dict) else None
        if found != FORMAT:
            raise ValueError(f"not a sweep of the format {FORMAT}")
        return msgspec.convert(written, SweepRecord)
    except OSError as error:
        raise FileError(path, error.strerror or str(error)) from error
    except ValueError as error:  # msgspec's and json's own are such
        raise FileError(path, str(error)) from error

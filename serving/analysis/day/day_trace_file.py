"""Reads demand over days: two CSV formats, recorded requests, two built-in days.

- Hourly counts, as the Azure 2024 traces were digitised: a header `hour_index,utc_hour_start,
  requests_est,rps_est`, hours in order, times like 2024-05-10T00:00Z.
- A day's steps, as DeepSeek's: a header `local_start,local_end,h800_nodes`, times of one day like
  08:30. Nodes in service stand for demand (assumed).
- Requests, in the formats of `loadgen.workloads.trace_file`.
"""

import csv
import io
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

import numpy as np

from emulator.errors import ConfigError
from loadgen.errors import FileError
from loadgen.workloads.trace_lines import read_text
from loadgen.workloads.traffic import Traffic
from serving.analysis.day.day_trace import DAY_S, HOUR_S, DayTrace
from serving.traffic.operator_day import DEEPSEEK_NODES, DEEPSEEK_SOURCE

HOURLY_HEADER: Final = ["hour_index", "utc_hour_start", "requests_est", "rps_est"]
STEPS_HEADER: Final = ["local_start", "local_end", "h800_nodes"]
BUILT_IN: Final = ("deepseek", "sample")

_DEEPSEEK_DAY: Final = datetime(2025, 2, 24, tzinfo=ZoneInfo("Asia/Shanghai"))
_SAMPLE_DAY: Final = datetime(2024, 1, 1, tzinfo=UTC)  # a Monday
_SAMPLE_PEAK_PER_HOUR: Final = 200_000
_SAMPLE_TROUGH_SHARE: Final = 0.1
_SAMPLE_WEEKEND_SHARE: Final = 0.2
_BIN_S: Final = 300.0


def day_trace(name: str) -> DayTrace:
    """The built-in day or trace file of that name; raises UltraServeError for a bad file."""
    if name == "deepseek":
        return _of_nodes(list(DEEPSEEK_NODES), DEEPSEEK_SOURCE)
    if name == "sample":
        return sample_week()
    path = Path(name)
    try:
        is_csv = path.name.lower().removesuffix(".gz").endswith(".csv")
        rows = list(csv.reader(io.StringIO(read_text(path), newline=""))) if is_csv else []
    except (FileError, csv.Error) as error:
        reason = error.reason if isinstance(error, FileError) else str(error)
        expected = f"a trace file or one of {', '.join(BUILT_IN)} ({reason})"
        raise ConfigError("trace", name, expected) from error
    header = [cell.strip() for cell in rows[0]] if rows else []
    if header == HOURLY_HEADER:
        return _of_hours(path, rows[1:])
    if header == STEPS_HEADER:
        return _of_steps(path, rows[1:])
    return _of_requests(path)


def sample_week() -> DayTrace:
    """A synthetic week by hour: a cosine each day, weekends at a fifth, peak at 14:00 UTC.

    *Assumed*: the ratio of peak to trough (10) and the weekend are round figures near those of the
    Azure 2024 coding week.
    """
    hour = np.arange(7 * 24)
    swing = (1 + np.cos((hour % 24 - 14) / 24 * 2 * np.pi)) / 2  # [hours], 0 to 1
    share = _SAMPLE_TROUGH_SHARE + (1 - _SAMPLE_TROUGH_SHARE) * swing
    share[hour // 24 >= 5] *= _SAMPLE_WEEKEND_SHARE
    source = "a made-up week (assumed): a cosine by day, 10 from trough to peak, weekends a fifth"
    requests = np.rint(share * _SAMPLE_PEAK_PER_HOUR)
    return DayTrace.hourly(requests, source=source, begins=_SAMPLE_DAY)


def _of_hours(path: Path, rows: list[list[str]]) -> DayTrace:
    requests: list[float] = []
    begins: datetime | None = None
    for line, row in enumerate(rows, start=2):
        try:
            at = datetime.strptime(row[1].strip(), "%Y-%m-%dT%H:%MZ").replace(tzinfo=UTC)
            count = float(row[2])
        except (ValueError, IndexError):
            raise _refused(path, line, "an hour like 2024-05-10T00:00Z and its requests") from None
        begins = begins or at
        if (at - begins).total_seconds() != len(requests) * HOUR_S or not 0 <= count < np.inf:
            raise _refused(path, line, "the next hour, with requests from 0 on")
        requests.append(count)
    if begins is None:
        raise _refused(path, 2, "at least one hour")
    source = f"{path.name}: {len(requests)} hours from {begins:%Y-%m-%d %H:%M} UTC"
    return DayTrace.hourly(np.array(requests), source=source, begins=begins)


def _of_steps(path: Path, rows: list[list[str]]) -> DayTrace:
    steps = []
    for line, row in enumerate(rows, start=2):
        try:
            begin_h, end_h, nodes = _hours(row[0]), _hours(row[1]), float(row[2])
        except (ValueError, IndexError):
            raise _refused(path, line, "two times like 08:30 and a number of nodes") from None
        steps.append((begin_h, end_h, nodes))
    if not steps:
        raise _refused(path, 2, "at least one step")
    return _of_nodes(steps, f"{path.name}, nodes in service taken for demand (assumed)")


def _of_nodes(steps: list[tuple[float, float, float]], source: str) -> DayTrace:
    trace = DayTrace.stepwise(tuple(sorted(steps)), source=source, begins=_DEEPSEEK_DAY)
    return replace(trace, is_schedule=True)


def _of_requests(path: Path) -> DayTrace:
    """Counted in bins of five minutes, linear between their middles."""
    traffic = Traffic.recorded(path)
    bins = int(traffic.span_s // _BIN_S)
    if not bins:
        raise ConfigError("trace", path, f"requests over {_BIN_S:g} s or more")
    counts = np.bincount((traffic.arrival_s // _BIN_S).astype(np.int64), minlength=bins)[:bins]
    return DayTrace(
        source=f"{path.name}: {len(traffic):,} requests in bins of {_BIN_S:g} s; its begin is "
        "taken for midnight",
        begins=_SAMPLE_DAY,
        length_s=bins * _BIN_S,
        knots_s=np.arange(bins, dtype=np.float64) * _BIN_S + _BIN_S / 2,
        rates_per_s=counts / _BIN_S,
        traffic=traffic,
    )


def _hours(text: str) -> float:
    """Hours of a time of day like 08:30; 24:00 is its end."""
    hours, minutes = text.strip().split(":")
    found = int(hours) + int(minutes) / 60
    if not 0 <= found <= DAY_S / HOUR_S:
        raise ValueError(text)
    return found


def _refused(path: Path, line: int, expected: str) -> ConfigError:
    return ConfigError("trace", f"{path}:{line}", expected)

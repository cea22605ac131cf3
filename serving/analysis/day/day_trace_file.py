"""Reads demand over days: rates of a CSV, an operator's schedule, recorded requests, built-in days.

- Rates by time, in a CSV with any header (`loadgen.workloads.rate_file`).
- A day's steps, as DeepSeek's: a header `local_start,local_end,h800_nodes`, times of one day like
  08:30. Nodes in service stand for demand (assumed).
- Requests, in the formats of `loadgen.workloads.trace_file`.
"""

from dataclasses import replace
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

import numpy as np

from emulator.errors import ConfigError
from loadgen.records.plain_number import plain_number
from loadgen.workloads.rate_file import RateColumns, read_rates
from loadgen.workloads.rate_series import RateSeries
from loadgen.workloads.trace_file import known_format
from loadgen.workloads.trace_lines import csv_fields, read_lines
from loadgen.workloads.traffic import Traffic
from serving.analysis.day.day_trace import DAY_S, HOUR_S, DayTrace
from serving.traffic.operator_day import DEEPSEEK_NODES, DEEPSEEK_SOURCE

STEPS_HEADER: Final = "local_start,local_end,h800_nodes"
BUILT_IN: Final = ("deepseek", "sample")

_DEEPSEEK_DAY: Final = datetime(2025, 2, 24, tzinfo=ZoneInfo("Asia/Shanghai"))
_SAMPLE_DAY: Final = datetime(2024, 1, 1, tzinfo=UTC)  # a Monday
_SAMPLE_PEAK_PER_HOUR: Final = 200_000
_SAMPLE_TROUGH_SHARE: Final = 0.1
_SAMPLE_WEEKEND_SHARE: Final = 0.2
_BIN_S: Final = 300.0
_BY_COLUMNS: Final = RateColumns()


def day_trace(name: str, columns: RateColumns = _BY_COLUMNS, *, seed: int = 0) -> DayTrace:
    """The built-in day or trace file of that name; raises UltraServeError or LoadError.

    `columns` are of rates: a file whose columns are named is one; the zone is that of any file.
    Clients of a folder are drawn by `seed`.
    """
    named, zone = columns.time or columns.rate, columns.zone
    if name in BUILT_IN:
        if named:
            raise ConfigError("trace", name, "a CSV that has the columns that are named")
        if zone is not None:
            raise ConfigError("timezone", zone, "none beside a built-in day, which has its own")
        if name == "deepseek":
            return _of_nodes(list(DEEPSEEK_NODES), DEEPSEEK_SOURCE)
        return sample_week()
    path = Path(name)
    if not path.exists():
        raise ConfigError("trace", name, f"a trace file or one of {', '.join(BUILT_IN)}")
    if not named:
        if known_format(path) is not None:
            return _of_requests(path, seed, zone or UTC)
        lines = read_lines(path)
        if lines and lines[0].replace(" ", "") == STEPS_HEADER:
            trace = _of_steps(path, lines[1:])
            return (
                trace if zone is None else replace(trace, begins=trace.begins.replace(tzinfo=zone))
            )
    series, column = read_rates(path, columns)
    return rates_trace(series, source=f"{path.name}, {column}", zone=zone or UTC)


def rates_trace(series: RateSeries, *, source: str, zone: tzinfo) -> DayTrace:
    """Rates, linear between the middles of their steps.

    Raises ConfigError for a series that is all 0, or shorter than five minutes.
    """
    if series.length_s < _BIN_S:
        expected = f"rates over {_BIN_S:g} s or more, not {series.length_s:g} s"
        raise ConfigError("trace", source, expected)
    begins = _SAMPLE_DAY.replace(tzinfo=zone)
    words = "; its begin is taken for midnight"
    if series.begins_unix_s is not None:
        begins = datetime.fromtimestamp(series.begins_unix_s, tz=zone)
        words = f" from {begins:%Y-%m-%d %H:%M %Z}"
    return DayTrace(
        source=f"{source}: {series.words}{words}",
        begins=begins,
        length_s=series.length_s,
        knots_s=series.times_s + series.step_s / 2,
        rates_per_s=series.rates,
    )


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


def _of_steps(path: Path, lines: list[str]) -> DayTrace:
    steps = []
    for line, text in enumerate(lines, start=2):
        try:
            begin, end, nodes = csv_fields(text, 3)
            steps.append((_hours(begin), _hours(end), plain_number(nodes.strip())))
        except ValueError:
            raise _refused(path, line, "two times like 08:30 and a number of nodes") from None
    if not steps:
        raise _refused(path, 2, "at least one step")
    return _of_nodes(steps, f"{path.name}, nodes in service taken for demand (assumed)")


def _of_nodes(steps: list[tuple[float, float, float]], source: str) -> DayTrace:
    trace = DayTrace.stepwise(tuple(sorted(steps)), source=source, begins=_DEEPSEEK_DAY)
    return replace(trace, is_schedule=True)


def _of_requests(path: Path, seed: int, zone: tzinfo) -> DayTrace:
    """Counted in bins of five minutes, linear between their middles."""
    traffic = Traffic.recorded(path, seed=seed)
    bins = int(traffic.span_s // _BIN_S)
    if not bins:
        raise ConfigError("trace", path, f"requests over {_BIN_S:g} s or more")
    counts = np.bincount((traffic.arrival_s // _BIN_S).astype(np.int64), minlength=bins)[:bins]
    return DayTrace(
        source=f"{path.name}: {len(traffic):,} requests in bins of {_BIN_S:g} s; its begin is "
        "taken for midnight",
        begins=_SAMPLE_DAY.replace(tzinfo=zone),
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

"""Replicas that each hour of a day needs, by its busiest time, and the chips that it frees."""

import csv
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ConfigError
from loadgen.errors import FileError
from loadgen.workloads.trace_lines import read_lines
from loadgen.workloads.traffic import Traffic
from serving.traffic.operator_day import DEEPSEEK_NODES, DEEPSEEK_SOURCE

Float64s = NDArray[np.float64]

HOURS: Final = 24
HOUR_S: Final = 3_600.0
DAY_S: Final = HOURS * HOUR_S
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """A day's traffic by hour, as shares of the peak rate: the mean of each hour and its busiest.

    Raises ConfigError for other than 24 hours, shares outside 0 to 1, and a mean above its busiest.
    """

    source: str
    mean_shares: tuple[float, ...]
    busiest_shares: tuple[float, ...]

    def __post_init__(self) -> None:
        for shares in (self.mean_shares, self.busiest_shares):
            if len(shares) != HOURS or not all(0 <= share <= 1 for share in shares):
                raise ConfigError("day", shares, "24 shares of the peak, 0 to 1")
        shares_of_hours = zip(self.mean_shares, self.busiest_shares, strict=True)
        if any(mean > busiest for mean, busiest in shares_of_hours):
            raise ConfigError("day", self.source, "no mean above the busiest")

    @property
    def mean_share(self) -> float:
        """The day's mean rate over the peak rate."""
        return sum(self.mean_shares) / HOURS


@dataclass(frozen=True, slots=True, kw_only=True)
class NightHour:
    """One hour: its mean share of the peak rate, replicas in service, chips freed."""

    hour: int
    mean_share: float
    replicas: int
    free_chips: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """Chips of the peak that a day frees; `never_used_chips` were bought and serve at no hour."""

    day: Day
    hours: tuple[NightHour, ...]
    never_used_chips: int

    @property
    def free_chip_hours(self) -> int:
        """Of a day, without never-used chips."""
        return sum(hour.free_chips for hour in self.hours)

    @property
    def trough_free_chips(self) -> int:
        """In the hour that needs the fewest replicas."""
        return max(hour.free_chips for hour in self.hours)

    def stretch(self, chips: int) -> tuple[int, int]:
        """First hour and length of the longest run (cyclic) with `chips` free; (0, 0) without."""
        enough = [hour.free_chips >= chips for hour in self.hours]
        if all(enough):
            return 0, HOURS
        best = (0, 0)
        for first in range(HOURS):
            count = 0
            while enough[(first + count) % HOURS]:
                count += 1
            if count > best[1]:
                best = (first, count)
        return best


def night_of(day: Day, *, replicas: int, replica_chips: int, bought_chips: int) -> Night:
    """Chips that each hour frees of the `replicas` of the peak; one replica always stays."""
    hours = []
    for hour, (mean, busiest) in enumerate(zip(day.mean_shares, day.busiest_shares, strict=True)):
        needed = min(replicas, max(1, ceil(busiest * replicas - _ROUNDING)))
        hours.append(
            NightHour(
                hour=hour,
                mean_share=mean,
                replicas=needed,
                free_chips=(replicas - needed) * replica_chips,
            )
        )
    return Night(
        day=day,
        hours=tuple(hours),
        never_used_chips=bought_chips - replicas * replica_chips,
    )


def deepseek_day() -> Day:
    """One operator's day, its peak as 1; a mean for hours with several steps."""
    edges = np.arange(HOURS)
    shares = np.zeros(HOURS)  # [hours]
    busiest = np.zeros(HOURS)
    peak = max(nodes for _, _, nodes in DEEPSEEK_NODES)
    for begin, end, nodes in DEEPSEEK_NODES:
        inside = np.clip(np.minimum(end, edges + 1) - np.maximum(begin, edges), 0, None)
        shares += inside * nodes / peak
        busiest = np.maximum(busiest, np.where(inside > 0, nodes / peak, 0))
    return _day(DEEPSEEK_SOURCE, shares, busiest)


def day_of_trace(traffic: Traffic, *, window_s: float, peak_rate_per_s: float) -> Day | None:
    """The mean day of recorded traffic, hours from its first request; None below a day.

    An hour's busiest time is a `window_s` of any day; an incomplete last day counts as far as it
    goes.
    """
    if traffic.arrival_s[-1] < DAY_S:
        return None
    whole_hours = int(traffic.arrival_s[-1] // HOUR_S)
    hour = (traffic.arrival_s // HOUR_S).astype(np.int64)  # [requests]
    counts = np.bincount(hour, minlength=whole_hours)[:whole_hours]
    window_s = min(window_s, HOUR_S)
    per_hour = int(HOUR_S // window_s)
    window = np.minimum((traffic.arrival_s % HOUR_S // window_s).astype(np.int64), per_hour - 1)
    in_window = np.bincount(hour * per_hour + window, minlength=whole_hours * per_hour)
    busiest = in_window[: whole_hours * per_hour].reshape(whole_hours, per_hour).max(axis=1)
    means, most = np.zeros(HOURS), np.zeros(HOURS)
    for of_day in range(HOURS):
        means[of_day] = counts[of_day::HOURS].mean() / HOUR_S / peak_rate_per_s
        most[of_day] = busiest[of_day::HOURS].max() / window_s / peak_rate_per_s
    source = f"the trace, {whole_hours / HOURS:.1f} days by hour from its first request"
    return _day(source, means, most)


def read_day(path: Path) -> Day:
    """A day from a CSV of `hour,requests`, hours 0 to 23 once each; its largest hour is the peak.

    Raises ConfigError that names the file and the fault.
    """

    def refuse(what: str) -> ConfigError:
        return ConfigError("day", path, f"a CSV of hour,requests; {what}")

    try:
        rows = list(csv.reader(read_lines(path)))
    except FileError as error:
        raise refuse(error.reason) from error
    if not rows or [cell.strip() for cell in rows[0]] != ["hour", "requests"]:
        raise refuse("its first line is hour,requests")
    requests: dict[int, float] = {}
    for line, row in enumerate(rows[1:], start=2):
        try:
            hour, count = int(row[0]), float(row[1])
        except (ValueError, IndexError):
            raise refuse(f"line {line} is not an hour and a number") from None
        if len(row) != 2 or hour in requests or not 0 <= hour < HOURS or not 0 <= count < np.inf:
            raise refuse(f"line {line} is not a new hour of 0 to 23 with a number from 0 on")
        requests[hour] = count
    if len(requests) != HOURS or not any(requests.values()):
        raise refuse(f"it has {len(requests)} of 24 hours, or no requests")
    shares = np.array([requests[hour] for hour in range(HOURS)]) / max(requests.values())
    return _day(f"{path}, its largest hour as the peak", shares, shares)


def _day(source: str, means: Float64s, busiest: Float64s) -> Day:
    busiest = np.clip(np.maximum(means, busiest), 0.0, 1.0)
    return Day(
        source=source,
        mean_shares=tuple(np.minimum(means, busiest).tolist()),
        busiest_shares=tuple(busiest.tolist()),
    )

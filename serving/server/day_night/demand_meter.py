"""A running server's demand: arrivals counted by the engine, in buckets of the day.

Buckets are appended to a file that outlives the server.
"""

from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from serving.policy.day_night.history import BUCKETS_MAX, DemandHistory
from serving.server.day_night.day_clock import DayClock
from serving.server.training.atomic_file import replace_file

BUCKET_S: Final = 300.0
"""Seconds of the day."""

_FILE: Final = "demand.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """Requests arrived by an emulated time; both from the engine's start."""

    emulated_s: float
    requests: int


class DemandMeter:
    """Turns readings of the engine's count into buckets and a current rate.

    Rates are requests per emulated second, bucket ends the day's; a bucket without a reading has
    the mean rate of those around it. Writes to `directory`, which exists.
    """

    def __init__(self, directory: Path, clock: DayClock) -> None:
        self._path = directory / _FILE
        self._clock = clock
        self._buckets = read_buckets(self._path)
        replace_file(self._path, b"".join(map(_line, self._buckets)))  # what is kept of it
        self._history = self._told()
        self._recent: deque[Arrivals] = deque()
        self._end_s = 0.0  # of the open bucket, once there is a reading
        self._begin = (0.0, 0.0)  # of the open bucket: emulated seconds, and arrivals until then

    def _told(self) -> DemandHistory:
        pace = self._clock.day_s_per_emulated_s
        return DemandHistory.of(self._buckets, bucket_s=BUCKET_S, pace=pace)

    def read(self, reading: Arrivals) -> None:
        """Take a reading; ignored unless later than the last."""
        if not self._recent:
            self._recent.append(reading)
            self._end_s = _bucket_end(self._clock.day_s(reading.emulated_s))
            self._begin = (reading.emulated_s, reading.requests)
            return
        before = self._recent[-1]
        if reading.emulated_s <= before.emulated_s:
            return
        ended = []
        while self._end_s <= self._clock.day_s(reading.emulated_s):
            ended.append(self._close(before, reading))
        if ended:
            self._buckets.extend(ended)
            with self._path.open("ab") as file:
                file.writelines(map(_line, ended))
            self._history = self._told()
        self._recent.append(reading)
        span_s = BUCKET_S / self._clock.day_s_per_emulated_s
        while len(self._recent) > 2 and self._recent[1].emulated_s <= reading.emulated_s - span_s:
            self._recent.popleft()

    def _close(self, before: Arrivals, after: Arrivals) -> tuple[float, float]:
        """Returns the open bucket's end and rate, between two readings."""
        end_s = self._clock.emulated_s(self._end_s)
        share = (end_s - before.emulated_s) / (after.emulated_s - before.emulated_s)
        arrived = before.requests + share * (after.requests - before.requests)
        begin_s, arrived_before = self._begin
        bucket = (self._end_s, max(arrived - arrived_before, 0.0) / (end_s - begin_s))
        self._begin = (end_s, arrived)
        self._end_s += BUCKET_S
        return bucket

    @property
    def history(self) -> DemandHistory:
        """Closed buckets, including those of earlier servers."""
        return self._history

    @property
    def load_per_s(self) -> float:
        """Requests per emulated second over about a bucket; 0 before two readings."""
        if len(self._recent) < 2:
            return 0.0
        first, last = self._recent[0], self._recent[-1]
        return (last.requests - first.requests) / (last.emulated_s - first.emulated_s)


def read_buckets(path: Path) -> "deque[tuple[float, float]]":
    """A file's newest buckets, in order; drops out-of-order ones and a truncated last line.

    Ends lie on whole buckets of the calendar.
    """
    buckets: deque[tuple[float, float]] = deque(maxlen=BUCKETS_MAX)
    lines = path.read_bytes().splitlines() if path.exists() else []
    for line in lines:
        try:
            end_s, rate = msgspec.json.decode(line, type=tuple[float, float])
        except msgspec.DecodeError:
            continue
        later = not buckets or end_s > buckets[-1][0]
        if later and end_s % BUCKET_S == 0 and 0 <= rate < float("inf"):
            buckets.append((end_s, rate))
    return buckets


def _line(bucket: tuple[float, float]) -> bytes:
    return msgspec.json.encode(bucket) + b"\n"


def _bucket_end(day_s: float) -> float:
    """The first bucket's end after a moment; buckets divide the calendar's hours."""
    return (day_s // BUCKET_S + 1) * BUCKET_S


def last_end(directory: Path) -> float:
    """The newest bucket's end in the day's calendar; 0 without one."""
    buckets = read_buckets(directory / _FILE)
    return buckets[-1][0] if buckets else 0.0

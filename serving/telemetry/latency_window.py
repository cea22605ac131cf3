"""Emulated latencies of the newest requests: a page's last minute."""

from collections.abc import Callable, Iterable
from typing import Final

import numpy as np

from loadgen.measures.percentile import percentile
from serving.telemetry.recent_times import RecentTimes
from serving.wire.machine_state import Count, Plain

WINDOW_S: Final = 60.0
"""Emulated."""

KEPT_MAX: Final = 8_192
"""Of each kind; above 136 requests a second the window is shorter, and says so."""


class LatencyReport(Plain, frozen=True, kw_only=True):
    """Latencies of the last `window_s`, as this process's clients saw them.

    `requests` ended; None: not measured. TPOT: mean time per output token after a request's first.
    """

    window_s: float
    requests: Count
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    tpot_p50_s: float | None
    tpot_p99_s: float | None
    e2e_p50_s: float | None
    e2e_p99_s: float | None


_Seconds = np.ndarray[tuple[int], np.dtype[np.float64]]


class RequestTimes(Plain, frozen=True, kw_only=True):
    """Latencies that were known when a step ended, at `emulated_s`.

    `begun_tpot` is of interactive requests alone: emulated time of the first token, and TPOT.
    """

    emulated_s: float
    ttft_s: list[float]
    tpot_s: list[float]
    e2e_s: list[float]
    begun_tpot: tuple[tuple[float, float], ...] = ()


class _NewestTimes:
    """The newest `KEPT_MAX` of one kind, in arrays: a report is made while clients wait."""

    def __init__(self) -> None:
        self._at_s: _Seconds = np.full(KEPT_MAX, -np.inf)  # emulated; nothing yet
        self._took_s: _Seconds = np.zeros(KEPT_MAX)
        self._next = 0

    def add(self, at_s: float, took_s: Iterable[float]) -> None:
        for each_s in took_s:
            self._at_s[self._next], self._took_s[self._next] = at_s, each_s
            self._next = (self._next + 1) % KEPT_MAX

    def oldest_at_s(self) -> float:
        """Emulated time of the oldest one kept; -inf until some are dropped."""
        return float(self._at_s[self._next])

    def since(self, since_s: float) -> _Seconds:
        """Those from then on, in any order."""
        return self._took_s[self._at_s >= since_s]


class LatencyWindow:
    """Latencies by the emulated time at which they were known.

    `begun_tpot`: TPOT of interactive requests, by the time of the first token.
    """

    def __init__(self) -> None:
        self._ttft, self._tpot, self._e2e = _NewestTimes(), _NewestTimes(), _NewestTimes()
        self.begun_tpot = RecentTimes()

    def add(self, times: RequestTimes) -> None:
        """Add those of one step."""
        self._ttft.add(times.emulated_s, times.ttft_s)
        self._tpot.add(times.emulated_s, times.tpot_s)
        self._e2e.add(times.emulated_s, times.e2e_s)
        for begun_s, tpot_s in times.begun_tpot:
            self.begun_tpot.add(begun_s, [tpot_s])

    def report(self, now_s: float) -> LatencyReport:
        """The last `WINDOW_S` before `now_s`, or the part of which every kind is kept."""
        since_s = max(now_s - WINDOW_S, 0.0)
        for kept in (self._ttft, self._tpot, self._e2e):
            since_s = max(since_s, kept.oldest_at_s())
        kinds = {"ttft": self._ttft, "tpot": self._tpot, "e2e": self._e2e}
        times = {name: kept.since(since_s) for name, kept in kinds.items()}
        figures = {
            f"{name}_p{q}_s": percentile(of_kind, q) if len(of_kind) else None
            for name, of_kind in times.items()
            for q in (50, 99)
        }
        window_s = max(now_s - since_s, 0.0)
        return LatencyReport(window_s=window_s, requests=len(times["e2e"]), **figures)


Latencies = Callable[[float], LatencyReport | None]
"""The report up to an emulated time, or a later last step; None before a step."""

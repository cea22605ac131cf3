"""How long the newest requests took, in emulated seconds: what a page shows of the last minute."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

import numpy as np

from serving.metrics.machine_state import Count, Plain

WINDOW_S: Final = 60.0
"""Emulated."""

KEPT_MAX: Final = 8_192
"""Of each kind; at more than 136 requests a second the window is shorter, and says so."""


class LatencyReport(Plain, frozen=True, kw_only=True):
    """Of requests in the last `window_s`, as clients of this process saw them.

    `requests` ended; a figure is None where nothing was measured. TPOT is a request's mean time per
    output token after its first.
    """

    window_s: float
    requests: Count
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    tpot_p50_s: float | None
    tpot_p99_s: float | None
    e2e_p50_s: float | None
    e2e_p99_s: float | None


class LatencyWindow:
    """Times by the emulated time at which they were known."""

    def __init__(self) -> None:
        self._ttft: deque[tuple[float, float]] = deque(maxlen=KEPT_MAX)
        self._tpot: deque[tuple[float, float]] = deque(maxlen=KEPT_MAX)
        self._e2e: deque[tuple[float, float]] = deque(maxlen=KEPT_MAX)

    def add(
        self,
        emulated_s: float,
        *,
        ttft_s: Iterable[float],
        tpot_s: Iterable[float],
        e2e_s: Iterable[float],
    ) -> None:
        """Take those of one step, which ended at `emulated_s`."""
        for kept, new in ((self._ttft, ttft_s), (self._tpot, tpot_s), (self._e2e, e2e_s)):
            kept.extend((emulated_s, each) for each in new)

    def report(self, now_s: float) -> LatencyReport:
        """The last `WINDOW_S` before `now_s`, or as much of them as is kept of every kind."""
        since_s = max(now_s - WINDOW_S, 0.0)
        for kept in (self._ttft, self._tpot, self._e2e):
            if len(kept) == KEPT_MAX:
                since_s = max(since_s, kept[0][0])
        ttft, tpot, e2e = (
            np.array([took_s for at_s, took_s in kept if at_s >= since_s])
            for kept in (self._ttft, self._tpot, self._e2e)
        )
        return LatencyReport(
            window_s=max(now_s - since_s, 0.0),
            requests=len(e2e),
            ttft_p50_s=_quantile(ttft, 0.5),
            ttft_p99_s=_quantile(ttft, 0.99),
            tpot_p50_s=_quantile(tpot, 0.5),
            tpot_p99_s=_quantile(tpot, 0.99),
            e2e_p50_s=_quantile(e2e, 0.5),
            e2e_p99_s=_quantile(e2e, 0.99),
        )


Latencies = Callable[[float], LatencyReport | None]
"""The report up to an emulated time, or to the last step if that is later; None before a step."""


def _quantile(values: "np.ndarray[tuple[int], np.dtype[np.float64]]", share: float) -> float | None:
    """One of the values that occurred (nearest rank); None of none."""
    if not len(values):
        return None
    return float(np.quantile(values, share, method="inverted_cdf"))

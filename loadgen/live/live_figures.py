"""Current figures from the counts. Pure.

Rates and latencies are in the run's time; the time left is wall time, which the user waits.
"""

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from loadgen.live.live_counts import LiveClassCounts, LiveCounts
from loadgen.records.result import ABORTED

RECENT_WALL_S: Final = 10.0
"""Rates are those of the last so many wall seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentLatency:
    """Median and 99th percentile of the last replies, in ms of the run's time; None before any."""

    p50_ms: float | None
    p99_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveClassFigures:
    """One class, or all. Rates are per second of the run's time; None before two moments."""

    name: str
    asked: str
    requests: int | None
    ended: int
    completed: int
    in_flight: int
    failed: int
    sent_per_s: float | None
    ended_per_s: float | None
    ttft: RecentLatency
    tpot: RecentLatency


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFigures:
    """The run at a moment. `share` is the part done, `left_wall_s` the rest at the present speed;
    None where unknown.
    """

    elapsed_wall_s: float
    time: str
    dilation: float
    phase: str
    classes: tuple[LiveClassFigures, ...]
    total: LiveClassFigures
    tokens_per_s: float | None
    errors: Mapping[str, int]
    loop_lag_ms: float | None
    share: float | None
    left_wall_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moment:
    at_wall_s: float
    sent: Mapping[str, int]
    ended: Mapping[str, int]
    tokens: float


class LiveFiguresTaker:
    """Computes figures from the counts; remembers recent counts for the rates."""

    def __init__(self, counts: LiveCounts) -> None:
        self._counts = counts
        self._moments: deque[_Moment] = deque()

    def take(self, elapsed_wall_s: float) -> LiveFigures:
        """Figures at `elapsed_wall_s` after the run's start."""
        counts = self._counts
        now = self._remember(elapsed_wall_s)
        before = self._moments[0]
        passed_s = (now.at_wall_s - before.at_wall_s) / counts.dilation

        def rate(new: float, old: float) -> float | None:
            return (new - old) / passed_s if passed_s > 0 else None

        def seen(name: str, each: Sequence[LiveClassCounts]) -> LiveClassFigures:
            names = [one.header.name for one in each]
            return _class_figures(
                name,
                each,
                dilation=counts.dilation,
                sent_per_s=rate(*(sum(m.sent.get(n, 0) for n in names) for m in (now, before))),
                ended_per_s=rate(*(sum(m.ended.get(n, 0) for n in names) for m in (now, before))),
            )

        every = list(counts.classes.values())
        errors = sum((one.errors for one in every), Counter[str]())
        share, left_wall_s = _progress(every, counts.dilation, elapsed_wall_s)
        return LiveFigures(
            elapsed_wall_s=elapsed_wall_s,
            time=counts.time,
            dilation=counts.dilation,
            phase=counts.phase,
            classes=tuple(seen(one.header.name, [one]) for one in every),
            total=seen("all", every),
            tokens_per_s=rate(now.tokens, before.tokens),
            errors=dict(errors.most_common()),
            loop_lag_ms=max(counts.lags_ms.values(), default=None),
            share=share,
            left_wall_s=left_wall_s,
        )

    def _remember(self, elapsed_wall_s: float) -> _Moment:
        """Add this moment, and drop those before the last one older than RECENT_WALL_S."""
        classes = self._counts.classes
        if not self._moments:  # the run's start: nothing had been sent
            self._moments.append(_Moment(at_wall_s=0.0, sent={}, ended={}, tokens=0.0))
        moment = _Moment(
            at_wall_s=elapsed_wall_s,
            sent={name: one.sent for name, one in classes.items()},
            ended={name: one.ended for name, one in classes.items()},
            tokens=sum(one.tokens for one in classes.values()),
        )
        self._moments.append(moment)
        while elapsed_wall_s - self._moments[1].at_wall_s >= RECENT_WALL_S:
            self._moments.popleft()
        return moment


def _class_figures(
    name: str,
    each: Sequence[LiveClassCounts],
    *,
    dilation: float,
    sent_per_s: float | None,
    ended_per_s: float | None,
) -> LiveClassFigures:
    planned = [one.header.requests for one in each]
    known = [count for count in planned if count is not None]
    return LiveClassFigures(
        name=name,
        asked=", ".join(one.header.arrivals.words for one in each),
        requests=sum(known) if len(known) == len(planned) else None,
        ended=sum(one.ended for one in each),
        completed=sum(one.completed for one in each),
        in_flight=sum(one.in_flight for one in each),
        failed=sum(one.failed for one in each),
        sent_per_s=sent_per_s,
        ended_per_s=ended_per_s,
        ttft=_latency([one.ttft_wall_ns for one in each], dilation),
        tpot=_latency([one.tpot_wall_ns for one in each], dilation),
    )


def _latency(
    samples_wall_ns: Sequence[deque[int] | deque[float]], dilation: float
) -> RecentLatency:
    kept = [np.fromiter(each, float) for each in samples_wall_ns if each]  # each: [replies]
    if not kept:
        return RecentLatency(p50_ms=None, p99_ms=None)
    p50_ns, p99_ns = np.percentile(np.concatenate(kept), (50, 99))
    per_ms = 1e6 * dilation
    return RecentLatency(p50_ms=float(p50_ns) / per_ms, p99_ms=float(p99_ns) / per_ms)


def _progress(
    classes: Sequence[LiveClassCounts], dilation: float, elapsed_wall_s: float
) -> tuple[float | None, float | None]:
    """Share done, and wall seconds left, of the class with most left; None where unknown."""
    shares = [_share(one, dilation, elapsed_wall_s) for one in classes]
    share = min(shares, default=0.0)
    return (share, elapsed_wall_s * (1.0 / share - 1.0)) if share > 0 else (None, None)


def _share(counts: LiveClassCounts, dilation: float, elapsed_wall_s: float) -> float:
    """Share of a class done: by its time or its plan, whichever is further.

    The plan counts tokens, because long replies overlap and end all at once, or requests where
    those are further on, as with failed or short replies.
    """
    header = counts.header
    share = 0.0
    if header.ends_s is not None:
        wall_per_s = 1.0 if header.arrivals.time == "wall" else dilation
        ends_wall_s = header.ends_s * wall_per_s
        share = elapsed_wall_s / ends_wall_s if ends_wall_s > 0 else 1.0
    if header.requests is not None:
        share = max(share, counts.ended / header.requests if header.requests else 1.0)
    if header.output_tokens:
        share = max(share, counts.tokens / header.output_tokens)
    return min(1.0, share)


def errors_in_words(errors: Mapping[str, int]) -> str:
    """Errors by kind: `3 status 503, 1 timeout`."""
    return ", ".join(f"{count:,} {kind}" for kind, count in errors.items() if kind != ABORTED)


def clock_words(seconds: float | None) -> str:
    """Minutes and seconds, rounded up: `0:12`, `1:02:03`; `-` for unknown."""
    if seconds is None:
        return "-"
    minutes, whole = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{whole:02d}" if hours else f"{minutes}:{whole:02d}"


def count_words(done: int, whole: int | None) -> str:
    """`12/1,000`, or `12` where the number is not known."""
    return f"{done:,}" if whole is None else f"{done:,}/{whole:,}"


def three_digits(value: float | None) -> str:
    """Three digits or so: `0.45`, `12.3`, `1,234`; `-` for unknown."""
    if value is None:
        return "-"
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:,.{digits}f}"

"""Progress while a run lasts: a live line on a terminal, a plain line now and then elsewhere.

It counts what it is told and draws at its own pace; nothing measured depends on it.
"""

import asyncio
import math
import time
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from loadgen.result import Result

LIVE_INTERVAL_S: Final = 0.25
PLAIN_INTERVAL_S: Final = 2.0
BAR_CONSOLE_WIDTH_MIN: Final = 105  # columns; on a narrower terminal the figures matter more


class LiveCounts:
    """What has happened so far; `add_chunks` and `add_result` are told of it as it happens."""

    def __init__(self, *, total: int, total_tokens: int) -> None:
        self.total = total
        self.total_tokens = total_tokens
        self.ended = 0
        self.failed = 0
        self.chunks = 0
        self._ttft_wall_ns: list[int] = []

    def add_chunks(self, count: int) -> None:
        """`count` more chunks have come."""
        self.chunks += count

    def add_result(self, result: Result) -> None:
        """A request has ended."""
        self.ended += 1
        self.failed += result.error is not None
        if result.first_token_ns is not None:
            self._ttft_wall_ns.append(result.first_token_ns - result.intended_ns)

    def line(self, *, elapsed_wall_s: float, time_word: str, dilation: float) -> str:
        """Say it in a line: rates and TTFT in the run's time, the time left in wall time."""
        elapsed_s = max(elapsed_wall_s, 1e-9) / dilation
        ttft = "-"
        if self._ttft_wall_ns:
            ttft = f"{float(np.median(self._ttft_wall_ns)) / (1e6 * dilation):.1f} ms"
        parts = [
            f"{self.ended}/{self.total}",
            f"{self.chunks / elapsed_s:.0f} tok/s",
            f"{self.ended / elapsed_s:.1f} req/s",
            f"TTFT p50 {ttft}",
            f"({time_word})",
            f"errors {self.failed}",
            f"ETA {_duration(self._left_wall_s(elapsed_wall_s))}",
        ]
        return "  ".join(parts)

    def _left_wall_s(self, elapsed_wall_s: float) -> float | None:
        """Wall seconds to the end if all goes on as it did; None before anything has come.

        By tokens, for long replies overlap and then end all at once; by requests where a chunk
        carries so many tokens that those are further on.
        """
        share = max(self.chunks / self.total_tokens, self.ended / self.total)
        return elapsed_wall_s * max(0.0, 1.0 / share - 1.0) if share else None


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    whole = math.ceil(seconds)
    return f"{whole // 60}:{whole % 60:02d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressSettings:
    """How to show it: where, and not at all if `quiet`; `time_word` names the run's time."""

    console: Console
    time_word: str
    dilation: float
    quiet: bool


class _Display(Protocol):
    interval_s: float

    def show(self, counts: LiveCounts, line: str) -> None: ...

    def close(self) -> None: ...


class _LiveDisplay:
    """A bar and a line that are drawn over and over."""

    interval_s = LIVE_INTERVAL_S

    def __init__(self, console: Console, total: int) -> None:
        bar = (BarColumn(bar_width=20),) if console.width >= BAR_CONSOLE_WIDTH_MIN else ()
        self._progress = Progress(
            *bar,
            TextColumn("{task.description}", markup=False),
            console=console,
            auto_refresh=False,  # no thread beside the event loop
        )
        self._task = self._progress.add_task("", total=total)
        self._progress.start()

    def show(self, counts: LiveCounts, line: str) -> None:
        self._progress.update(self._task, completed=counts.ended, description=line, refresh=True)

    def close(self) -> None:
        self._progress.stop()


class _PlainDisplay:
    """A line at a time, for logs and pipes."""

    interval_s = PLAIN_INTERVAL_S

    def __init__(self, console: Console) -> None:
        self._file = console.file

    def show(self, counts: LiveCounts, line: str) -> None:  # noqa: ARG002
        print(line, file=self._file, flush=True)

    def close(self) -> None:
        """Nothing to put back."""


async def show_progress(counts: LiveCounts, settings: ProgressSettings) -> None:
    """Draw until cancelled, and once more then."""
    if settings.quiet:
        return
    display: _Display = (
        _LiveDisplay(settings.console, counts.total)
        if settings.console.is_terminal
        else _PlainDisplay(settings.console)
    )
    start_s = time.monotonic()

    def draw() -> None:
        elapsed_s = time.monotonic() - start_s
        line = counts.line(
            elapsed_wall_s=elapsed_s, time_word=settings.time_word, dilation=settings.dilation
        )
        display.show(counts, line)

    try:
        while True:
            await asyncio.sleep(display.interval_s)
            draw()
    finally:
        draw()
        display.close()

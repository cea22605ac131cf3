"""The live view of a run on stderr: drawn on a terminal, occasional lines elsewhere.

It reads the counts at its own pace; nothing measured depends on it.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final, Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

from loadgen.live.live_counts import LiveCounts
from loadgen.live.live_figures import (
    LiveClassFigures,
    LiveFigures,
    LiveFiguresTaker,
    clock_words,
    errors_in_words,
    three_digits,
)
from loadgen.live.screen import screen

SCREEN_INTERVAL_S: Final = 1.0
"""Drawing takes about 3 ms of the event loop that stamps arrivals: once a second, 0.3 % of them can
be that late.
"""
PLAIN_INTERVAL_S: Final = 2.0
PREPARING: Final = "preparing"
_LOOK_S: Final = 0.05  # how often it looks whether the dispatch has begun


@asynccontextmanager
async def live_view(
    counts: LiveCounts, *, console: Console, quiet: bool = False
) -> AsyncIterator[None]:
    """Show `counts` on `console` while the block lasts, and once at its end.

    `quiet` shows nothing. Errors of the block pass through; the terminal is always restored.
    """
    if quiet:
        yield
        return
    view = _View(counts, _Screen(console) if console.is_terminal else _Lines(console))
    task = asyncio.create_task(view.show())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class _Display(Protocol):
    interval_s: float

    def prepare(self, phase: str) -> None: ...

    def show(self, seen: LiveFigures) -> None: ...

    def close(self) -> None: ...


class _View:
    def __init__(self, counts: LiveCounts, display: _Display) -> None:
        self._counts = counts
        self._display = display
        self._snapshots = LiveFiguresTaker(counts)

    async def show(self) -> None:
        """Draw until cancelled, and once more then."""
        try:
            shown = ""
            while self._counts.origin_ns is None:
                phase = self._counts.phase or PREPARING
                if phase != shown:
                    self._display.prepare(phase)
                    shown = phase
                await asyncio.sleep(_LOOK_S)
            while True:
                await asyncio.sleep(self._display.interval_s)
                self._draw(self._counts.origin_ns)
        finally:
            self._counts.say("")
            if self._counts.origin_ns is not None:
                self._draw(self._counts.origin_ns)
            self._display.close()

    def _draw(self, origin_ns: int) -> None:
        passed_ns = max(0, time.monotonic_ns() - origin_ns)
        self._display.show(self._snapshots.take(passed_ns / 1e9))


class _Screen:
    """Redrawn in place; the last picture stays."""

    interval_s = SCREEN_INTERVAL_S

    def __init__(self, console: Console) -> None:
        self._console = console
        # No thread beside the event loop: what draws is what counts, in turn.
        self._live = Live(
            console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        self._live.start()
        # The first time takes ten times as long as any other, and is not to fall into the dispatch.
        console.render_lines(screen(LiveFiguresTaker(LiveCounts()).take(1.0), width=console.width))

    def prepare(self, phase: str) -> None:
        self._live.update(Text(f" {phase}...", style="dim"), refresh=True)

    def show(self, seen: LiveFigures) -> None:
        self._live.update(screen(seen, width=self._console.width), refresh=True)

    def close(self) -> None:
        self._live.stop()


class _Lines:
    """A line at a time."""

    interval_s = PLAIN_INTERVAL_S

    def __init__(self, console: Console) -> None:
        self._file = console.file

    def prepare(self, phase: str) -> None:
        print(f"{phase}...", file=self._file, flush=True)

    def show(self, seen: LiveFigures) -> None:
        print(plain_line(seen), file=self._file, flush=True)

    def close(self) -> None:
        """Nothing to put back."""


def plain_line(seen: LiveFigures) -> str:
    """Progress, rates, latencies and the time left, in one line."""
    several = len(seen.classes) > 1
    parts = [
        clock_words(seen.elapsed_wall_s),
        *([f"{seen.phase}..."] if seen.phase else []),
        *(_class_text(each, named=several) for each in seen.classes),
        f"{three_digits(seen.tokens_per_s)} tokens/s",
        f"({seen.time} time)",
        f"errors {seen.total.failed}"
        + (f" ({errors_in_words(seen.errors)})" if seen.total.failed else ""),
        *(
            [f"loop lag {three_digits(seen.loop_lag_ms)} ms"]
            if seen.loop_lag_ms is not None
            else []
        ),
        f"ETA {clock_words(seen.left_wall_s)}",
    ]
    return "  ".join(parts)


def _class_text(seen: LiveClassFigures, *, named: bool) -> str:
    name = f"{seen.name}: " if named else ""
    return "  ".join(
        [
            f"{name}{_ended_words(seen)}",
            f"{seen.in_flight:,} in flight",
            f"{three_digits(seen.sent_per_s)}/s",
            f"TTFT p50 {three_digits(seen.ttft.p50_ms)} p99 {three_digits(seen.ttft.p99_ms)} ms",
            f"TPOT p50 {three_digits(seen.tpot.p50_ms)} p99 {three_digits(seen.tpot.p99_ms)} ms",
        ]
    )


def _ended_words(seen: LiveClassFigures) -> str:
    """`68 completed, 32 failed of 100`."""
    failed = f", {seen.failed:,} failed" if seen.failed else ""
    whole = "" if seen.requests is None else f" of {seen.requests:,}"
    return f"{seen.completed:,} completed{failed}{whole}"

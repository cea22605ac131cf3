"""The terminal's view of a moment: a bar, a row for each class, and errors."""

from collections.abc import Iterable
from typing import Final

from rich import box
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from loadgen.live.live_figures import (
    LiveClassFigures,
    LiveFigures,
    clock_words,
    count_words,
    errors_in_words,
    three_digits,
)

WIDE: Final = 130
"""From so many columns on, the asked arrivals have a column of their own."""
NAME_COLUMNS: Final = 16


def screen(seen: LiveFigures, *, width: int) -> RenderableType:
    """Draw for a terminal of `width` columns."""
    wide = width >= WIDE
    lines: list[RenderableType] = [_headline(seen, width), _classes(seen, wide=wide)]
    if not wide:
        lines.extend(
            Text(f" {each.name}: {each.asked}", style="dim", overflow="ellipsis", no_wrap=True)
            for each in seen.classes
            if each.asked
        )
    lines.append(_foot(seen))
    if seen.total.failed:
        words = f" {seen.total.failed:,} failed: {errors_in_words(seen.errors)}"
        lines.append(Text(words, style="bold red", overflow="ellipsis", no_wrap=True))
    return Group(*lines)


def _headline(seen: LiveFigures, width: int) -> Table:
    done = "" if seen.share is None else f"{100 * seen.share:3.0f} %"
    line = Table.grid(padding=(0, 1))
    line.add_column()
    for _ in range(3):
        line.add_column(no_wrap=True)
    line.add_row(
        ProgressBar(total=1.0, completed=seen.share or 0.0, width=max(10, width - 36)),
        Text(done, style="bold"),
        Text(f"{clock_words(seen.elapsed_wall_s)} gone"),
        Text(f"{seen.phase}..." if seen.phase else f"ETA {clock_words(seen.left_wall_s)}"),
    )
    return line


def _classes(seen: LiveFigures, *, wide: bool) -> Table:
    # Words may be cut (see `_cells`), figures never: a column that is `no_wrap` keeps its width.
    gap = (0, 1) if wide else (0, 1, 0, 0)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=gap, header_style="bold")
    table.add_column(" class", min_width=6, max_width=NAME_COLUMNS)
    if wide:
        table.add_column("asked", style="dim", min_width=10)
    table.add_column("done", justify="right", no_wrap=True)
    for name in ("in\nflight", "sent\n/s", "ends\n/s"):
        table.add_column(name, justify="right", no_wrap=True, vertical="bottom")
    for name in ("TTFT\np50 ms", "\np99 ms", "TPOT\np50 ms", "\np99 ms"):
        table.add_column(name, justify="right", no_wrap=True, style="cyan")
    table.add_column("failed", justify="right", no_wrap=True)
    several = len(seen.classes) > 1
    for each in (*seen.classes, *((seen.total,) if several else ())):
        cells = _cells(each, wide=wide, whole=several and each is seen.total)
        table.add_row(*cells, style="bold" if several and each is seen.total else "")
    return table


def _cells(seen: LiveClassFigures, *, wide: bool, whole: bool) -> Iterable[Text]:
    yield Text(f" {seen.name}", overflow="ellipsis", no_wrap=True)
    if wide:
        yield Text("" if whole else seen.asked, overflow="ellipsis", no_wrap=True)
    yield Text(count_words(seen.completed, seen.requests))
    yield Text(f"{seen.in_flight:,}")
    for per_s in (seen.sent_per_s, seen.ended_per_s):
        yield Text(three_digits(per_s))
    for latency in (seen.ttft, seen.tpot):
        yield Text(three_digits(latency.p50_ms))
        yield Text(three_digits(latency.p99_ms))
    yield Text(f"{seen.failed:,}", style="bold red" if seen.failed else "")


def _foot(seen: LiveFigures) -> Text:
    emulated = f"emulated time (1 s is {seen.dilation:g} wall s)"
    parts = [
        emulated if seen.time == "emulated" else f"{seen.time} time",
        f"{three_digits(seen.tokens_per_s)} output tokens/s",
    ]
    if seen.loop_lag_ms is not None:
        parts.append(f"loop lag {three_digits(seen.loop_lag_ms)} ms")
    return Text(" " + " · ".join(parts), style="dim")

"""Ranks with their queues, and what is lent out, as lines."""

from collections.abc import Iterator

from rich.text import Text
from textual.containers import VerticalScroll
from textual.widgets import Static

from serving.telemetry.neuron_tools.shown_numbers import percent, seconds, watts
from serving.telemetry.neuron_tools.top_figures import TopFigures


def rank_lines(figures: TopFigures) -> Iterator[Text]:
    """Steps by phase, leases, then a line for every rank with its chips."""
    phases = ", ".join(f"{count:,} {name}" for name, count in figures.steps_by_phase.items())
    yield Text(f"{figures.steps:,} steps: {phases or 'none yet'}")
    for lease in figures.leases:
        since_s = figures.emulated_s - lease.since_emulated_s
        text = Text(f"lease {lease.number} {lease.phase}", style="bold")
        text.append(f" for {seconds(since_s)}: {len(lease.chips)} chips, {lease.reason}")
        training = lease.training
        if training is not None:
            loss = "-" if training.loss is None else f"{training.loss:.4f}"
            text.append(f"; step {training.steps:,}, loss {loss}, {watts(training.watts)}")
        yield text
    yield Text()
    yield Text(f"{'rank':>5} {'up':<4}{'run':>7}{'wait':>7}{'KV':>9}{'version':>9}  chips", "bold")
    chips: dict[int, list[str]] = {}
    for chip in figures.chips:
        if chip.rank is not None:
            chips.setdefault(chip.rank, []).append(str(chip.chip))
    for rank in figures.ranks:
        kv = rank.kv_blocks_used / rank.kv_blocks if rank.kv_blocks else None
        yield Text(
            f"{rank.rank:>5} {'yes' if rank.up else 'NO':<4}{rank.requests_running:>7,}"
            f"{rank.requests_waiting:>7,}{percent(kv):>9}{rank.version:>9}  "
            f"{' '.join(chips.get(rank.rank, ['-']))}",
            style="" if rank.up else "bold reverse",
        )


class RankTable(VerticalScroll):
    """Scrolls the lines."""

    def compose(self) -> Iterator[Static]:
        """One text."""
        yield Static(id="rank-lines")

    def show(self, figures: TopFigures) -> None:
        """The ranks of a look."""
        self.query_one("#rank-lines", Static).update(Text("\n").join(rank_lines(figures)))

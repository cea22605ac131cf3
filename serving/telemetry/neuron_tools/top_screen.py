"""The live screen of `ultraserve top`: tabs and keys after neuron-top's, drawn by Textual.

A thread takes snapshots, one at a time; a transient failure is shown and retried.

Source of the keys: AWS Neuron SDK docs, neuron-top-user-guide.rst: F toggles utilisation and
TFLOPS, 1-9 select a tab, a and d the one before and after, x expands or collapses the whole tree.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, Final

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import DataTable, Static, TabbedContent, TabPane

from serving.telemetry.neuron_tools.heat_grid import LEGEND, MEASURES, hbm_share
from serving.telemetry.neuron_tools.memory_tree import MemoryTree
from serving.telemetry.neuron_tools.shown_numbers import memory, percent
from serving.telemetry.neuron_tools.top_figures import TopChip, TopFigures
from serving.telemetry.neuron_tools.top_panels import (
    cores_view,
    pace,
    rank_lines,
    summary,
    title,
)

COLUMNS: Final[Mapping[str, Callable[[TopChip], str]]] = {
    "ND": lambda chip: str(chip.chip),
    "rack": lambda chip: str(chip.rack),
    "tray": lambda chip: str(chip.tray),
    "at": lambda chip: str(chip.position),
    "rank": lambda chip: "-" if chip.rank is None else str(chip.rank),
    "doing": lambda chip: f"{chip.doing}, slow" if chip.slow else chip.doing,
    "cores": lambda chip: f"{min(chip.cores)}-{max(chip.cores)}",
    "util": lambda chip: percent(chip.utilization),
    "TFLOPS": lambda chip: f"{chip.flops_per_s / 1e12:,.1f}",
    "HBM": lambda chip: memory(chip.hbm_used_bytes),
    "HBM %": lambda chip: percent(hbm_share(chip)),
    "W": lambda chip: f"{chip.watts:,.0f}",
    "links": lambda chip: percent(chip.link_utilization),
}


class ChipTable(DataTable[Text]):
    """Rows keep their places between snapshots; only changed cells are written."""

    def __init__(self) -> None:
        super().__init__(cursor_type="row", zebra_stripes=True)
        self._shown: dict[int, tuple[str, ...]] = {}

    def on_mount(self) -> None:
        """Add the columns."""
        for name in COLUMNS:
            self.add_column(name, key=name)

    def show(self, figures: TopFigures) -> None:
        """Show the chips of a snapshot."""
        if self._shown.keys() != {chip.chip for chip in figures.chips}:
            self.clear()
            self._shown = {}
        for chip in figures.chips:
            cells = tuple(cell(chip) for cell in COLUMNS.values())
            before = self._shown.get(chip.chip)
            if before is None:
                texts = (Text(cell, justify="right") for cell in cells)
                self.add_row(*texts, key=str(chip.chip))
            else:
                for name, then, now in zip(COLUMNS, before, cells, strict=True):
                    if then != now:
                        text = Text(now, justify="right")
                        self.update_cell(str(chip.chip), name, text, update_width=True)
            self._shown[chip.chip] = cells


KEYS: Final = (
    ("1-4", "tab: cores, memory, ranks, chips"),
    ("a d", "tab before, after"),
    ("F", "utilization or TFLOPS"),
    ("m", "next measure: utilization, TFLOPS, HBM, power, links"),
    ("x", "memory: expand or collapse all"),
    ("arrows", "move, scroll"),
    ("h", "this help"),
    ("q", "quit"),
)
_TABS: Final = ("cores", "memory", "ranks", "chips")
_HINT: Final = "1-4 a d tabs  F TFLOPS  m measure  x expand  h help  q quit"

Look = Callable[[], TopFigures]
"""Takes a snapshot. Raises `Lost` for a transient failure; anything else ends the screen."""


class Lost(Exception):
    """A transient failure of a snapshot, with a message for the user."""


class Looked(Message):
    """The figures of a snapshot, or its failure."""

    def __init__(self, found: TopFigures | Exception) -> None:
        super().__init__()
        self.found = found


class LinesPane(VerticalScroll):
    """Lines that scroll, rendered for the pane's width."""

    def __init__(self, pane_id: str) -> None:
        super().__init__(Static(), id=pane_id)
        self._lines: Callable[[int], Iterable[Text]] | None = None

    def show(self, lines: Callable[[int], Iterable[Text]]) -> None:
        """Set and write the lines, a function of the width."""
        self._lines = lines
        self.on_resize()

    def on_resize(self) -> None:
        """Write them for the new width."""
        if self._lines is not None:
            self.query_one(Static).update(Text("\n").join(self._lines(self.size.width)))


class Help(ModalScreen[None]):
    """The keys; closed by a key."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key, "dismiss(None)") for key in ("escape", "h", "q", "enter", "space")
    ]

    def compose(self) -> ComposeResult:
        """Yield the text."""
        keys = "\n".join(f"{key:<8}{what}" for key, what in KEYS)
        text = (
            f"{keys}\n\n{LEGEND}\n\nCores, memory, tokens and power are emulated; a chip's cores "
            "share its work evenly. vCPUs and host memory are this machine's own."
        )
        yield Static(Text(text), id="help")


class TopScreen(App[Exception | None]):
    """Runs until `q`, or until a snapshot fails for good: `run` returns that error."""

    TITLE = "ultraserve top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { layout: vertical; }
    #title, #status, #legend { height: 1; }
    #status.lost { text-style: bold reverse; }
    TabbedContent { height: 1fr; }
    Tabs { height: 1; }
    Tabs #tabs-list-bar { height: 1; }
    Underline { display: none; }
    Tab.-active { text-style: bold reverse; }
    TabPane { padding: 0; }
    #grid { width: 1fr; height: 1fr; }
    #right { width: 36; height: 1fr; padding-left: 1; }
    #cores-pane { height: 1fr; }
    Help { align: center middle; }
    #help { width: 64; max-width: 100%; height: auto; padding: 1 2; border: round $primary; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(number), f"tab({number})") for number in range(1, len(_TABS) + 1)),
        Binding("a", "step(-1)"),
        Binding("d", "step(1)"),
        Binding("f,F", "flops"),
        Binding("m", "measure"),
        Binding("x", "expand"),
        Binding("h", "help"),
        Binding("q", "quit"),
    ]

    def __init__(self, look: Look, *, first: TopFigures, address: str, interval_s: float) -> None:
        super().__init__(ansi_color=False)
        self._look = look
        self._figures = first
        self._address = address
        self._interval_s = interval_s
        self._measure = 0
        self._lost: str | None = None
        self._seen_s = time.monotonic()
        self._ended = threading.Event()
        self._drawn = threading.Event()

    def compose(self) -> ComposeResult:
        """Yield title, status, tabs and keys."""
        yield Static(id="title")
        yield Static(id="status")
        with TabbedContent(id="tabs"):
            with TabPane("1 cores", id="cores"), Horizontal(id="cores-pane"):
                yield LinesPane("grid")
                with VerticalScroll(id="right"):
                    yield Static(id="summary")
            with TabPane("2 memory", id="memory"):
                yield MemoryTree()
            with TabPane("3 ranks", id="ranks"):
                yield LinesPane("rank-lines")
            with TabPane("4 chips", id="chips"):
                yield ChipTable()
        yield Static(Text(_HINT, style="dim"), id="legend")

    def on_mount(self) -> None:
        """Draw the first figures, and start the thread."""
        self._draw()
        threading.Thread(target=self._ask, daemon=True, name="looks").start()

    def on_unmount(self) -> None:
        """End the thread, without waiting for a snapshot under way."""
        self._ended.set()
        self._drawn.set()

    def on_tabbed_content_tab_activated(self) -> None:
        """Draw the tab that is now visible."""
        self._draw()

    def _ask(self) -> None:
        """Post a snapshot each interval until the screen ends, each after the last is drawn."""
        while not self._ended.is_set():
            begun_s = time.monotonic()
            found: TopFigures | Exception
            try:
                found = self._look()
            except Exception as error:  # noqa: BLE001 it ends the screen, which raises it
                found = error
            self._drawn.clear()
            if self._ended.is_set() or not self.post_message(Looked(found)):
                return
            self._drawn.wait()
            self._ended.wait(max(begun_s + self._interval_s - time.monotonic(), 0.0))

    def on_looked(self, told: Looked) -> None:
        """Draw it, or end with an error that is not transient."""
        match told.found:
            case TopFigures() as figures:
                self._figures, self._seen_s, self._lost = figures, time.monotonic(), None
            case Lost() as lost:
                self._lost = str(lost)
            case failure:
                self.exit(failure)
                return
        self._draw()
        self._drawn.set()

    def _draw(self) -> None:
        base = self.screen_stack[0] if self.screen_stack else None  # below the help
        if base is None or not base.query("#summary"):
            return  # the screen is being taken down
        figures = self._figures
        base.query_one("#title", Static).update(title(figures, self._address))
        status = base.query_one("#status", Static)
        status.set_class(self._lost is not None, "lost")
        status.update(pace(figures) if self._lost is None else self._lost_line())
        match base.query_one("#tabs", TabbedContent).active:
            case "memory":
                base.query_one(MemoryTree).show(figures)
            case "ranks":
                base.query_one("#rank-lines", LinesPane).show(lambda _: rank_lines(figures))
            case "chips":
                base.query_one(ChipTable).show(figures)
            case _:
                measure = MEASURES[self._measure]
                base.query_one("#grid", LinesPane).show(
                    lambda width: cores_view(figures, measure, width=width)
                )
                lines = Text("\n").join(summary(figures))
                base.query_one("#summary", Static).update(lines)

    def _lost_line(self) -> Text:
        ago_s = time.monotonic() - self._seen_s
        return Text(f"connection lost, trying again; shown is {ago_s:.0f} s old: {self._lost}")

    def action_tab(self, number: int) -> None:
        """Select a tab by its number."""
        self.screen_stack[0].query_one("#tabs", TabbedContent).active = _TABS[number - 1]

    def action_step(self, by: int) -> None:
        """Select the tab before or after, cyclically."""
        tabs = self.screen_stack[0].query_one("#tabs", TabbedContent)
        tabs.active = _TABS[(_TABS.index(tabs.active) + by) % len(_TABS)]

    def action_flops(self) -> None:
        """Toggle utilisation and TFLOPS."""
        self._measure = 1 if self._measure == 0 else 0
        self._draw()

    def action_measure(self) -> None:
        """Select the next measure."""
        self._measure = (self._measure + 1) % len(MEASURES)
        self._draw()

    def action_expand(self) -> None:
        """Expand or collapse the memory tree."""
        self.screen_stack[0].query_one(MemoryTree).toggle_all()

    def action_help(self) -> None:
        """Show the keys."""
        self.push_screen(Help())

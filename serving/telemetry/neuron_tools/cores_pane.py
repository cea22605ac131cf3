"""The grid of chips, or the bars of cores, as wide as there is room."""

from collections.abc import Iterator

from rich.text import Text
from textual.containers import VerticalScroll
from textual.widgets import Static

from serving.telemetry.neuron_tools.heat_grid import HeatMeasure
from serving.telemetry.neuron_tools.top_figures import TopFigures
from serving.telemetry.neuron_tools.top_panels import cores_view


class CoresPane(VerticalScroll):
    """Scrolls what it was shown last, and draws it anew when its size changes."""

    def __init__(self) -> None:
        super().__init__()
        self._shown: tuple[TopFigures, HeatMeasure] | None = None

    def compose(self) -> Iterator[Static]:
        """One text."""
        yield Static(id="grid")

    def show(self, figures: TopFigures, measure: HeatMeasure) -> None:
        """The cores of a look."""
        self._shown = (figures, measure)
        self._write()

    def on_resize(self) -> None:
        """The grid says more where there is room."""
        self._write()

    def _write(self) -> None:
        if self._shown is not None:
            figures, measure = self._shown
            lines = cores_view(figures, measure, width=self.size.width)
            self.query_one("#grid", Static).update(Text("\n").join(lines))

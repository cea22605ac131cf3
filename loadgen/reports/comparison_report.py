"""The report of a comparison: what differs between two sides, and whether chance explains it."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Final

from loadgen.measures.comparison import Comparison, Difference, Side
from loadgen.measures.definitions import DISTRIBUTIONS, ENERGY, RATES
from loadgen.records.plain_number import counted
from loadgen.reports.document import NOTHING, Cell, Column, Document, Facts, FigureRow, Grid, Tone
from loadgen.reports.figure_text import number

_DEFINITIONS: Final = {each.name: each for each in (*DISTRIBUTIONS, *RATES, *ENERGY)}
_TONES: Final[Mapping[str, Tone]] = {
    "better": "good",
    "worse": "bad",
    "different": "plain",
    "within noise": "dim",
    "unknown": "dim",
}

_TRAFFIC: Final = ("api", "workload", "prompts", "arrivals", "requests")
"""Settings of `Comparison.apart` that make the traffic; a class's name and `: ` may be before."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ComparisonReport:
    """Two sides, figure by figure. Side b is judged against side a."""

    comparison: Comparison

    def document(self) -> Document:
        """For people."""
        found = self.comparison
        classes = dict.fromkeys(each.traffic_class for each in found.differences)
        return Document(
            title=f"UltraServe comparison: {sides_words(found)}",
            subtitle=f"{found.time} time",
            verdict=verdict_words(found),
            sections=(
                Facts(title="sides", rows=tuple(_sides(found))),
                *(_grid(found, name) for name in classes),
            ),
            notes=found.notes,
        )

    def fields(self) -> Mapping[str, object]:
        """For programs."""
        found = self.comparison
        return {
            "time": found.time,
            "a": asdict(found.a),
            "b": asdict(found.b),
            "method": found.method,
            "settings_apart": {name: list(both) for name, both in found.apart.items()},
            "beyond_noise": len(found.beyond_noise),
            "differences": [
                {**asdict(each), "unit": _unit(each), "beyond_noise": each.beyond_noise}
                for each in found.differences
            ],
            "notes": list(found.notes),
        }

    def figures(self) -> tuple[FigureRow, ...]:
        """For spreadsheets: the relative difference, with both values beside it."""
        return tuple(
            FigureRow(
                traffic_class=each.traffic_class or "all",
                figure=each.figure,
                statistic=each.statistic,
                unit="relative difference",
                value=each.relative,
                low=each.low,
                high=each.high,
                extra={
                    "a": "" if each.a is None else repr(each.a),
                    "b": "" if each.b is None else repr(each.b),
                    "p_value": "" if each.p_value is None else repr(each.p_value),
                    "verdict": each.verdict,
                    "time": self.comparison.time,
                },
            )
            for each in self.comparison.differences
        )


def sides_words(found: Comparison) -> str:
    """Which side is judged against which, by their labels if those tell them apart."""
    if found.a.label == found.b.label:
        return "b against a"
    return f"{found.b.label} against {found.a.label}"


def verdict_words(found: Comparison) -> str:
    """All of it in a few words; first of all whether both sides had the same to do."""
    apart = dict.fromkeys(name.rpartition(": ")[2] for name in found.apart)
    traffic = [name for name in apart if name in _TRAFFIC]
    warned = f"not the same traffic ({', '.join(traffic)} differ): " if traffic else ""
    verdicts = [each.verdict for each in found.differences]
    unknown, known = len(found.unknown), len(found.judged)
    if not known:
        return f"{warned}{unknown} unknown, no figure can be compared"
    if not found.beyond_noise:
        left = f"; {unknown} unknown" if unknown else ""
        return f"{warned}none of {counted(known, 'figure')} differs beyond noise{left}"
    names = ("better", "worse", "different", "within noise", "unknown")
    said = ", ".join(f"{verdicts.count(name)} {name}" for name in names if name in verdicts)
    return f"{warned}of {counted(len(verdicts), 'figure')} {said}"


def figure_words(difference: Difference) -> str:
    """`TTFT p99`, `output tokens/s`."""
    definition = _DEFINITIONS.get(difference.figure)
    label = difference.figure if definition is None else definition.label
    return f"{label} {difference.statistic}".strip()


def _unit(difference: Difference) -> str:
    definition = _DEFINITIONS.get(difference.figure)
    return "" if definition is None else definition.unit


def _sides(found: Comparison) -> Iterator[tuple[str, str]]:
    for letter, side in (("a", found.a), ("b", found.b)):
        yield f"{letter}: {side.label}", _side(side)
        yield "", side.command
    for name, (of_a, of_b) in found.apart.items():
        yield f"{name} differs", f"a: {of_a}"
        yield "", f"b: {of_b}"
    yield "method", found.method


def _side(side: Side) -> str:
    completed = counted(side.completed, "request")
    return f"{counted(side.runs, 'run')}, {completed} completed, {side.failed:,} failed"


def _grid(found: Comparison, traffic_class: str) -> Grid:
    whose = f" of {traffic_class}" if traffic_class else ""
    return Grid(
        title=f"differences{whose}, in {found.time} time",
        columns=(
            Column(title="", words=True),
            Column(title="unit", words=True, rank=1),
            Column(title="a"),
            Column(title="b"),
            Column(title="difference"),
            Column(title="95 % interval"),
            Column(title="p", rank=2),
            Column(title="", words=True),
        ),
        rows=tuple(_row(each) for each in found.differences if each.traffic_class == traffic_class),
    )


def _row(each: Difference) -> tuple[str | Cell, ...]:
    tone = _TONES[each.verdict]
    between = NOTHING
    if each.low is not None and each.high is not None:
        between = f"{_signed(each.low)} .. {_signed(each.high)}"
    return (
        figure_words(each),
        Cell(words=_unit(each), tone="dim"),
        number(each.a),
        number(each.b),
        Cell(words=_signed(each.relative), tone=tone),
        Cell(words=between, tone="dim"),
        Cell(words=NOTHING if each.p_value is None else f"{each.p_value:.3f}", tone="dim"),
        Cell(words=each.verdict, tone=tone),
    )


def _signed(share: float | None) -> str:
    if share is None:
        return NOTHING
    words = f"{100 * share:+.1f} %"
    return "0.0 %" if words in ("+0.0 %", "-0.0 %") else words

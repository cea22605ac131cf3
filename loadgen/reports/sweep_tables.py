"""The points of a sweep as tables."""

from collections.abc import Mapping
from typing import Final

from loadgen.records.estimate import Estimate
from loadgen.records.sweep_record import BoundShare, SweepPoint, SweepRecord, Verdict
from loadgen.reports.document import NOTHING, Cell, Column, Grid
from loadgen.reports.figure_text import number, percent
from loadgen.reports.sweep_words import LOAD_WORDS

_VERDICTS: Final[Mapping[Verdict, Cell]] = {
    "kept": Cell(words="kept", tone="good"),
    "missed": Cell(words="missed", tone="bad"),
    "undecided": Cell(words="undecided", tone="dim"),
}


def points_grid(sweep: SweepRecord) -> Grid:
    """A row for each point, by load."""
    ordered = sorted(enumerate(sweep.points), key=lambda each: (each[1].load, each[0]))
    with_slo = any(point.verdict for point in sweep.points)
    columns = [
        Column(title=LOAD_WORDS[sweep.axis]),
        Column(title="requests/s"),
        Column(title="tokens/s"),
        Column(title="TTFT p50"),
        Column(title="TTFT p99"),
        Column(title="TPOT p50", rank=2),
        Column(title="TPOT p99", rank=2),
        Column(title="E2E p50", rank=4),
        Column(title="E2E p99", rank=4),
        Column(title="tokens/s/user", rank=5),
        Column(title="tokens/s/MW", rank=1),
        Column(title="tokens/s/chip", rank=3),
        Column(title="failed", rank=6),
        Column(title="saturated", words=True, rank=0),
        *([Column(title="SLO", words=True)] if with_slo else []),
        Column(title="run", words=True, rank=7),
    ]
    return Grid(
        title=f"points, by load; rates per {sweep.time} s, latencies in {sweep.time} ms",
        columns=tuple(columns),
        rows=tuple(_point(sweep, point, with_slo=with_slo) for _, point in ordered),
    )


def _point(sweep: SweepRecord, point: SweepPoint, *, with_slo: bool) -> tuple[str | Cell, ...]:
    figures = point.figures
    knee = sweep.knee is not None and sweep.knee.load == point.load
    over = {True: Cell(words="yes", tone="bad"), False: Cell(words="no"), None: Cell(words="?")}
    cells: list[str | Cell] = [
        f"{number(point.load)} knee" if knee else number(point.load),
        *map(_value, (figures.requests_per_s, figures.output_tokens_per_s)),
        *map(_value, (figures.ttft_p50_ms, figures.ttft_p99_ms)),
        *map(_value, (figures.tpot_p50_ms, figures.tpot_p99_ms)),
        *map(_value, (figures.e2e_p50_ms, figures.e2e_p99_ms)),
        *map(_value, (figures.interactivity_p50, figures.tokens_per_s_per_mw)),
        _value(figures.tokens_per_s_per_chip),
        Cell(words=percent(figures.failed_share), tone="bad" if figures.failed_share else "plain"),
        over[point.saturation.over],
    ]
    if with_slo:
        cells.append(_VERDICTS[point.verdict] if point.verdict else NOTHING)
    cells.append(Cell(words=point.results, tone="dim"))
    return tuple(cells)


def bounds_grid(sweep: SweepRecord) -> Grid:
    """What the verdicts on the SLO rest on."""
    rows = [
        (number(point.load), *_bound(bound, several=_several(sweep)))
        for point in sorted(sweep.points, key=lambda each: each.load)
        for bound in point.bounds
    ]
    return Grid(
        title="SLO: the share of samples within each bound",
        columns=(
            Column(title=LOAD_WORDS[sweep.axis]),
            Column(title="bound", words=True),
            Column(title="needed"),
            Column(title="share"),
            Column(title="interval"),
            Column(title="samples", rank=1),
            Column(title="worth", rank=2),
            Column(title="", words=True),
        ),
        rows=tuple(rows),
        foot="worth: so many independent samples tell as much, for neighbours in time are alike",
    )


def _several(sweep: SweepRecord) -> bool:
    return len({bound.traffic_class for point in sweep.points for bound in point.bounds}) > 1


def _bound(bound: BoundShare, *, several: bool) -> tuple[str | Cell, ...]:
    return (
        f"{bound.traffic_class}: {bound.words}" if several else bound.words,
        percent(bound.needed),
        percent(bound.share),
        Cell(words=f"{percent(bound.low)} .. {percent(bound.high)}", tone="dim"),
        f"{bound.samples:,}",
        number(bound.effective),
        _VERDICTS[bound.verdict],
    )


def pareto_grid(sweep: SweepRecord, title: str, places: tuple[int, ...], name: str) -> Grid:
    """The points at `places`, which no other beats; `name` is the figure beside interactivity."""
    return Grid(
        title=f"Pareto: {title} against interactivity, per {sweep.time} s",
        columns=(
            Column(title="tokens/s/user, p50"),
            Column(title=title),
            Column(title=LOAD_WORDS[sweep.axis]),
        ),
        rows=tuple(
            (
                _value(sweep.points[place].figures.interactivity_p50),
                _value(getattr(sweep.points[place].figures, name)),
                number(sweep.points[place].load),
            )
            for place in places
        ),
    )


def _value(measured: Estimate | float | None) -> str:
    return number(measured.value if isinstance(measured, Estimate) else measured)

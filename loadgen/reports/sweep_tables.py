"""A sweep's points as tables, and its findings in words."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from loadgen.records.estimate import Estimate
from loadgen.records.sweep_record import (
    BestLoad,
    BoundShare,
    Knee,
    PointFigures,
    SweepPoint,
    SweepRecord,
    Verdict,
)
from reporting.document import Cell, Column, Facts, Table, table_of
from reporting.numbers import number, percent, value_of

_NUMBERS: Final = re.compile(r"\d[\d.,]*(?<![.,])")
LOAD_WORDS: Final = {"rate": "sessions/s", "concurrency": "in flight"}


def load_and_unit(sweep: SweepRecord, load: float) -> str:
    """`8 sessions/s`, `16 in flight`."""
    return f"{number(load)} {LOAD_WORDS[sweep.axis]}"


def knee_words(sweep: SweepRecord, knee: Knee) -> str:
    """The knee's load with its interval."""
    edge = "; it is the last or first load tried: the knee may lie beyond" if knee.at_edge else ""
    between = ""
    if knee.low < knee.high:
        between = f" (not told apart from {number(knee.low)} .. {number(knee.high)})"
    return (
        f"{load_and_unit(sweep, knee.load)}{between}: {number(knee.requests_per_s)} requests/s at "
        f"{number(knee.e2e_mean_ms)} ms mean E2E{edge}"
    )


def best_words(sweep: SweepRecord, best: BestLoad) -> str:
    """The SLO's highest load, and why the search ended."""
    sure = f"with {100 * best.confidence:g} % confidence"
    kept = "no load that was tried" if best.load is None else load_and_unit(sweep, best.load)
    ends = f"; {best.words}" if best.words else ""
    return f"{kept} keeps {best.slo} {sure}{ends}"


def findings(sweep: SweepRecord) -> Facts:
    """The knee, the SLO's highest load, the most throughput, and the sweep's end."""
    return Facts(title="findings", rows=tuple(_findings(sweep)))


def _findings(sweep: SweepRecord) -> Iterator[tuple[str, str]]:
    if sweep.knee is not None:
        yield "knee", knee_words(sweep, sweep.knee)
    if sweep.best is not None:
        yield "highest load", best_words(sweep, sweep.best)
    most = sweep.highest_requests_per_s
    if most is not None:
        between = (
            ""
            if most.low is None or most.high is None
            else f" ({number(most.low)} .. {number(most.high)})"
        )
        yield "throughput", f"at most {number(most.value)}{between} requests/s were completed"
    yield "ended", ("interrupted: " if sweep.interrupted else "") + sweep.stopped


def sweep_facts(sweep: SweepRecord) -> Facts:
    """Workload, number of points, and time of the figures."""
    return Facts(title="sweep", rows=tuple(_facts(sweep)))


def _facts(sweep: SweepRecord) -> Iterator[tuple[str, str]]:
    yield "workload", sweep.workload
    yield (
        "points",
        f"{len(sweep.points)}, {sum(point.requests for point in sweep.points):,} requests",
    )
    yield "rates", f"per {sweep.time} s; latencies in {sweep.time} ms"


def point_notes(sweep: SweepRecord) -> Iterator[str]:
    """The warnings of all points, each once: `sessions/s 1, 2, 8: ...`.

    Those that differ in their numbers alone are one, with the numbers of the highest load.
    """
    found: dict[str, dict[float, str]] = {}
    for point in sorted(sweep.points, key=lambda each: each.load):
        for warning in point.warnings:
            found.setdefault(_NUMBERS.sub("#", warning), {})[point.load] = warning
    for warnings in found.values():
        loads, last = ", ".join(map(number, warnings)), list(warnings.values())[-1]
        numbers = f" (at {number(max(warnings))})" if len(set(warnings.values())) > 1 else ""
        yield f"{LOAD_WORDS[sweep.axis]} {loads}: {last}{numbers}"


_VERDICTS: Final[Mapping[Verdict | None, Cell]] = {
    "kept": Cell(words="kept", tone="good"),
    "missed": Cell(words="missed", tone="bad"),
    "undecided": Cell(words="undecided", tone="dim"),
    None: Cell(words="-"),
}
_SATURATED: Final = {
    True: Cell(words="yes", tone="bad"),
    False: Cell(words="no"),
    None: Cell(words="?"),
}


def points_table(sweep: SweepRecord) -> Table:
    """A row for each point, by load."""
    with_slo = any(point.verdict for point in sweep.points)

    def load(point: SweepPoint) -> str:
        knee = sweep.knee is not None and sweep.knee.load == point.load
        return f"{number(point.load)} knee" if knee else number(point.load)

    columns: list[Column[SweepPoint]] = [
        Column(LOAD_WORDS[sweep.axis], load),
        _figure("requests/s", lambda each: each.requests_per_s),
        _figure("tokens/s", lambda each: each.output_tokens_per_s),
        _figure("TTFT p50", lambda each: each.ttft_p50_ms),
        _figure("TTFT p99", lambda each: each.ttft_p99_ms),
        _figure("TPOT p50", lambda each: each.tpot_p50_ms, rank=2),
        _figure("TPOT p99", lambda each: each.tpot_p99_ms, rank=2),
        _figure("E2E p50", lambda each: each.e2e_p50_ms, rank=4),
        _figure("E2E p99", lambda each: each.e2e_p99_ms, rank=4),
        _figure("tokens/s/user", lambda each: each.interactivity_p50, rank=5),
        _figure("tokens/s/MW", lambda each: each.tokens_per_s_per_mw, rank=1),
        _figure("tokens/s/chip", lambda each: each.tokens_per_s_per_chip, rank=3),
        Column("failed", _failed, rank=6),
        Column("saturated", lambda point: _SATURATED[point.saturation.over], align="left"),
        *([Column("SLO", _verdict, align="left")] if with_slo else []),
        Column("run", lambda point: point.results, align="left", rank=7, tone="dim"),
    ]
    title = f"points, by load; rates per {sweep.time} s, latencies in {sweep.time} ms"
    return table_of(columns, sorted(sweep.points, key=lambda each: each.load), title=title)


def _figure(
    label: str, value: Callable[[PointFigures], Estimate | float | None], *, rank: int = 0
) -> Column[SweepPoint]:
    return Column(label, lambda point: value(point.figures), value_of, rank=rank)


def _failed(point: SweepPoint) -> Cell:
    share = point.figures.failed_share
    return Cell(words=percent(share), tone="bad" if share else "plain")


def _verdict(point: SweepPoint) -> Cell:
    return _VERDICTS[point.verdict]


def bounds_table(sweep: SweepRecord) -> Table:
    """The shares behind the verdicts on the SLO."""
    rows = [
        (point.load, bound)
        for point in sorted(sweep.points, key=lambda each: each.load)
        for bound in point.bounds
    ]
    several = len({bound.traffic_class for _, bound in rows}) > 1
    columns: tuple[Column[tuple[float, BoundShare]], ...] = (
        Column(LOAD_WORDS[sweep.axis], lambda row: row[0]),
        Column(
            "bound",
            lambda row: f"{row[1].traffic_class}: {row[1].words}" if several else row[1].words,
            align="left",
        ),
        Column("needed", lambda row: row[1].needed, percent),
        Column("share", lambda row: row[1].share, percent),
        Column(
            "interval", lambda row: f"{percent(row[1].low)} .. {percent(row[1].high)}", tone="dim"
        ),
        Column("samples", lambda row: row[1].samples, rank=1),
        Column("worth", lambda row: row[1].effective, rank=2),
        Column("", lambda row: _VERDICTS[row[1].verdict], align="left"),
    )
    return table_of(
        columns,
        rows,
        title="SLO: the share of samples within each bound",
        foot="worth: so many independent samples tell as much, for neighbours in time are alike",
    )


def pareto_table(sweep: SweepRecord, title: str, places: tuple[int, ...], name: str) -> Table:
    """The undominated points at `places`; `name` is the figure beside interactivity."""
    columns: tuple[Column[SweepPoint], ...] = (
        _figure("tokens/s/user, p50", lambda each: each.interactivity_p50),
        Column(title, lambda point: getattr(point.figures, name), value_of),
        Column(LOAD_WORDS[sweep.axis], lambda point: point.load),
    )
    return table_of(
        columns,
        [sweep.points[place] for place in places],
        title=f"Pareto: {title} against interactivity, per {sweep.time} s",
    )

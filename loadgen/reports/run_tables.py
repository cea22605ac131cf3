"""The figures of a run as tables."""

from collections.abc import Iterator
from typing import Final

from loadgen.measures.definitions import DISTRIBUTIONS, ENERGY, RATES, Definition
from loadgen.measures.run_measures import (
    PERCENTILES,
    ClassMeasures,
    Distribution,
    RunMeasures,
    SloKept,
)
from loadgen.records.run_record import AskedArrivals, RunRecord
from loadgen.reports.document import NOTHING, UNKNOWN, Cell, Column, Facts, Grid
from loadgen.reports.figure_text import (
    interval,
    number,
    percent,
    percentile_name,
    share_interval,
    value_of,
)

INTERVAL: Final = "95 % interval"
_WITH_INTERVAL: Final = {50.0: 3, 90.0: 5, 99.0: 3}
"""The rank of each column of intervals, by its percentile."""
_SHARES: Final = ("failed_share", "attainment", "prefix_hit_share")
_BY_NAME: Final = {each.name: each for each in DISTRIBUTIONS}


def shown_classes(measures: RunMeasures) -> tuple[ClassMeasures, ...]:
    """All together; where there are several classes, each of them first."""
    if len(measures.classes) > 1:
        return (*measures.classes.values(), measures.total)
    return (measures.total,)


def arrivals_grid(record: RunRecord, measures: RunMeasures) -> Grid:
    """What was asked of arrivals, the schedule that was drawn for it, and what was kept."""
    times = sorted({header.arrivals.time for header in record.header.classes})
    several = len(record.header.classes) > 1
    rows = [
        ((header.name if place == 0 else ""), *row) if several else row
        for header in record.header.classes
        for place, row in enumerate(_arrivals(header.arrivals, measures.classes.get(header.name)))
    ]
    return Grid(
        title=f"arrivals: sessions per {' or '.join(times)} s, and how unevenly they come",
        columns=(
            *([Column(title="class", words=True)] if several else []),
            Column(title="", words=True),
            Column(title="asked"),
            Column(title="drawn"),
            Column(title="kept"),
        ),
        rows=tuple(rows),
        foot="drawn: by the schedule, from the seed. gap CV: deviation / mean of the gaps, 1 for "
        "Poisson; dispersion: variance / mean of counts, 1 for Poisson",
    )


def _arrivals(asked: AskedArrivals, found: ClassMeasures | None) -> Iterator[tuple[str, ...]]:
    kept = None if found is None else found.arrivals
    if asked.concurrency is not None:
        yield "sessions at once, at most", f"{asked.concurrency:,}", NOTHING, NOTHING
    yield (
        "rate, 1/s",
        number(asked.asked_rate_per_s),
        number(asked.rate_per_s),
        number(kept.rate_per_s if kept else None),
    )
    yield (
        "gap CV",
        number(asked.asked_gap_cv),
        number(asked.gap_cv),
        number(kept.gap_cv if kept else None),
    )
    yield (
        "dispersion",
        NOTHING,
        number(asked.dispersion),
        number(kept.dispersion if kept else None),
    )


def latency_grids(measures: RunMeasures) -> Iterator[Grid]:
    """A table of latencies for each class, and for all; the first says from when they count."""
    several = len(measures.classes) > 1
    foot = "TTFT, E2E and NTPOT count from when a request was due, whenever it was sent"
    said = False
    for each in shown_classes(measures):
        whose = f" of {each.name}" if several else ""
        rows = [
            _latency(definition, each.distributions[definition.name])
            for definition in DISTRIBUTIONS
            if definition.unit == "ms" and definition.name in each.distributions
        ]
        if rows:
            yield Grid(
                title=f"latency{whose}, {measures.time} ms",
                columns=_latency_columns(),
                rows=tuple(rows),
                foot="" if said else foot,
            )
            said = True


def _latency_columns() -> tuple[Column, ...]:
    ranks = {95.0: 4, 99.9: 2}
    columns = [Column(title="", words=True), Column(title="mean", rank=1)]
    for percentile in PERCENTILES:
        columns.append(
            Column(title=percentile_name(percentile), rank=ranks.get(percentile, 0)),
        )
        if percentile in _WITH_INTERVAL:
            columns.append(Column(title=INTERVAL, rank=_WITH_INTERVAL[percentile]))
    return (*columns, Column(title="max", rank=1), Column(title="samples", rank=6))


def _latency(definition: Definition, found: Distribution) -> tuple[str | Cell, ...]:
    cells: list[str | Cell] = [definition.label, value_of(found.mean)]
    for percentile in PERCENTILES:
        estimate = found.percentiles.get(percentile)
        cells.append(value_of(estimate))
        if percentile in _WITH_INTERVAL:
            cells.append(Cell(words=interval(estimate), tone="dim"))
    return (*cells, number(found.most), Cell(words=f"{found.samples:,}", tone="dim"))


def user_grid(measures: RunMeasures) -> Grid:
    """What a user sees of speed: more is better, so that the least is the tail."""
    several = len(measures.classes) > 1
    rows = []
    for each in shown_classes(measures):
        whose = f", {each.name}" if several else ""
        for name, found in each.distributions.items():
            definition = _BY_NAME.get(name)
            if definition is not None and definition.better == "higher":
                middle = found.percentiles.get(50.0)
                rows.append(
                    (
                        f"{definition.label}{whose}",
                        number(found.least),
                        value_of(middle),
                        Cell(words=interval(middle), tone="dim"),
                        value_of(found.mean),
                        number(found.most),
                    )
                )
    return Grid(
        title=f"interactivity, tokens per {measures.time} s and user",
        columns=(
            Column(title="", words=True),
            Column(title="least"),
            Column(title="p50"),
            Column(title=INTERVAL, rank=2),
            Column(title="mean", rank=1),
            Column(title="max", rank=1),
        ),
        rows=tuple(rows),
    )


def throughput_grid(measures: RunMeasures) -> Grid:
    """Figures with one value per run."""
    classes = shown_classes(measures)
    columns = [Column(title="", words=True), Column(title="unit", words=True, rank=1)]
    for place, each in enumerate(classes):
        last = place == len(classes) - 1
        columns.append(Column(title=each.name if len(classes) > 1 else "value"))
        columns.append(Column(title=INTERVAL, rank=2 if last else 3))
    rows = []
    for definition in RATES:
        found = [each.rates.get(definition.name) for each in classes]
        if not any(found):
            continue
        row: list[str | Cell] = [definition.label, definition.unit]
        for estimate in found:
            share = definition.name in _SHARES
            value = percent(estimate.value) if share and estimate else value_of(estimate)
            between = share_interval(estimate) if share else interval(estimate)
            row.extend((value, Cell(words=between, tone="dim")))
        rows.append(tuple(row))
    return Grid(
        title=f"throughput over the window, in {measures.time} s",
        columns=tuple(columns),
        rows=tuple(rows),
    )


def slo_grids(measures: RunMeasures) -> Iterator[Grid]:
    """How each class with an SLO did."""
    for each in measures.classes.values():
        if each.slo is not None:
            whose = f" of {each.name}" if len(measures.classes) > 1 else ""
            yield Grid(
                title=f"SLO{whose}: {each.slo.words}",
                columns=(
                    Column(title="bound", words=True),
                    Column(title="limit"),
                    Column(title="measured"),
                    Column(title="", words=True),
                ),
                rows=tuple(_bounds(each.slo)),
                foot=_attained(each.slo, measures.time),
            )


def _bounds(slo: SloKept) -> Iterator[tuple[str | Cell, ...]]:
    for bound in slo.bounds:
        definition = _BY_NAME.get(bound.measure)
        label, unit = (definition.label, definition.unit) if definition else (bound.measure, "")
        yield (
            f"{label} {percentile_name(bound.percentile)}",
            f"{number(bound.limit)} {unit}".strip(),
            "infinite" if bound.value is None else f"{number(bound.value)} {unit}".strip(),
            Cell(words="kept", tone="good") if bound.kept else Cell(words="missed", tone="bad"),
        )


def _attained(slo: SloKept, time: str) -> str:
    parts = []
    if slo.attainment is not None:
        sure = share_interval(slo.attainment)
        parts.append(f"{percent(slo.attainment.value)} ({sure}) of requests kept all of it")
    if slo.goodput_per_s is not None:
        parts.append(f"goodput {number(slo.goodput_per_s)} requests/{time} s")
    if slo.goodput_tokens_per_s is not None:
        parts.append(f"{number(slo.goodput_tokens_per_s)} output tokens/{time} s")
    return "; ".join(parts)


def energy_section(measures: RunMeasures) -> Facts:
    """Figures from the server's own meters."""
    found = {each: getattr(measures.energy, each.name) for each in ENERGY}
    title = "from the server's meters"
    if all(value is None for value in found.values()):
        words = f"power, energy and tokens/s per MW and per chip are {UNKNOWN}"
        return Facts(title=title, rows=(("energy", words),))
    rows = tuple(
        (definition.label, _metered(definition, found[definition])) for definition in found
    )
    if measures.energy.metered_s is not None:
        rows += (("metered", f"{measures.energy.metered_s:,.3f} {measures.time} s"),)
    return Facts(title=title, rows=rows)


def _metered(definition: Definition, value: float | None) -> str:
    if value is None:
        return UNKNOWN
    if definition.name in _SHARES:
        return percent(value)
    return f"{number(value)} {definition.unit}".strip()

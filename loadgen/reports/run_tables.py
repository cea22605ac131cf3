"""A run's figures as tables."""

from collections.abc import Iterator
from operator import itemgetter
from typing import Final

from loadgen.measures.definitions import DISTRIBUTIONS, ENERGY, RATES, Definition
from loadgen.measures.run_measures import (
    PERCENTILES,
    BoundKept,
    ClassMeasures,
    Distribution,
    RunMeasures,
    SloKept,
)
from loadgen.records.run_record import ClassHeader, RunRecord
from reporting.document import UNKNOWN, Cell, Column, Facts, Table, table_of
from reporting.numbers import interval, number, percent, percentile_name, share_interval, value_of

INTERVAL: Final = "95 % interval"
_RANKS: Final = {95.0: 4, 99.9: 2}
"""Rank of a percentile's column; 0 for others."""
_INTERVAL_RANKS: Final = {50.0: 3, 90.0: 5, 99.0: 3}
"""Rank of each interval's column, by its percentile."""
_SHARES: Final = ("failed_share", "attainment", "prefix_hit_share")
_BY_NAME: Final = {each.name: each for each in DISTRIBUTIONS}


def shown_classes(measures: RunMeasures) -> tuple[ClassMeasures, ...]:
    """All together, after each class where there are several."""
    if len(measures.classes) > 1:
        return (*measures.classes.values(), measures.total)
    return (measures.total,)


def arrivals_table(record: RunRecord, measures: RunMeasures) -> Table:
    """Arrivals as asked, drawn, and kept."""
    headers = record.header.classes
    several = len(headers) > 1
    rows = [
        (header.name if place == 0 else "", *row)
        for header in headers
        for place, row in enumerate(_arrivals(header, measures.classes.get(header.name)))
    ]
    times = sorted({header.arrivals.time for header in headers})
    columns: list[Column[tuple[object, ...]]] = [
        Column("class", itemgetter(0), align="left"),
        Column("", itemgetter(1), align="left"),
        Column("asked", itemgetter(2)),
        Column("drawn", itemgetter(3)),
        Column("kept", itemgetter(4)),
    ]
    return table_of(
        columns if several else columns[1:],
        rows,
        title=f"arrivals: sessions per {' or '.join(times)} s, and how unevenly they come",
        foot="drawn: by the schedule, from the seed. gap CV: deviation / mean of the gaps, 1 for "
        "Poisson; dispersion: variance / mean of counts, 1 for Poisson",
    )


def _arrivals(header: ClassHeader, found: ClassMeasures | None) -> Iterator[tuple[object, ...]]:
    asked, kept = header.arrivals, None if found is None else found.arrivals
    if asked.concurrency is not None:
        yield "sessions at once, at most", asked.concurrency, None, None
    yield "rate, 1/s", asked.asked_rate_per_s, asked.rate_per_s, kept and kept.rate_per_s
    yield "gap CV", asked.asked_gap_cv, asked.gap_cv, kept and kept.gap_cv
    yield "dispersion", None, asked.dispersion, kept and kept.dispersion


def latency_tables(measures: RunMeasures) -> Iterator[Table]:
    """Latencies of each class, and of all; the first has a foot on their origin."""
    foot = "TTFT, E2E and NTPOT count from when a request was due, whenever it was sent"
    for each in shown_classes(measures):
        rows = [
            (definition, each.distributions[definition.name])
            for definition in DISTRIBUTIONS
            if definition.unit == "ms" and definition.name in each.distributions
        ]
        if rows:
            title = f"latency{_whose(measures, each.name)}, {measures.time} ms"
            yield table_of(_latency_columns(), rows, title=title, foot=foot)
            foot = ""


def _whose(measures: RunMeasures, name: str) -> str:
    return f" of {name}" if len(measures.classes) > 1 else ""


def _latency_columns() -> Iterator[Column[tuple[Definition, Distribution]]]:
    yield Column("", lambda row: row[0].label, align="left")
    yield Column("mean", lambda row: row[1].mean, value_of, rank=1)
    for at in PERCENTILES:

        def estimate(row: tuple[Definition, Distribution], at: float = at) -> object:
            return row[1].percentiles.get(at)

        yield Column(percentile_name(at), estimate, value_of, rank=_RANKS.get(at, 0))
        if at in _INTERVAL_RANKS:
            rank = _INTERVAL_RANKS[at]
            yield Column(INTERVAL, estimate, interval, rank=rank, tone="dim")
    yield Column("max", lambda row: row[1].most, rank=1)
    yield Column("samples", lambda row: row[1].samples, rank=6, tone="dim")


def user_table(measures: RunMeasures) -> Table:
    """The speed that a user sees: more is better, so the least is the tail."""
    several = len(measures.classes) > 1
    rows = [
        (f"{_BY_NAME[name].label}{f', {each.name}' if several else ''}", found)
        for each in shown_classes(measures)
        for name, found in each.distributions.items()
        if name in _BY_NAME and _BY_NAME[name].better == "higher"
    ]
    columns: tuple[Column[tuple[str, Distribution]], ...] = (
        Column("", lambda row: row[0], align="left"),
        Column("least", lambda row: row[1].least),
        Column("p50", lambda row: row[1].percentiles.get(50.0), value_of),
        Column(INTERVAL, lambda row: row[1].percentiles.get(50.0), interval, rank=2, tone="dim"),
        Column("mean", lambda row: row[1].mean, value_of, rank=1),
        Column("max", lambda row: row[1].most, rank=1),
    )
    return table_of(columns, rows, title=f"interactivity, tokens per {measures.time} s and user")


def throughput_table(measures: RunMeasures) -> Table:
    """Figures with one value per run."""
    classes = shown_classes(measures)
    columns: list[Column[Definition]] = [
        Column("", lambda row: row.label, align="left"),
        Column("unit", lambda row: row.unit, align="left", rank=1),
    ]
    for each in classes:
        name = each.name if len(classes) > 1 else "value"
        rank = 2 if each is classes[-1] else 3

        def value(row: Definition, each: ClassMeasures = each) -> object:
            found = each.rates.get(row.name)
            return found and (percent if row.name in _SHARES else number)(found.value)

        def between(row: Definition, each: ClassMeasures = each) -> object:
            form = share_interval if row.name in _SHARES else interval
            return form(each.rates.get(row.name))

        columns += [Column(name, value), Column(INTERVAL, between, rank=rank, tone="dim")]
    return table_of(
        columns,
        [row for row in RATES if any(each.rates.get(row.name) for each in classes)],
        title=f"throughput over the window, in {measures.time} s",
    )


def slo_tables(measures: RunMeasures) -> Iterator[Table]:
    """The bounds of each class with an SLO, kept or missed."""
    for each in measures.classes.values():
        if each.slo is not None:
            yield table_of(
                _BOUND_COLUMNS,
                each.slo.bounds,
                title=f"SLO{_whose(measures, each.name)}: {each.slo.words}",
                foot=_attained(each.slo, measures.time),
            )


def _bound_label(bound: BoundKept) -> str:
    definition = _BY_NAME.get(bound.measure)
    label = definition.label if definition else bound.measure
    return f"{label} {percentile_name(bound.percentile)}"


def _of_bound(bound: BoundKept, value: float | None) -> str:
    definition = _BY_NAME.get(bound.measure)
    unit = definition.unit if definition else ""
    return "infinite" if value is None else f"{number(value)} {unit}".strip()


_BOUND_COLUMNS: Final[tuple[Column[BoundKept], ...]] = (
    Column("bound", _bound_label, align="left"),
    Column("limit", lambda bound: _of_bound(bound, bound.limit)),
    Column("measured", lambda bound: _of_bound(bound, bound.value)),
    Column(
        "",
        lambda bound: (
            Cell(words="kept", tone="good") if bound.kept else Cell(words="missed", tone="bad")
        ),
        align="left",
    ),
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


def energy_section(record: RunRecord, measures: RunMeasures) -> Facts:
    """Figures from the server's meters, or a simulation's model."""
    found = {each: getattr(measures.energy, each.name) for each in ENERGY}
    title = "from the server's meters"
    if record.header.simulated:
        title = "from the cost model"
        found = {each: value for each, value in found.items() if value is not None}
    elif all(value is None for value in found.values()):
        words = f"power, energy and tokens/s per MW and per chip are {UNKNOWN}"
        return Facts(title=title, rows=(("energy", words),))
    rows = tuple((each.label, _metered(each, value)) for each, value in found.items())
    if measures.energy.metered_s is not None:
        rows += (("metered", f"{measures.energy.metered_s:,.3f} {measures.time} s"),)
    return Facts(title=title, rows=rows)


def _metered(definition: Definition, value: float | None) -> str:
    if value is None:
        return UNKNOWN
    if definition.name in _SHARES:
        return percent(value)
    return f"{number(value)} {definition.unit}".strip()

"""The figures of a run in rows: one for each statistic of each figure of each class."""

from collections.abc import Iterator
from dataclasses import replace

from loadgen.measures.definitions import DISTRIBUTIONS, ENERGY, RATES
from loadgen.measures.run_measures import ClassMeasures, RunMeasures
from loadgen.records.estimate import Estimate
from loadgen.records.run_record import RunRecord
from loadgen.reports.document import FigureRow
from loadgen.reports.figure_text import percentile_name
from loadgen.reports.run_tables import shown_classes


def run_figures(record: RunRecord, measures: RunMeasures) -> tuple[FigureRow, ...]:
    """All figures; those of the server's meters belong to the class `all`."""
    extra = {"time": measures.time}
    if record.header.label:
        extra["label"] = record.header.label
    rows = [row for each in shown_classes(measures) for row in _class_rows(each)]
    whole = measures.total.name
    rows.extend(
        FigureRow(
            traffic_class=whole,
            figure=each.name,
            statistic="",
            unit=each.unit,
            value=getattr(measures.energy, each.name),
        )
        for each in ENERGY
    )
    return tuple(replace(row, extra=extra) for row in rows)


def _class_rows(measures: ClassMeasures) -> Iterator[FigureRow]:
    name = measures.name
    for figure in ("requests", "completed", "failed", "aborted", "input_tokens", "output_tokens"):
        yield FigureRow(
            traffic_class=name,
            figure=figure,
            statistic="count",
            unit="",
            value=float(getattr(measures, figure)),
        )
    for definition in RATES:
        estimate = measures.rates.get(definition.name)
        if estimate is not None:
            yield _row(name, definition.name, "", definition.unit, estimate)
    for definition in DISTRIBUTIONS:
        found = measures.distributions.get(definition.name)
        if found is None:
            continue
        statistics = {
            "mean": found.mean,
            "min": Estimate(value=found.least),
            **{percentile_name(each): found.percentiles[each] for each in found.percentiles},
            "max": Estimate(value=found.most),
        }
        for statistic, estimate in statistics.items():
            yield _row(name, definition.name, statistic, definition.unit, estimate, found.samples)


def _row(
    traffic_class: str,
    figure: str,
    statistic: str,
    unit: str,
    estimate: Estimate,
    samples: int | None = None,
) -> FigureRow:
    return FigureRow(
        traffic_class=traffic_class,
        figure=figure,
        statistic=statistic,
        unit=unit,
        value=estimate.value,
        low=estimate.low,
        high=estimate.high,
        samples=samples,
    )

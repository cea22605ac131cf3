"""A run's figures for programs: JSON values, and rows of CSV.

Names are those of `loadgen.measures.definitions`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict

from loadgen.measures.definitions import DISTRIBUTIONS, ENERGY, RATES
from loadgen.measures.run_measures import PERCENTILES, ClassMeasures, Distribution, RunMeasures
from loadgen.records.estimate import Estimate
from loadgen.records.run_record import ClassHeader, RunHeader, RunRecord
from loadgen.reports.run_facts import SERVER_LABELS
from loadgen.reports.run_tables import shown_classes
from reporting.document import FigureRow
from reporting.numbers import percentile_name


def run_fields(record: RunRecord, measures: RunMeasures) -> Mapping[str, object]:
    """All figures of a run; unknown ones are None, none is NaN.

    Those at the top are of all classes together.
    """
    header, end, energy = record.header, record.end, measures.energy
    return {
        **_class_fields(measures.total),
        "tokens_per_s_per_chip": energy.tokens_per_s_per_chip,
        **{
            each.name: getattr(energy, each.name)
            for each in ENERGY
            if not each.name.startswith(("output_tokens_per_s_per", "tokens_per_s_per_chip"))
        },
        "output_tokens_per_s_per_mw": {
            "facility": energy.output_tokens_per_s_per_mw,
            "provisioned": energy.output_tokens_per_s_per_provisioned_mw,
        },
        "time": measures.time,
        "dilation": measures.dilation,
        "clock_epochs": [
            {"epoch": each.epoch, "from_wall_s": each.from_wall_ns / 1e9, "dilation": each.dilation}
            for each in record.epochs
        ],
        "window_s": measures.window_s,
        "wall_s": measures.wall_s,
        "emulated_s": measures.window_s if measures.time == "emulated" else None,
        "skipped_s": header.skip_s,
        "metered_s": energy.metered_s,
        "lag_s": measures.lag_s,
        "chips": header.start.chips,
        **{label: header.start.info.get(label) for label in (*SERVER_LABELS, "clock")},
        "classes": {
            each.name: {
                **_asked(each),
                **(
                    _class_fields(measures.classes[each.name])
                    if each.name in measures.classes
                    else {}
                ),
            }
            for each in header.classes
        },
        "simulated": header.simulated,
        "client": None if header.simulated else _client_fields(header, measures),
        "recount": None if end is None else end.recount,
        "interrupted": None if end is None else end.interrupted,
        "url": header.url or None,
        "model": header.model,
        "seed": header.seed,
        "label": header.label,
        "started_at": header.started_at,
        "notes": list(measures.warnings),
        "command": header.command,
    }


def _client_fields(header: RunHeader, measures: RunMeasures) -> dict[str, object]:
    return {
        "workers": header.workers,
        "loop_lag_p99_wall_ms": measures.loop_lag_p99_ms,
        "cpu_share": measures.cpu_share,
        "saturated": measures.saturated,
        "busy": measures.busy,
        "late": measures.late,
    }


def _asked(header: ClassHeader) -> dict[str, object]:
    return {
        "api": header.api,
        "workload": header.workload,
        "prompts": header.prompts,
        "sessions": header.sessions,
        "asked_requests": header.requests,
        "asked_arrivals": header.arrivals,
    }


def _class_fields(measures: ClassMeasures) -> dict[str, object]:
    rates = {each.name: measures.rates.get(each.name) for each in RATES}
    return {
        "requests": measures.requests,
        "completed_requests": measures.completed,
        "failed_requests": measures.failed,
        "aborted_requests": measures.aborted,
        "errors": dict(measures.errors),
        "input_tokens": measures.input_tokens,
        "cached_tokens": measures.cached_tokens,
        "output_tokens": measures.output_tokens,
        **{name: None if each is None else each.value for name, each in rates.items()},
        "intervals": {name: _interval(each) for name, each in rates.items() if each is not None},
        **{
            each.name: _distribution(measures.distributions.get(each.name))
            for each in DISTRIBUTIONS
        },
        "arrivals": measures.arrivals,
        "slo": measures.slo and {**asdict(measures.slo), "kept": measures.slo.kept},
    }


def _distribution(found: Distribution | None) -> dict[str, object]:
    names = [percentile_name(each) for each in PERCENTILES]
    if found is None:
        return {"samples": 0, "mean": None, **dict.fromkeys(names)}
    percentiles = {percentile_name(at): found.percentiles[at] for at in found.percentiles}
    return {
        "samples": found.samples,
        "mean": found.mean.value,
        "deviation": found.deviation,
        "min": found.least,
        **{name: percentiles[name].value for name in percentiles},
        "max": found.most,
        "intervals": {
            "mean": _interval(found.mean),
            **{name: _interval(percentiles[name]) for name in percentiles},
        },
    }


def _interval(estimate: Estimate) -> list[float | None] | None:
    """The 95 % interval; None for a bound without enough samples, or without both."""
    if estimate.low is None and estimate.high is None:
        return None
    return [estimate.low, estimate.high]


def run_figures(record: RunRecord, measures: RunMeasures) -> tuple[FigureRow, ...]:
    """All figures; the server's meters belong to the class `all`."""
    extra = {"time": measures.time}
    if record.header.label:
        extra["label"] = record.header.label
    return (
        *(row for each in shown_classes(measures) for row in _class_rows(each, extra)),
        *(
            FigureRow(
                traffic_class=measures.total.name,
                figure=each.name,
                unit=each.unit,
                value=getattr(measures.energy, each.name),
                extra=extra,
            )
            for each in ENERGY
        ),
    )


def _class_rows(measures: ClassMeasures, extra: Mapping[str, str]) -> Iterator[FigureRow]:
    def row(
        figure: str, statistic: str, unit: str, found: Estimate, samples: int | None = None
    ) -> FigureRow:
        return FigureRow(
            traffic_class=measures.name,
            figure=figure,
            statistic=statistic,
            unit=unit,
            value=found.value,
            low=found.low,
            high=found.high,
            samples=samples,
            extra=extra,
        )

    for figure in ("requests", "completed", "failed", "aborted", "input_tokens", "output_tokens"):
        yield row(figure, "count", "", Estimate(value=float(getattr(measures, figure))))
    for each in RATES:
        estimate = measures.rates.get(each.name)
        if estimate is not None:
            yield row(each.name, "", each.unit, estimate)
    for each in DISTRIBUTIONS:
        found = measures.distributions.get(each.name)
        if found is None:
            continue
        statistics = {
            "mean": found.mean,
            "min": Estimate(value=found.least),
            **{percentile_name(at): found.percentiles[at] for at in found.percentiles},
            "max": Estimate(value=found.most),
        }
        for statistic, estimate in statistics.items():
            yield row(each.name, statistic, each.unit, estimate, found.samples)

"""The report of a validation: every row's signed error, then scores of the errors."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

from emulator.specs.figure import Figure
from emulator.specs.shipped_fits import PredictionInterval
from reporting.document import Column, Table, table_of
from reporting.plain_text import table_lines
from serving.analysis.validate import law_readings
from serving.analysis.validate.measured_row import MAIN_METRICS, METRICS, ExcludedRow
from serving.analysis.validate.prediction_errors import ERROR_COLUMNS
from serving.analysis.validate.row_outliers import Outlier, outliers
from serving.analysis.validate.usable_rows import UsableRow
from serving.analysis.validate.validation import Validation, scores
from serving.analysis.validate.validation_aim import aim_lines, missed
from serving.analysis.validate.validation_assumptions import assumptions_of

_SCALES: Final = {"tpot": 1e3, "ttft": 1.0, "mean_ttft": 1.0, "tokens_per_s": 1.0}
_HEADINGS: Final = {
    "tpot": "TPOT ms",
    "ttft": "median TTFT s",
    "mean_ttft": "mean TTFT s",
    "tokens_per_s": "tok/s/chip",
}
_NAMES: Final = {
    "tpot": "TPOT",
    "ttft": "median TTFT",
    "mean_ttft": "mean TTFT",
    "tokens_per_s": "tokens/s per chip",
    "median_tpot": "median TPOT",
    "p99_tpot": "p99 TPOT",
    "p99_ttft": "p99 TTFT",
}


def report_lines(
    validation: Validation,
    references: list[dict[str, Any]],
    excluded_points: Sequence[ExcludedRow] = (),
) -> Iterator[str]:
    """Rows, excluded rows, scores, outliers, aims, references, laws' readings of a Trainium,
    factors, assumptions.

    `excluded_points`: published points that no prediction is for.
    """
    yield from table_lines(row_table(validation))
    yield ""
    yield f"{len(validation.rows)} rows predicted, {len(validation.excluded)} excluded"
    if validation.excluded:
        yield from table_lines(table_of(_EXCLUDED, validation.excluded))
    yield ""
    yield from table_lines(score_table(validation))
    yield ""
    yield from _outlier_lines(validation)
    yield from aim_lines(scores(validation))
    yield ""
    if references:
        yield from table_lines(table_of(_REFERENCES, references))
        yield ""
    yield from law_readings.reading_lines()
    yield ""
    if excluded_points:
        yield f"{len(excluded_points)} published points excluded"
        yield from table_lines(table_of(_EXCLUDED, excluded_points))
        yield ""
    yield from table_lines(table_of(_FACTORS, validation.fits.everything.figures()))
    yield ""
    yield from (f"- {each}" for each in assumptions_of(validation))


def _outlier_lines(validation: Validation) -> Iterator[str]:
    found = outliers(validation)
    if not found:
        return
    lines = len({(each.file, each.line) for each in found})
    yield f"{lines} lines that no steady state of their columns gives, all counted above"
    yield from table_lines(table_of(_OUTLIERS, found))
    yield ""


def row_table(validation: Validation) -> Table:
    """By the fit on everything; `blind`: the error by the fit without the row's machine."""
    columns = [*_CONFIGURATION]
    for metric in MAIN_METRICS:
        columns += _metric_columns(validation, metric)
    return table_of(columns, enumerate(validation.rows))


def _metric_columns(validation: Validation, metric: str) -> Iterator[Column[tuple[int, UsableRow]]]:

    def measured(row: tuple[int, UsableRow]) -> float | None:
        return row[1].measured.results.of(metric)

    def predicted(row: tuple[int, UsableRow]) -> float:
        return float(validation.everything.of(metric)[row[0]])

    def error(row: tuple[int, UsableRow]) -> float | None:
        found = measured(row)
        return None if found is None else predicted(row) / found - 1

    def blind(row: tuple[int, UsableRow]) -> float | None:
        found, predicted = measured(row), validation.blind(row[0], metric)
        return None if found is None or predicted is None else predicted / found - 1

    yield Column(_HEADINGS[metric], measured, _short, scale=1 / _SCALES[metric])
    yield Column("predicted", predicted, _short, scale=1 / _SCALES[metric])
    yield Column("error", error, "+.1%")
    yield Column("blind", blind, "+.1%")


def _rounded(value: float) -> str:
    return f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}"


def _short(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def score_table(validation: Validation) -> Table:
    """Absolute errors by metric, by fitted or left-out rows, and by machine."""
    found = scores(validation)
    rows = [
        row
        for metric in METRICS
        for words, over in (
            ("were fitted", found[metric]["fitted"]),
            ("no fit had seen", found[metric]),
        )
        for row in _score_rows(metric, words, over)
    ]
    return table_of(_SCORES, rows)


def _score_rows(metric: str, words: str, found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    def row(hardware: str, of: dict[str, Any]) -> dict[str, Any]:
        return {"metric": _NAMES[metric], "words": words, "hardware": hardware, **of}

    yield row("all", found)
    if metric not in MAIN_METRICS:
        return
    for machine, own in found["by_hardware"].items():
        yield row(machine, own)
        if own["mtp"]["rows"] and own["plain"]["rows"]:
            yield row(f"{machine} plain", own["plain"])
            yield row(f"{machine} mtp", own["mtp"])


_CONFIGURATION: Final[tuple[Column[tuple[int, UsableRow]], ...]] = (
    Column("file", lambda row: row[1].measured.file, align="left"),
    Column("line", lambda row: row[1].measured.line, "d"),
    Column("hardware", lambda row: row[1].measured.configuration.hardware, align="left"),
    Column("framework", lambda row: row[1].measured.configuration.framework, align="left"),
    Column("fmt", lambda row: row[1].measured.configuration.precision, align="left"),
    Column(
        "spec",
        lambda row: "mtp" if row[1].measured.configuration.speculative else None,
        align="left",
    ),
    Column("isl/osl", lambda row: row[1].measured.configuration.workload, align="left"),
    Column("workers", lambda row: row[1].measured.configuration.layout, align="left"),
    Column("users", lambda row: row[1].measured.users, "d"),
)
_EXCLUDED: Final[tuple[Column[ExcludedRow], ...]] = (
    Column("file", lambda each: each.file, align="left"),
    Column("line", lambda each: each.line, "d"),
    Column("hardware", lambda each: each.hardware, align="left"),
    Column("excluded because", lambda each: each.reason, align="left"),
)
_OUTLIERS: Final[tuple[Column[Outlier], ...]] = (
    Column("file", lambda each: each.file, align="left"),
    Column("line", lambda each: each.line, "d"),
    Column("hardware", lambda each: each.hardware, align="left"),
    Column("what no steady state gives", lambda each: each.words, align="left"),
)
_SCORES: Final[tuple[Column[dict[str, Any]], ...]] = (
    Column("metric", lambda row: row["metric"], align="left"),
    Column("rows that", lambda row: row["words"], align="left"),
    Column("hardware", lambda row: row["hardware"], align="left"),
    *ERROR_COLUMNS,
)
_REFERENCES: Final[tuple[Column[dict[str, Any]], ...]] = (
    Column("published", lambda each: each["name"], align="left"),
    Column("unit", lambda each: each["unit"], align="left"),
    Column("measured", lambda each: each["measured"], _rounded),
    Column("predicted", lambda each: each["predicted"], _rounded),
    Column("error", lambda each: each["error"], "+.1%"),
    Column("conditions", lambda each: each["conditions"], align="left"),
)
_FACTORS: Final[tuple[Column[tuple[str, Figure]], ...]] = (
    Column("factor", lambda row: row[0], align="left"),
    Column("value", lambda row: row[1].value, ".4g"),
    Column("unit", lambda row: row[1].unit, align="left"),
)


def as_data(
    validation: Validation,
    references: list[dict[str, Any]],
    excluded_points: Sequence[ExcludedRow] = (),
) -> dict[str, Any]:
    """The JSON document."""
    found = scores(validation)
    return {
        "data": validation.names,
        "fit": dict(validation.fits.data),
        "rows": [_row_data(validation, place) for place in range(len(validation.rows))],
        "excluded": [asdict(each) for each in validation.excluded],
        "outliers": [asdict(each) for each in outliers(validation)],
        **found,
        "missed": missed(found),
        "intervals": {metric: asdict(each) for metric, each in validation.fits.intervals.items()},
        "calibration": [
            {"name": name, "value": figure.value, "unit": figure.unit, "source": figure.source}
            for name, figure in validation.fits.everything.figures()
        ],
        "assumptions": list(assumptions_of(validation)),
        "references": references,
        "excluded_references": [asdict(each) for each in excluded_points],
        "trainium": law_readings.as_data(),
    }


def _row_data(validation: Validation, place: int) -> dict[str, Any]:
    row = validation.rows[place]
    configuration = row.measured.configuration
    measured = {metric: row.measured.results.of(metric) for metric in METRICS}
    blind = {metric: validation.blind(place, metric) for metric in METRICS}
    predicted = {metric: float(validation.everything.of(metric)[place]) for metric in METRICS}
    return {
        "file": row.measured.file,
        "line": row.measured.line,
        "hardware": configuration.hardware,
        "framework": configuration.framework,
        "precision": configuration.precision,
        "spec_method": "mtp" if configuration.speculative else "none",
        "disagg": configuration.disaggregated,
        "layout": configuration.layout,
        "isl": configuration.prompt_tokens,
        "osl": configuration.output_tokens,
        "conc": row.measured.users,
        "date": configuration.day and str(configuration.day),
        "chips": row.load.deployment.chips,
        "fingerprint": configuration.fingerprint,
        "in_fit": validation.in_fit(row),
        "measured": measured,
        "predicted": predicted,
        "error": {
            metric: None if value is None else predicted[metric] / value - 1
            for metric, value in measured.items()
        },
        "blind": {
            metric: _blind(found, validation.interval(row, metric))
            for metric, found in blind.items()
            if found is not None
        },
    }


def _blind(predicted: float, interval: PredictionInterval | None) -> dict[str, float]:
    """By the fit without the row's machine, with its 80 % interval."""
    if interval is None:
        return {"predicted": predicted}
    return {
        "predicted": predicted,
        "least": predicted * interval.least,
        "most": predicted * interval.most,
    }

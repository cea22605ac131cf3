"""The report of a validation: every row's signed error, then scores of the errors."""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, Final

from emulator.specs.figure import Figure
from reporting.document import Column, Table, table_of
from reporting.plain_text import table_lines
from serving.analysis.validate.measured_row import METRICS, ExcludedRow
from serving.analysis.validate.prediction_errors import RowError
from serving.analysis.validate.usable_rows import UsableRow
from serving.analysis.validate.validation import Validation, scores
from serving.analysis.validate.validation_aim import AIM, LEAST_ROWS, aim_lines, misses
from serving.analysis.validate.validation_assumptions import assumptions_of

_SCALES: Final = {"tpot": 1e3, "ttft": 1.0, "tokens_per_s": 1.0}
_HEADINGS: Final = {"tpot": "TPOT ms", "ttft": "TTFT s", "tokens_per_s": "tok/s/chip"}
_NAMES: Final = {"tpot": "TPOT", "ttft": "TTFT", "tokens_per_s": "tokens/s per chip"}


def report_lines(validation: Validation, references: list[dict[str, Any]]) -> Iterator[str]:
    """Rows, excluded rows, scores, seeds, references, factors, assumptions."""
    yield from table_lines(row_table(validation))
    yield ""
    yield f"{len(validation.rows)} rows predicted, {len(validation.excluded)} excluded"
    if validation.excluded:
        yield from table_lines(table_of(_EXCLUDED, validation.excluded))
    yield ""
    yield from table_lines(score_table(validation))
    yield ""
    yield from table_lines(seed_table(validation))
    yield from aim_lines(scores(validation)["tpot"], validation.fits.fresh)
    yield ""
    if references:
        yield from table_lines(table_of(_REFERENCES, references))
        yield ""
    yield from table_lines(table_of(_FACTORS, validation.fits.everything.figures()))
    yield ""
    yield from (f"- {each}" for each in assumptions_of(validation))


def row_table(validation: Validation) -> Table:
    """By the fit on everything; `blind` is the mean error of TPOT by the fits without the row."""
    columns = [*_CONFIGURATION]
    for metric in METRICS:
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
        signed = [each.signed for each in validation.of_row(row[0])[metric].values()]
        return sum(signed) / len(signed) if signed else None

    yield Column(_HEADINGS[metric], measured, _short, scale=1 / _SCALES[metric])
    yield Column("predicted", predicted, _short, scale=1 / _SCALES[metric])
    yield Column("error", error, "+.1%")
    if metric == "tpot":
        yield Column("blind", blind, "+.1%")


def _rounded(value: float) -> str:
    return f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}"


def _short(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def score_table(validation: Validation) -> Table:
    """Absolute errors by metric, by fitted or held-out rows, and by machine."""
    found = scores(validation)
    rows = [
        row
        for metric in METRICS
        for name, words in (("fitted", "were fitted"), ("held_out", "were held out"))
        for row in _score_rows(_NAMES[metric], words, found[metric][name])
    ]
    return table_of(_SCORES, rows)


def _score_rows(metric: str, words: str, found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    def row(hardware: str, of: dict[str, Any]) -> dict[str, Any]:
        return {"metric": metric, "words": words, "hardware": hardware, **of}

    yield row("all", found)
    for machine, own in found["by_hardware"].items():
        yield row(machine, own)
        if own["mtp"]["rows"] and own["plain"]["rows"]:
            yield row(f"{machine} plain", own["plain"])
            yield row(f"{machine} mtp", own["mtp"])


def seed_table(validation: Validation) -> Table:
    """Median absolute errors of TPOT by machine: each half's held-out rows, left-out machines."""
    found = scores(validation)["tpot"]
    machines = sorted(found["fitted"]["by_hardware"])
    rows = [
        (f"seed {each['seed']}", {**each["by_hardware"], "all": each}) for each in found["seeds"]
    ]
    rows.append(("machine left out", {**found["leave_one_machine_out"], "all": ""}))

    def median(machine: str) -> Callable[[tuple[str, dict[str, Any]]], object]:
        return lambda row: _median_words(row[1].get(machine))

    columns: list[Column[tuple[str, dict[str, Any]]]] = [
        Column("held-out TPOT, median", lambda row: row[0], align="left"),
        *(Column(machine, median(machine), align="left") for machine in (*machines, "all")),
    ]
    return table_of(columns, rows)


def _median_words(found: dict[str, Any] | str | None) -> str | None:
    if isinstance(found, str):
        return found
    if not found or not found["rows"]:
        return None
    return f"{100 * found['median_ape']:.1f}% ({found['rows']})"


_CONFIGURATION: Final[tuple[Column[tuple[int, UsableRow]], ...]] = (
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
    Column("line", lambda each: each.line, "d"),
    Column("hardware", lambda each: each.hardware, align="left"),
    Column("excluded because", lambda each: each.reason, align="left"),
)
_SCORES: Final[tuple[Column[dict[str, Any]], ...]] = (
    Column("metric", lambda row: row["metric"], align="left"),
    Column("rows that", lambda row: row["words"], align="left"),
    Column("hardware", lambda row: row["hardware"], align="left"),
    Column("rows", lambda row: row["rows"], "d"),
    Column("mean", lambda row: row["mape"], ".1%"),
    Column("median", lambda row: row["median_ape"], ".1%"),
    Column("p90", lambda row: row["p90_ape"], ".1%"),
    Column("bias", lambda row: row["bias"], "+.1%"),
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


def as_data(validation: Validation, references: list[dict[str, Any]]) -> dict[str, Any]:
    """The JSON document."""
    found = scores(validation)
    return {
        "data": str(validation.path.name),
        "fit": dict(validation.fits.data),
        "rows": [_row_data(validation, place) for place in range(len(validation.rows))],
        "excluded": [asdict(each) for each in validation.excluded],
        **found,
        "aim": {"median_ape_max": AIM, "least_rows": LEAST_ROWS, "above": misses(found["tpot"])},
        "calibration": [
            {"name": name, "value": figure.value, "unit": figure.unit, "source": figure.source}
            for name, figure in validation.fits.everything.figures()
        ],
        "assumptions": list(assumptions_of(validation)),
        "references": references,
    }


def _row_data(validation: Validation, place: int) -> dict[str, Any]:
    row = validation.rows[place]
    configuration = row.measured.configuration
    measured = {metric: row.measured.results.of(metric) for metric in METRICS}
    predicted = {metric: float(validation.everything.of(metric)[place]) for metric in METRICS}
    return {
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
        "date": str(configuration.day),
        "chips": row.load.deployment.chips,
        "fingerprint": configuration.fingerprint,
        "in_fit": validation.in_fit(row),
        "measured": measured,
        "predicted": predicted,
        "error": {
            metric: None if value is None else predicted[metric] / value - 1
            for metric, value in measured.items()
        },
        "held_out": {
            metric: {str(seed): _prediction(error) for seed, error in by_seed.items()}
            for metric, by_seed in validation.of_row(place).items()
        },
    }


def _prediction(error: RowError) -> dict[str, float]:
    return {"predicted": error.predicted, "error": error.signed}

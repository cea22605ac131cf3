"""A validation as a reader sees it: every row's signed error, then what the errors come to."""

from collections.abc import Iterator
from typing import Any, Final

from serving.analysis.validate.prediction_errors import RowError
from serving.analysis.validate.row_prediction import METRICS
from serving.analysis.validate.usable_rows import UsableRow
from serving.analysis.validate.validation import Validation, measured_of, scores
from serving.analysis.validate.validation_aim import AIM, LEAST_ROWS, misses
from serving.analysis.validate.validation_assumptions import assumptions_of

Table = list[list[str]]

ROW_HEADER: Final = (
    *("line", "hardware", "framework", "fmt", "spec", "isl/osl", "workers", "users"),
    *("TPOT ms", "predicted", "error", "blind", "TTFT s", "predicted", "error"),
    *("tok/s/chip", "predicted", "error"),
)
SCORE_HEADER: Final = ("metric", "rows that", "hardware", "rows", "mean", "median", "p90", "bias")
_SCALES: Final = {"tpot": 1e3, "ttft": 1.0, "tokens_per_s": 1.0}
_NAMES: Final = {"tpot": "TPOT", "ttft": "TTFT", "tokens_per_s": "tokens/s per chip"}


def row_table(validation: Validation) -> Table:
    """Predictions by the fit on everything; `blind` is the mean error of TPOT by fits that had not
    seen the row, a dash for rows that no half left out.
    """
    table = [list(ROW_HEADER)]
    for place, row in enumerate(validation.rows):
        configuration = row.measured.configuration
        cells = [
            str(row.measured.line),
            configuration.hardware,
            configuration.framework,
            configuration.precision,
            "mtp" if configuration.speculative else "-",
            configuration.workload,
            configuration.layout,
            str(row.measured.users),
        ]
        for metric in METRICS:
            cells += _metric_cells(validation, place, row, metric)
        table.append(cells)
    return table


def _metric_cells(validation: Validation, place: int, row: UsableRow, metric: str) -> Iterator[str]:
    scale = _SCALES[metric]
    measured = measured_of(row.measured, metric)
    predicted = float(validation.everything.of(metric)[place])
    yield "-" if measured is None else _short(measured * scale)
    yield _short(predicted * scale)
    yield "-" if measured is None else percent(predicted / measured - 1)
    if metric == "tpot":
        blind = [each.signed for each in validation.of_row(place)[metric].values()]
        yield percent(sum(blind) / len(blind)) if blind else "-"


def _short(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def percent(share: float) -> str:
    """A signed share of what was measured."""
    return f"{100 * share:+.1f}%"


def score_table(validation: Validation) -> Table:
    """Absolute errors by metric, by what the fit had seen, and by machine."""
    found = scores(validation)
    table = [list(SCORE_HEADER)]
    for metric in METRICS:
        of = found[metric]
        for name, words in (("fitted", "were fitted"), ("held_out", "were held out")):
            table += _score_rows(_NAMES[metric], words, of[name])
    return table


def _score_rows(metric: str, words: str, found: dict[str, Any]) -> Table:
    rows = [[metric, words, "all", *_score_cells(found)]]
    for machine, own in found["by_hardware"].items():
        rows.append([metric, words, machine, *_score_cells(own)])
        if own["mtp"]["rows"] and own["plain"]["rows"]:
            rows.append([metric, words, f"{machine} plain", *_score_cells(own["plain"])])
            rows.append([metric, words, f"{machine} mtp", *_score_cells(own["mtp"])])
    return rows


def _score_cells(found: dict[str, Any]) -> list[str]:
    if not found["rows"]:
        return ["0", "-", "-", "-", "-"]
    errors = [f"{100 * found[name]:.1f}%" for name in ("mape", "median_ape", "p90_ape")]
    return [str(found["rows"]), *errors, percent(found["bias"])]


def seed_table(validation: Validation) -> Table:
    """Median absolute errors of TPOT by machine: each half's held-out rows, then each machine's
    when its rows were all left out.
    """
    found = scores(validation)["tpot"]
    machines = sorted(found["fitted"]["by_hardware"])
    table = [["held-out TPOT, median", *machines, "all"]]
    for each in found["seeds"]:
        by_hardware = each["by_hardware"]
        cells = [_median_cell(by_hardware.get(machine)) for machine in machines]
        table.append([f"seed {each['seed']}", *cells, _median_cell(each)])
    alone = found["leave_one_machine_out"]
    cells = [_median_cell(alone.get(machine)) for machine in machines]
    table.append(["machine left out", *cells, ""])
    return table


def _median_cell(found: dict[str, Any] | None) -> str:
    if not found or not found["rows"]:
        return "-"
    return f"{100 * found['median_ape']:.1f}% ({found['rows']})"


def excluded_table(validation: Validation) -> Table:
    """Lines that were not predicted, and why."""
    return [["line", "hardware", "excluded because"]] + [
        [str(each.line), each.hardware, each.reason] for each in validation.excluded
    ]


def factor_table(validation: Validation) -> Table:
    """Every factor of the fit on everything, and the constants beside them."""
    table = [["factor", "value", "unit"]]
    for name, figure in validation.fits.everything.figures():
        table.append([name, f"{figure.value:.4g}", figure.unit])
    return table


def as_data(validation: Validation, references: list[dict[str, Any]]) -> dict[str, Any]:
    """The JSON document."""
    found = scores(validation)
    return {
        "data": str(validation.path.name),
        "fit": dict(validation.fits.data),
        "rows": [_row_data(validation, place) for place in range(len(validation.rows))],
        "excluded": [
            {
                "line": each.line,
                "hardware": each.hardware,
                "reason": each.reason,
            }
            for each in validation.excluded
        ],
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
    measured = {metric: measured_of(row.measured, metric) for metric in METRICS}
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

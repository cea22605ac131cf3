"""Fits all that ships: `python -m serving.analysis.validate.refit`, two or three minutes."""

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from emulator.specs.shipped_fits import ShippedFits
from emulator.specs.stack_factors import StackFactors
from serving.analysis.validate.calibration_fit import fit_factors
from serving.analysis.validate.counted_rows import RowLoad
from serving.analysis.validate.curve_split import SEEDS, fitted_half
from serving.analysis.validate.measured_row import METRICS, MeasuredRow, read_rows
from serving.analysis.validate.row_prediction import RowPredictor, RowResults
from serving.analysis.validate.usable_rows import UsableRow, usable_rows

METHOD = (
    "least squares on log errors of TPOT, TTFT and tokens/s with soft L1 and Gaussian priors; "
    "acceptance by rows with speculation"
)

FRESH_SEEDS: Final = tuple(range(100, 112))
"""Seeds of splits unseen while the model's form was chosen."""

Choice = Callable[[UsableRow], bool]


def observed_of(rows: Sequence[MeasuredRow]) -> RowResults:
    """Measured results as arrays; NaN where there is none."""
    columns = {metric: [row.results.of(metric) for row in rows] for metric in METRICS}
    return RowResults(
        **{METRICS[metric]: np.array(each, dtype=np.float64) for metric, each in columns.items()}
    )


def fit_rows(rows: Sequence[UsableRow], *, name: str, source: str) -> StackFactors:
    """The factors of some rows."""
    loads: list[RowLoad] = [row.load for row in rows]
    observed = observed_of([row.measured for row in rows])
    return fit_factors(loads, observed, name=name, source=source)


def fits_of(path: Path, *, day: date) -> ShippedFits:
    """Every fit that ships, of the file's usable rows; raises ConfigError for an unusable file."""
    rows, _ = usable_rows(read_rows(path))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    halves = {
        seed: fitted_half([row.measured.configuration for row in rows], seed=seed) for seed in SEEDS
    }

    def fit(name: str, chosen: Choice) -> StackFactors:
        some = [row for row in rows if chosen(row)]
        source = f"fitted {day} to {len(some)} rows of {path.name} (sha256 {digest[:12]}): {METHOD}"
        print(f"{name}: {len(some)} rows", file=sys.stderr)
        return fit_rows(some, name=name, source=source)

    fingerprints = sorted({row.measured.configuration.fingerprint for row in rows})
    machines = sorted({row.measured.configuration.hardware for row in rows})
    others = machines if len(machines) > 1 else []
    return ShippedFits(
        data={
            "file": path.name,
            "sha256": digest,
            "rows": len(rows),
            "configurations": len(fingerprints),
            "date": str(day),
            "method": METHOD,
        },
        everything=fit("fitted", lambda _: True),
        halves={seed: fit(f"half {seed}", _seen_by(half)) for seed, half in halves.items()},
        without={machine: fit(f"without {machine}", _not_on(machine)) for machine in others},
        fitted_in={
            key: frozenset(seed for seed, half in halves.items() if key in half)
            for key in fingerprints
        },
        fresh=_fresh(rows, fit),
    )


def _seen_by(half: frozenset[str]) -> Choice:
    return lambda row: row.measured.configuration.fingerprint in half


def _not_on(machine: str) -> Choice:
    return lambda row: row.measured.configuration.hardware != machine


def _fresh(
    rows: Sequence[UsableRow], fit: Callable[[str, Choice], StackFactors]
) -> dict[str, dict[str, float]]:
    observed_s = observed_of([row.measured for row in rows]).tpot_s
    predictor = RowPredictor([row.load for row in rows])
    hardware = np.array([row.measured.configuration.hardware for row in rows])
    errors: dict[str, list[NDArray[np.float64]]] = {str(name): [] for name in np.unique(hardware)}
    for seed in FRESH_SEEDS:
        half = fitted_half([row.measured.configuration for row in rows], seed=seed)
        blind = np.array([row.measured.configuration.fingerprint not in half for row in rows])
        predicted_s = predictor.predict(fit(f"fresh half {seed}", _seen_by(half))).tpot_s
        for name, found in errors.items():
            mine = blind & (hardware == name)
            if mine.any():
                found.append(np.abs(predicted_s[mine] / observed_s[mine] - 1))
    return {
        name: {
            "pooled": round(float(np.median(np.concatenate(found))), 4),
            "worst": round(max(float(np.median(each)) for each in found), 4),
            "above_12_percent": sum(float(np.median(each)) > 0.12 for each in found),
            "seeds": len(found),
        }
        for name, found in errors.items()
        if found
    }


def main(argv: list[str] | None = None) -> int:
    """Fit and write; returns 0."""
    parser = argparse.ArgumentParser(description="Fit what ships to a file of measurements.")
    parser.add_argument("--data", type=Path, required=True, metavar="FILE")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE")
    parser.add_argument("--date", type=date.fromisoformat, default=None, metavar="YYYY-MM-DD")
    args = parser.parse_args(argv)
    found = fits_of(args.data, day=args.date or date.today())
    args.output.write_text(json.dumps(found.as_data(), indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Fits all that ships: `python -m serving.analysis.validate.refit`, a minute or two."""

import argparse
import hashlib
import json
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from emulator.specs.shipped_fits import PredictionInterval, ShippedFits, shipped_fits
from emulator.specs.stack_factors import StackFactors
from serving.analysis.validate.calibration_fit import fit_factors
from serving.analysis.validate.measured_row import METRICS, MeasuredRow, read_rows
from serving.analysis.validate.row_prediction import RowPredictor, RowResults
from serving.analysis.validate.usable_rows import UsableRow, usable_rows

METHOD = (
    "least squares on log errors of TPOT, tokens/s and, of few users, median TTFT with soft L1 and "
    "Gaussian priors, machines by the root of their rows, exchanges inside boxes charged as those "
    "between them; then exchange_skew with what kernels say of a box, the front end by runs of few "
    "users, what releases of stacks do to a generation's overheads, the overhead of drafts by rows "
    "with speculation"
)
COVERED: Final = 0.8
"""Share of rows that an interval is made to cover."""
LEAST_MACHINES: Final = 2


def observed_of(rows: Sequence[MeasuredRow]) -> RowResults:
    """Measured results as arrays; NaN where there is none."""
    columns = {metric: [row.results.of(metric) for row in rows] for metric in METRICS}
    return RowResults(
        **{METRICS[metric]: np.array(each, dtype=np.float64) for metric, each in columns.items()}
    )


def fit_rows(rows: Sequence[UsableRow], *, name: str, source: str) -> StackFactors:
    """The factors of some rows."""
    observed = observed_of([row.measured for row in rows])
    return fit_factors([row.load for row in rows], observed, name=name, source=source)


def fits_of(paths: Sequence[Path], *, day: date) -> ShippedFits:
    """Every fit that ships, of the files' usable rows; raises ConfigError for an unusable file."""
    rows = [row for path in paths for row in usable_rows(read_rows(path))[0]]
    fitted = [row for row in rows if row.drafts_as_named]
    digest = files_digest(paths)
    names = ", ".join(path.name for path in paths)

    def fit(name: str, machines: Collection[str]) -> StackFactors:
        some = [row for row in fitted if row.measured.configuration.hardware in machines]
        source = f"fitted {day} to {len(some)} rows of {names} (sha256 {digest[:12]}): {METHOD}"
        print(f"{name}: {len(some)} rows", file=sys.stderr)
        return fit_rows(some, name=name, source=source)

    machines = sorted({row.measured.configuration.hardware for row in rows})
    left_out = machines if len(machines) >= LEAST_MACHINES else []
    without = {machine: fit(f"without {machine}", {*machines} - {machine}) for machine in left_out}
    fingerprints = frozenset(row.measured.configuration.fingerprint for row in rows)
    made = ShippedFits(
        data={
            "files": names,
            "sha256": digest,
            "rows": len(fitted),
            "configurations": len({row.measured.configuration.fingerprint for row in fitted}),
            "date": str(day),
            "method": METHOD,
        },
        everything=fit("fitted", machines),
        without=without,
        fitted=fingerprints,
        intervals={},
        intervals_without={},
    )
    return with_intervals(made, rows)


def with_intervals(fits: ShippedFits, rows: Sequence[UsableRow]) -> ShippedFits:
    """The same factors with intervals by runs of the rows, each without its machine."""
    ratios = _blind_ratios(rows, fits.without)
    return replace(
        fits,
        intervals=_intervals(ratios, ""),
        intervals_without={machine: _intervals(ratios, machine) for machine in fits.without},
    )


def files_digest(paths: Sequence[Path]) -> str:
    """One sha256 over the files' contents, in order."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


_Ratios = Mapping[str, Mapping[str, NDArray[np.float64]]]


def _blind_ratios(rows: Sequence[UsableRow], without: Mapping[str, StackFactors]) -> _Ratios:
    """Measured over predicted, by metric and machine, predicted without the machine."""
    predictor = RowPredictor([row.load for row in rows])
    observed = observed_of([row.measured for row in rows])
    hardware = np.array([row.measured.configuration.hardware for row in rows])
    ratios: dict[str, dict[str, NDArray[np.float64]]] = {metric: {} for metric in METRICS}
    for machine, factors in without.items():
        mine = hardware == machine
        predicted = predictor.simulate(factors, mine)
        for metric, by_machine in ratios.items():
            found = (observed.of(metric) / predicted.of(metric))[mine]
            by_machine[machine] = found[~np.isnan(found)]
    return ratios


def _intervals(ratios: _Ratios, left_out: str) -> dict[str, PredictionInterval]:
    """Of the rows of every machine but one."""
    ends = (1 - COVERED) / 2, (1 + COVERED) / 2
    found = {}
    for metric, by_machine in ratios.items():
        some = [each for name, each in by_machine.items() if name != left_out and len(each)]
        if some:
            quantiles = np.quantile(np.concatenate(some), ends).tolist()
            found[metric] = PredictionInterval(least=quantiles[0], most=quantiles[1])
    return found


def main(argv: list[str] | None = None) -> int:
    """Fit and write; returns 0."""
    parser = argparse.ArgumentParser(description="Fit what ships to files of measurements.")
    parser.add_argument("--data", type=Path, required=True, metavar="FILE", nargs="+")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE")
    parser.add_argument("--date", type=date.fromisoformat, default=None, metavar="YYYY-MM-DD")
    parser.add_argument(
        "--intervals", action="store_true", help="keep the factors that ship; intervals are new"
    )
    args = parser.parse_args(argv)
    if args.intervals:
        rows = [row for path in args.data for row in usable_rows(read_rows(path))[0]]
        found = with_intervals(shipped_fits(), rows)
    else:
        found = fits_of(args.data, day=args.date or date.today())
    args.output.write_text(json.dumps(found.as_data(), indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

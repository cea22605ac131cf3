"""Fits everything that ships to a file of measurements: `python -m serving.planning.refit`.

It takes about a minute. `ultraserve validate` never does this: it predicts with what ships.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path

import numpy as np

from emulator.model import StackFactors
from emulator.specs.shipped_fits import ShippedFits
from serving.planning.calibration_fit import Observed, fit_factors
from serving.planning.counted_rows import Load
from serving.planning.curve_split import SEEDS, fitted_half
from serving.planning.measured_row import MeasuredRow, read_rows
from serving.planning.usable_rows import UsableRow, usable_rows

METHOD = (
    "least squares on log errors of TPOT, TTFT and tokens/s with soft L1 and Gaussian priors; "
    "acceptance by rows with speculation"
)

Choice = Callable[[UsableRow], bool]


def observed_of(rows: Sequence[MeasuredRow]) -> Observed:
    """Measured results as arrays; not a number where there is none."""

    def column(values: Sequence[float | None]) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        return np.array([np.nan if value is None else value for value in values])

    results = [row.results for row in rows]
    return Observed(
        tpot_s=column([each.mean_tpot_s for each in results]),
        ttft_s=column([each.mean_ttft_s for each in results]),
        tokens_per_s_per_chip=column([each.tokens_per_s_per_chip for each in results]),
    )


def fit_rows(rows: Sequence[UsableRow], *, name: str, source: str) -> StackFactors:
    """The factors of some rows."""
    loads: list[Load] = [row.load for row in rows]
    observed = observed_of([row.measured for row in rows])
    return fit_factors(loads, observed, name=name, source=source)


def fits_of(path: Path, *, day: date) -> ShippedFits:
    """Every fit that ships, of the usable rows of the file at `path`.

    Raises ConfigError for a file that cannot be used.
    """
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
        halves={
            seed: fit(
                f"half {seed}",
                lambda row, half=half: row.measured.configuration.fingerprint in half,  # type: ignore[misc]
            )
            for seed, half in halves.items()
        },
        without={
            machine: fit(
                f"without {machine}",
                lambda row, machine=machine: row.measured.configuration.hardware != machine,  # type: ignore[misc]
            )
            for machine in machines
        },
        fitted_in={
            key: frozenset(seed for seed, half in halves.items() if key in half)
            for key in fingerprints
        },
    )


def main(argv: list[str] | None = None) -> int:
    """Fits and writes; returns 0."""
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

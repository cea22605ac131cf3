"""Predictions against measurements, by shipped fits alone.

A row is *fitted* by fits that have seen its configuration and *held out* from the others: halves of
the data, and fits without its machine. A row that no fit has seen is held out from the fit on
everything. No result of the file enters any prediction.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulator.specs.shipped_fits import ShippedFits, shipped_fits
from serving.analysis.validate.measured_row import METRICS, ExcludedRow, read_rows
from serving.analysis.validate.prediction_errors import RowError, summary
from serving.analysis.validate.row_prediction import RowPredictor, RowResults
from serving.analysis.validate.usable_rows import UsableRow, usable_rows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Validation:
    """One file's rows with the shipped fits' predictions.

    `everything`, `halves` by seed and `without` by machine are of all `rows`, in order.
    """

    path: Path
    rows: tuple[UsableRow, ...]
    excluded: tuple[ExcludedRow, ...]
    fits: ShippedFits
    everything: RowResults
    halves: Mapping[int, RowResults]
    without: Mapping[str, RowResults]

    def in_fit(self, row: UsableRow) -> bool:
        """Whether the fit on everything has seen the row's configuration."""
        return row.measured.configuration.fingerprint in self.fits.fitted_in

    def fitted(self, metric: str) -> Iterator[RowError]:
        """Rows of the fit on everything, predicted by it."""
        return self._errors(metric, self.everything, self.in_fit)

    def unseen(self, metric: str) -> Iterator[RowError]:
        """Rows that no fit has seen, predicted by the fit on everything."""
        return self._errors(metric, self.everything, lambda row: not self.in_fit(row))

    def held_out_of(self, seed: int, metric: str) -> Iterator[RowError]:
        """Rows held out from the half fit of `seed`."""
        return self._errors(metric, self.halves[seed], lambda row: seed in self._blind_seeds(row))

    def held_out(self, metric: str) -> list[RowError]:
        """Of every seed together, and rows that no fit has seen."""
        pooled = [each for seed in self.halves for each in self.held_out_of(seed, metric)]
        return pooled + list(self.unseen(metric))

    def machine_left_out(self, machine: str, metric: str) -> Iterator[RowError]:
        """Rows of `machine`, predicted by the fit on all the others."""

        def is_on_it(row: UsableRow) -> bool:
            return row.measured.configuration.hardware == machine and self.in_fit(row)

        return self._errors(metric, self.without[machine], is_on_it)

    def _errors(
        self, metric: str, predictions: RowResults, chosen: Callable[[UsableRow], bool]
    ) -> Iterator[RowError]:
        for place, row in enumerate(self.rows):
            if chosen(row):
                yield from _error(row, metric, predictions, place)

    def _blind_seeds(self, row: UsableRow) -> list[int]:
        """Half fits from which the row is held out; none for a row that no fit has seen."""
        seeds = self.fits.fitted_in.get(row.measured.configuration.fingerprint)
        return [] if seeds is None else [seed for seed in self.halves if seed not in seeds]

    def of_row(self, place: int) -> dict[str, dict[int, RowError]]:
        """One row's held-out predictions, by metric and seed."""
        row = self.rows[place]
        blind = self._blind_seeds(row)
        return {
            metric: {
                seed: error
                for seed in blind
                for error in _error(row, metric, self.halves[seed], place)
            }
            for metric in METRICS
        }


def validation_of(path: Path) -> Validation:
    """Predict every usable row of the file at `path`; raises ConfigError for a bad file."""
    fits = shipped_fits()
    rows, excluded = usable_rows(read_rows(path))
    predictor = RowPredictor([row.load for row in rows])
    return Validation(
        path=path,
        rows=rows,
        excluded=excluded,
        fits=fits,
        everything=predictor.predict(fits.everything),
        halves={seed: predictor.predict(each) for seed, each in fits.halves.items()},
        without={machine: predictor.predict(each) for machine, each in fits.without.items()},
    )


def _error(row: UsableRow, metric: str, predictions: RowResults, place: int) -> Iterator[RowError]:
    measured = row.measured.results.of(metric)
    if measured is not None:
        yield RowError(
            line=row.measured.line,
            hardware=row.measured.configuration.hardware,
            speculative=row.measured.configuration.speculative,
            measured=measured,
            predicted=float(predictions.of(metric)[place]),
        )


def scores(validation: Validation) -> dict[str, dict[str, Any]]:
    """By metric: held-out scores at the top, then fitted, held out, seeds, machines."""
    return {metric: _scores(validation, metric) for metric in METRICS}


def _scores(validation: Validation, metric: str) -> dict[str, Any]:
    held_out = summary(validation.held_out(metric))
    return {
        **held_out,
        "fitted": summary(validation.fitted(metric)),
        "held_out": held_out,
        "unseen": summary(validation.unseen(metric)),
        "seeds": [
            {"seed": seed, **summary(validation.held_out_of(seed, metric))}
            for seed in validation.halves
        ],
        "leave_one_machine_out": {
            machine: summary(validation.machine_left_out(machine, metric))
            for machine in validation.without
        },
    }

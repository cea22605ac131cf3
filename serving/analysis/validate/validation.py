"""Predictions held against measurements: every row by fits that ship, and never by a new one.

A row whose configuration a fit has seen is *fitted* by it. It is *held out* from those fits that
have not seen it: halves of the data, and fits without its machine. A row that no fit has seen is
held out from the fit on everything. No result of the file enters any prediction.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulator.specs.shipped_fits import ShippedFits, shipped_fits
from serving.analysis.validate.measured_row import MeasuredRow, UnreadRow, read_rows
from serving.analysis.validate.prediction_errors import RowError, summary
from serving.analysis.validate.row_prediction import METRICS, Predictions, RowPredictor
from serving.analysis.validate.usable_rows import ExcludedRow, UsableRow, usable_rows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Validation:
    """One file's rows with what the shipped fits predict of them.

    `everything`, `halves` by seed and `without` by machine are predictions of all `rows`, in order;
    `fits` are what they were made with.
    """

    path: Path
    rows: tuple[UsableRow, ...]
    excluded: tuple[ExcludedRow, ...]
    fits: ShippedFits
    everything: Predictions
    halves: Mapping[int, Predictions]
    without: Mapping[str, Predictions]

    def in_fit(self, row: UsableRow) -> bool:
        """Whether the fit on everything has seen the row's configuration."""
        return row.measured.configuration.fingerprint in self.fits.fitted_in

    def fitted(self, metric: str) -> Iterator[RowError]:
        """Rows of the fit on everything, predicted by it."""
        for place, row in enumerate(self.rows):
            if self.in_fit(row):
                yield from _error(row, metric, self.everything, place)

    def unseen(self, metric: str) -> Iterator[RowError]:
        """Rows that no fit has seen, predicted by the fit on everything."""
        for place, row in enumerate(self.rows):
            if not self.in_fit(row):
                yield from _error(row, metric, self.everything, place)

    def held_out_of(self, seed: int, metric: str) -> Iterator[RowError]:
        """Rows that the half fit of `seed` might have seen and has not."""
        for place, row in enumerate(self.rows):
            seeds = self.fits.fitted_in.get(row.measured.configuration.fingerprint)
            if seeds is not None and seed not in seeds:
                yield from _error(row, metric, self.halves[seed], place)

    def held_out(self, metric: str) -> list[RowError]:
        """Of every seed together, and rows that no fit has seen."""
        pooled = [each for seed in self.halves for each in self.held_out_of(seed, metric)]
        return pooled + list(self.unseen(metric))

    def machine_left_out(self, machine: str, metric: str) -> Iterator[RowError]:
        """Rows of `machine`, predicted by the fit on all the others."""
        for place, row in enumerate(self.rows):
            if row.measured.configuration.hardware == machine and self.in_fit(row):
                yield from _error(row, metric, self.without[machine], place)

    def of_row(self, place: int) -> dict[str, dict[int, RowError]]:
        """By metric and seed: one row's predictions by the halves that have not seen it."""
        row = self.rows[place]
        seeds = self.fits.fitted_in.get(row.measured.configuration.fingerprint)
        blind = [] if seeds is None else [seed for seed in self.halves if seed not in seeds]
        return {
            metric: {
                seed: error
                for seed in blind
                for error in _error(row, metric, self.halves[seed], place)
            }
            for metric in METRICS
        }


def validation_of(path: Path, fits: ShippedFits | None = None) -> Validation:
    """Predicts every usable row of the file at `path`; raises ConfigError for a bad file."""
    return validation_of_rows(path, read_rows(path), fits)


def validation_of_rows(
    path: Path, measured: Sequence[MeasuredRow | UnreadRow], fits: ShippedFits | None = None
) -> Validation:
    """The same of rows that were read already."""
    held = fits or shipped_fits()
    rows, excluded = usable_rows(measured)
    predictor = RowPredictor([row.load for row in rows])
    return Validation(
        path=path,
        rows=rows,
        excluded=excluded,
        fits=held,
        everything=predictor.predict(held.everything),
        halves={seed: predictor.predict(each) for seed, each in held.halves.items()},
        without={machine: predictor.predict(each) for machine, each in held.without.items()},
    )


def measured_of(row: MeasuredRow, metric: str) -> float | None:
    """What was measured, by the metric's name."""
    results = row.results
    by_name = {
        "tpot": results.mean_tpot_s,
        "ttft": results.mean_ttft_s,
        "tokens_per_s": results.tokens_per_s_per_chip,
    }
    return by_name[metric]


def _error(row: UsableRow, metric: str, predictions: Predictions, place: int) -> Iterator[RowError]:
    """One, or none where nothing was measured."""
    measured = measured_of(row.measured, metric)
    if measured is not None:
        yield RowError(
            line=row.measured.line,
            hardware=row.measured.configuration.hardware,
            speculative=row.measured.configuration.speculative,
            measured=measured,
            predicted=float(predictions.of(metric)[place]),
        )


def scores(validation: Validation) -> dict[str, dict[str, Any]]:
    """By metric: what is held out at the top, then fitted and held out apart, seeds, machines."""
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

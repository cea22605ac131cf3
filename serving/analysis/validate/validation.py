"""Predictions against measurements, by shipped fits alone.

A row of a configuration that was fitted is predicted by the fit on everything (*fitted*), and by
the fit without its machine's rows (*left out*). One that no fit has seen is left out of the fit on
everything. No result of a file enters any prediction.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulator.specs.shipped_fits import PredictionInterval, ShippedFits, shipped_fits
from serving.analysis.validate.measured_row import METRICS, ExcludedRow, read_rows
from serving.analysis.validate.prediction_errors import RowError, summary
from serving.analysis.validate.row_prediction import RowPredictor, RowResults
from serving.analysis.validate.usable_rows import UsableRow, usable_rows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Validation:
    """Rows of files with the shipped fits' predictions.

    `everything`, and `without` by machine, are of all `rows`, in order.
    """

    paths: tuple[Path, ...]
    rows: tuple[UsableRow, ...]
    excluded: tuple[ExcludedRow, ...]
    fits: ShippedFits
    everything: RowResults
    without: Mapping[str, RowResults]

    @property
    def names(self) -> str:
        """The files' names."""
        return ", ".join(path.name for path in self.paths)

    def in_fit(self, row: UsableRow) -> bool:
        """Whether the fit on everything has seen the row's configuration."""
        return row.measured.configuration.fingerprint in self.fits.fitted

    def blind(self, row: UsableRow) -> RowResults | None:
        """Predictions by the fit that has seen nothing of the row's machine; None without one."""
        if not self.in_fit(row):
            return self.everything
        return self.without.get(row.measured.configuration.hardware)

    def interval(self, row: UsableRow, metric: str) -> PredictionInterval | None:
        """Of measured over predicted by fits without the measured machine, over the rows of other
        machines.
        """
        machine = row.measured.configuration.hardware
        known = self.fits.intervals_without.get(machine) if self.in_fit(row) else None
        return (known or self.fits.intervals).get(metric)

    def fitted(self, metric: str) -> Iterator[RowError]:
        """Rows of the fit on everything, predicted by it."""
        for place, row in enumerate(self.rows):
            if self.in_fit(row):
                yield from self._error(row, metric, self.everything, place)

    def left_out(self, metric: str) -> Iterator[RowError]:
        """Every row, predicted blindly."""
        for place, row in enumerate(self.rows):
            predictions = self.blind(row)
            if predictions is not None:
                yield from self._error(row, metric, predictions, place)

    def _error(
        self, row: UsableRow, metric: str, predictions: RowResults, place: int
    ) -> Iterator[RowError]:
        measured = row.measured.results.of(metric)
        if measured is None:
            return
        predicted = float(predictions.of(metric)[place])
        interval = self.interval(row, metric)
        ratio = measured / predicted
        yield RowError(
            file=row.measured.file,
            line=row.measured.line,
            hardware=row.measured.configuration.hardware,
            speculative=row.measured.configuration.speculative,
            measured=measured,
            predicted=predicted,
            covered=None if interval is None else interval.least <= ratio <= interval.most,
        )


def validation_of(paths: Sequence[Path]) -> Validation:
    """Predict every usable row of the files; raises ConfigError for a bad file."""
    fits = shipped_fits()
    read = [usable_rows(read_rows(path)) for path in paths]
    rows = tuple(row for usable, _ in read for row in usable)
    predictor = RowPredictor([row.load for row in rows])
    return Validation(
        paths=tuple(paths),
        rows=rows,
        excluded=tuple(row for _, excluded in read for row in excluded),
        fits=fits,
        everything=predictor.predict(fits.everything),
        without={machine: predictor.predict(each) for machine, each in fits.without.items()},
    )


def scores(validation: Validation) -> dict[str, dict[str, Any]]:
    """By metric: scores of left-out rows at the top, then fitted ones."""
    return {
        metric: {
            **summary(validation.left_out(metric)),
            "fitted": summary(validation.fitted(metric)),
        }
        for metric in METRICS
    }

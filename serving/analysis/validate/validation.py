"""Predictions against measurements, by shipped fits alone.

Each row is run as the benchmark ran it, on the simulator's schedulers: by the fit on everything
(*fitted*) if its configuration was fitted, and then by the fit without its machine's rows (*left
out*). One that no fit has seen is left out of the fit on
everything. No result of a file enters any prediction.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np

from emulator.arrays import Float64s
from emulator.specs.shipped_fits import PredictionInterval, ShippedFits, shipped_fits
from serving.analysis.validate.measured_row import METRICS, ExcludedRow, read_rows
from serving.analysis.validate.prediction_errors import RowError, summary
from serving.analysis.validate.row_prediction import (
    RowPredictor,
    RowResults,
    unknown_results,
)
from serving.analysis.validate.usable_rows import UsableRow, usable_rows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Validation:
    """Rows of files with the shipped fits' predictions.

    `everything` and `unseen` are of all `rows`, in order: by the fit on everything, and by the fit
    that has seen nothing of a row's machine, NaN without one. `prompt_s`: seconds a prompt that a
    row's engines need, by the fit on everything, [rows].
    """

    paths: tuple[Path, ...]
    rows: tuple[UsableRow, ...]
    excluded: tuple[ExcludedRow, ...]
    fits: ShippedFits
    everything: RowResults
    unseen: RowResults
    prompt_s: Float64s

    @property
    def names(self) -> str:
        """The files' names."""
        return ", ".join(path.name for path in self.paths)

    def in_fit(self, row: UsableRow) -> bool:
        """Whether the fit on everything saw the row's machine and its configuration's name."""
        return _in_fit(self.fits, row)

    def blind(self, place: int, metric: str) -> float | None:
        """Of the row at `place`, by the fit that has seen nothing of its machine."""
        found = float(self.unseen.of(metric)[place])
        return None if isnan(found) else found

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
            if self.in_fit(row) and row.drafts_as_named:
                yield from self._error(row, metric, self.everything, place)

    def left_out(self, metric: str) -> Iterator[RowError]:
        """Every row, predicted blindly."""
        for place, row in enumerate(self.rows):
            if self.blind(place, metric) is not None:
                yield from self._error(row, metric, self.unseen, place)

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


def _in_fit(fits: ShippedFits, row: UsableRow) -> bool:
    return row.measured.configuration.fingerprint in fits.fitted


def validation_of(paths: Sequence[Path], fits: ShippedFits | None = None) -> Validation:
    """Run every usable row of the files under `fits`, by default those that ship.

    Raises ConfigError for a bad file.
    """
    fits = fits or shipped_fits()
    read = [usable_rows(read_rows(path)) for path in paths]
    rows = tuple(row for usable, _ in read for row in usable)
    predictor = RowPredictor([row.load for row in rows])
    everything = predictor.simulate(fits.everything, np.ones(len(rows), dtype=np.bool_))
    machine = np.array([row.measured.configuration.hardware for row in rows])
    seen = np.array([_in_fit(fits, row) for row in rows], dtype=np.bool_)
    unseen = unknown_results(len(rows))
    parts = [(~seen, everything)]
    for name, factors in fits.without.items():
        mine = seen & (machine == name)
        parts.append((mine, predictor.simulate(factors, mine)))
    for mine, part in parts:
        for metric in METRICS:
            unseen.of(metric)[mine] = part.of(metric)[mine]
    return Validation(
        paths=tuple(paths),
        rows=rows,
        excluded=tuple(row for _, excluded in read for row in excluded),
        fits=fits,
        everything=everything,
        unseen=unseen,
        prompt_s=predictor.prompt_s(fits.everything),
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

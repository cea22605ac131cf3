"""Fits a law's constants to measured kernels, with what is a stack's own shrunk.

The logarithm of a constant is a base plus one deviation for each level that the constant may depend
on (a machine, a stack, a kernel of a stack...). Deviations have Gaussian priors around 0, the base
around a usual value, so a level without data has the base, and one with little data nearly so.
Errors are of logarithms and softened (soft L1); Levenberg-Marquardt minimises both sums.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np

from emulator.arrays import Bools, Float64s, Int64s
from emulator.timing.laws.silicon import Silicon

Strings = np.ndarray[Any, np.dtype[np.str_]]

ERROR_SCALE: Final = 0.15
"""Errors of logarithms beyond this count ever less than their square."""
_STEP: Final = 1e-3  # of a constant's logarithm, for derivatives
_STEPS_MAX: Final = 40
_TRIES_MAX: Final = 14
_LEAST_GAIN: Final = 3e-4  # of the cost; three steps in a row with less end the fit
_FITTED_ROWS_MAX: Final = 4_500


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantPrior:
    """A constant's usual value, its bounds, and the levels that it may depend on.

    `spread`: standard deviation of the base's logarithm around the usual value; `levels`: of a
    deviation's around 0, by the level's name.
    """

    name: str
    unit: str
    usual: float
    least: float
    most: float
    spread: float = 1.5
    levels: Mapping[str, float] = field(default_factory=dict)


class KernelShape(Protocol):
    """Columns [kernels] that a law's `duration_ns` reads."""


class KernelLaw(Protocol):
    """A law with its constants."""

    def duration_ns(self, shape: Any, silicon: Silicon, *, in_loop: bool = False) -> Float64s:
        """[kernels]."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KernelRows:
    """Measured kernels of one family, all [kernels].

    `levels`: each kernel's level by the level's name, "machine" among them. `lines`: file and line.
    `excluded`: numbers of rows of the tables that are in no column, by reason.
    """

    shape: Any
    silicon: Silicon
    levels: Mapping[str, Strings]
    measured_ns: Float64s
    lines: Strings
    excluded: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.measured_ns)

    def taken(self, rows: Bools | Int64s) -> "KernelRows":
        """Those of a mask or of indices."""
        return KernelRows(
            shape=_taken(self.shape, rows),
            silicon=_taken(self.silicon, rows),
            levels={name: each[rows] for name, each in self.levels.items()},
            measured_ns=self.measured_ns[rows],
            lines=self.lines[rows],
        )


def _taken(record: Any, rows: Bools | Int64s) -> Any:
    columns = {name: getattr(record, name)[rows] for name in record.__dataclass_fields__}
    return type(record)(**columns)


def _short(value: float) -> float:
    return float(f"{value:.5g}")


class FittedLaw:
    """A law's constants: bases, and deviations of the levels that were fitted."""

    def __init__(
        self, law: type[KernelLaw], priors: Sequence[ConstantPrior], rows: KernelRows
    ) -> None:
        """Fits `law` to an even choice of `rows`, which are not empty."""
        self._law, self.priors = law, tuple(priors)
        every = max(1, len(rows) // _FITTED_ROWS_MAX)
        chosen = rows.taken(np.arange(0, len(rows), every))
        names = {name for prior in priors for name in prior.levels}
        self.known = {name: np.unique(chosen.levels[name]) for name in sorted(names)}
        self._place: dict[tuple[str, str], int] = {}
        start = [np.log(prior.usual) for prior in priors]
        spread = [prior.spread for prior in priors]
        for prior in priors:
            for name, deviation in prior.levels.items():
                self._place[prior.name, name] = len(start)
                start += [0.0] * len(self.known[name])
                spread += [deviation] * len(self.known[name])
        self._start, self._spread = np.array(start), np.array(spread)
        self._vector = self._fitted(chosen)

    def base(self, name: str) -> float:
        """A constant of a machine and stack without data, in its unit."""
        place = [prior.name for prior in self.priors].index(name)
        prior = self.priors[place]
        return float(np.clip(np.exp(self._vector[place]), prior.least, prior.most))

    def deviations(self, name: str, level: str) -> dict[str, float]:
        """Factors on a constant's base, by the level's values."""
        first = self._place[name, level]
        values = self.known[level]
        factors = np.exp(self._vector[first : first + len(values)])
        return dict(zip(values.tolist(), factors.tolist(), strict=True))

    def as_data(self) -> dict[str, Any]:
        """Every constant as `emulator.timing.laws.shipped_laws` reads it."""
        return {
            prior.name: {
                "unit": prior.unit,
                "least": prior.least,
                "most": prior.most,
                "base": _short(self.base(prior.name)),
                "levels": {
                    level: {
                        value: _short(factor)
                        for value, factor in self.deviations(prior.name, level).items()
                    }
                    for level in prior.levels
                },
            }
            for prior in self.priors
        }

    def predict_ns(self, rows: KernelRows) -> Float64s:
        """[kernels]; unknown levels have the base."""
        return self._predict_ns(self._logarithms(self._vector, self._places(rows)), rows)

    def _predict_ns(self, logarithms: Sequence[Float64s], rows: KernelRows) -> Float64s:
        named = {
            prior.name: np.exp(each) for prior, each in zip(self.priors, logarithms, strict=True)
        }
        return self._law(**named).duration_ns(rows.shape, rows.silicon, in_loop=True)

    def _places(self, rows: KernelRows) -> dict[str, tuple[Int64s, Bools]]:
        """Of each row's level among the known ones, and whether it is one: by the level's name."""
        found = {}
        for name, known in self.known.items():
            place = np.minimum(np.searchsorted(known, rows.levels[name]), len(known) - 1)
            found[name] = (place, known[place] == rows.levels[name])
        return found

    def _logarithms(
        self, vector: Float64s, places: Mapping[str, tuple[Int64s, Bools]]
    ) -> list[Float64s]:
        """Of each constant, [kernels], within its bounds."""
        found = []
        for base, prior in zip(vector, self.priors, strict=False):
            value = np.asarray(base)
            for name in prior.levels:
                place, hit = places[name]
                first = self._place[prior.name, name]
                value = value + np.where(hit, vector[first + place], 0.0)
            found.append(np.clip(value, np.log(prior.least), np.log(prior.most)))
        return found

    def _fitted(self, rows: KernelRows) -> Float64s:
        places = self._places(rows)
        measured = np.log(rows.measured_ns)

        def errors(logarithms: Sequence[Float64s]) -> Float64s:
            scaled: Float64s = (np.log(self._predict_ns(logarithms, rows)) - measured) / ERROR_SCALE
            return scaled

        def cost(found: Float64s, vector: Float64s) -> float:
            prior = ((vector - self._start) / self._spread) ** 2
            return float(2 * np.sum(np.sqrt(1 + found**2) - 1) + prior.sum())

        vector, damping, small = self._start.copy(), 1e-2, 0
        found = errors(self._logarithms(vector, places))
        paid = cost(found, vector)
        for _ in range(_STEPS_MAX):
            slopes = self._slopes(vector, places, found, errors)
            weights = 1 / np.sqrt(1 + found**2)
            curvature = slopes.T @ (slopes * weights[:, None]) + np.diag(self._spread**-2)
            gradient = slopes.T @ (weights * found) + (vector - self._start) / self._spread**2
            for _ in range(_TRIES_MAX):
                damped = curvature + damping * np.diag(np.diag(curvature))
                moved = vector - np.clip(np.linalg.solve(damped, gradient), -1, 1)
                then = errors(self._logarithms(moved, places))
                if (costs := cost(then, moved)) < paid:
                    break
                damping *= 5
            else:
                break
            small = small + 1 if paid - costs < _LEAST_GAIN * paid else 0
            vector, found, paid, damping = moved, then, costs, max(damping / 5, 1e-6)
            if small == 3:
                break
        return vector

    def _slopes(
        self,
        vector: Float64s,
        places: Mapping[str, tuple[Int64s, Bools]],
        found: Float64s,
        errors: Any,
    ) -> Float64s:
        """Of the errors by the vector, [kernels, entries]; a deviation's is its constant's own."""
        logarithms = self._logarithms(vector, places)
        slopes = np.zeros((len(found), len(vector)))
        for index, prior in enumerate(self.priors):
            stepped = list(logarithms)
            stepped[index] = np.minimum(logarithms[index] + _STEP, np.log(prior.most))
            step = np.broadcast_to(stepped[index] - logarithms[index], found.shape)
            slope = np.where(step > 0, (errors(stepped) - found) / np.where(step > 0, step, 1), 0.0)
            slopes[:, index] = slope
            for name in prior.levels:
                place, hit = places[name]
                first = self._place[prior.name, name]
                slopes[np.flatnonzero(hit), first + place[hit]] = slope[hit]
        return slopes

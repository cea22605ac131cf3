"""The shipped fits: factors of real stacks as data, with their sources.

`python -m serving.analysis.validate.refit` writes the file. The product uses the fit of every row;
others predict rows that they have not seen.
"""

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from math import exp, hypot, log
from typing import Any, Final

from emulator.errors import ConfigError
from emulator.specs.calibration import ROOFLINE, Calibration
from emulator.specs.stack_factors import SHARED_UNITS, GenerationFactors, StackFactors

FITTED: Final = "fitted"
CALIBRATIONS: Final = (ROOFLINE.name, FITTED)
_OLD_NAMES: Final = {"ceiling": ROOFLINE.name}


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionInterval:
    """Measured over predicted, which four of five rows of a left-out machine lie between."""

    least: float
    most: float

    def around(self, predicted: float) -> tuple[float, float]:
        """The 80 % range of a predicted value."""
        return self.least * predicted, self.most * predicted

    @property
    def inverse(self) -> "PredictionInterval":
        """Of a value that falls as this one rises, such as a user's tokens/s with TPOT."""
        return PredictionInterval(least=1 / self.most, most=1 / self.least)

    @property
    def of_ratio(self) -> "PredictionInterval":
        """Of one machine's value over another's, their errors independent (assumed): in logarithms
        the squares of the widths add.
        """
        wide = exp(hypot(log(self.least), log(self.most)))
        return PredictionInterval(least=1 / wide, most=wide)


TRAINING_INTERVAL: Final = PredictionInterval(least=0.74, most=1.13)
"""Of training speeds, over the published runs with known recipes, each without its machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedFits:
    """Fits to files of measurements.

    Attributes:
        data: the files' names and sha256, and numbers of fitted rows and configurations.
        everything: the fit on every row.
        without: on every row but one machine's, by the machine.
        fitted: fingerprints of the configurations of the rows whose machines it saw, with those of
            rows that are in no fit, as they made no drafts where their column names some.
        intervals: by metric, over the rows of all machines, each predicted without its own.
        intervals_without: the same without one machine's rows, by the machine.
    """

    data: Mapping[str, str | int]
    everything: StackFactors
    without: Mapping[str, StackFactors]
    fitted: frozenset[str]
    intervals: Mapping[str, PredictionInterval]
    intervals_without: Mapping[str, Mapping[str, PredictionInterval]]

    def as_data(self) -> dict[str, Any]:
        """The data that `from_data` reads."""
        return {
            "data": dict(self.data),
            "everything": _plain(self.everything),
            "without": {machine: _plain(each) for machine, each in self.without.items()},
            "intervals": _plain_intervals(self.intervals),
            "intervals_without": {
                machine: _plain_intervals(each) for machine, each in self.intervals_without.items()
            },
            "fitted": sorted(self.fitted),
        }

    @classmethod
    def from_data(cls, held: Mapping[str, Any]) -> "ShippedFits":
        """The fits of a file's content."""
        return cls(
            data=held["data"],
            everything=_factors(held["everything"]),
            without={machine: _factors(each) for machine, each in held["without"].items()},
            intervals=_intervals(held["intervals"]),
            intervals_without={
                machine: _intervals(each) for machine, each in held["intervals_without"].items()
            },
            fitted=frozenset(held["fitted"]),
        )


def _plain_intervals(intervals: Mapping[str, PredictionInterval]) -> dict[str, list[float]]:
    return {
        metric: [_rounded(each.least), _rounded(each.most)] for metric, each in intervals.items()
    }


def _intervals(held: Mapping[str, list[float]]) -> dict[str, PredictionInterval]:
    return {
        metric: PredictionInterval(least=least, most=most) for metric, (least, most) in held.items()
    }


def _plain(factors: StackFactors) -> dict[str, Any]:
    return {
        "name": factors.name,
        "source": factors.source,
        "shared": {name: _rounded(getattr(factors, name)) for name in SHARED_UNITS},
        "generations": {
            name: {"compute": _rounded(on.compute), "overhead": _rounded(on.overhead)}
            for name, on in factors.generations.items()
        },
        "releases": {
            generation: {release: _rounded(times) for release, times in each.items()}
            for generation, each in factors.releases.items()
        },
    }


def _rounded(value: float) -> float:
    """Five digits: beyond any fit's precision, and the same on every host."""
    return float(f"{value:.5g}")


def _factors(held: Mapping[str, Any]) -> StackFactors:
    return StackFactors(
        name=held["name"],
        source=held["source"],
        generations={name: GenerationFactors(**each) for name, each in held["generations"].items()},
        releases=held["releases"],
        **held["shared"],
    )


@lru_cache(maxsize=1)
def shipped_fits() -> ShippedFits:
    """The fits of the installed package."""
    text = files("emulator.data").joinpath("calibrations.json").read_text(encoding="utf-8")
    return ShippedFits.from_data(json.loads(text))


def calibration_name(text: str) -> str:
    """The present spelling of a name of CALIBRATIONS; warns (FutureWarning) of an old one.

    Other words stay as they are: `calibration_for` refuses them.
    """
    name = _OLD_NAMES.get(text, text)
    if name != text:
        warnings.warn(
            f"calibration {text!r} is now called {name!r}; the next release refuses the old name",
            FutureWarning,
            stacklevel=2,
        )
    return name


def calibration_for(chip: str, *, name: str = FITTED) -> Calibration:
    """The calibration `name` of CALIBRATIONS for a chip.

    Fitted: the shared factors, times those of the chip's generation if it was measured. All
    measurements were of GPUs. Raises ConfigError for another name, or a chip outside the
    catalog.
    """
    name = calibration_name(name)
    if name == ROOFLINE.name:
        return ROOFLINE
    if name != FITTED:
        raise ConfigError("calibration", name, f"one of {', '.join(CALIBRATIONS)}")
    return shipped_fits().everything.calibration(chip)

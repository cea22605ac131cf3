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
from typing import Any, Final

from emulator.errors import ConfigError
from emulator.specs.calibration import ROOFLINE, Calibration
from emulator.specs.chips import chip_by_name
from emulator.specs.stack_factors import FrameworkFactors, MachineFactors, StackFactors

FITTED: Final = "fitted"
CALIBRATIONS: Final = (ROOFLINE.name, FITTED)
_OLD_NAMES: Final = {"ceiling": ROOFLINE.name}
SHARED_NAMES: Final = (
    "memory_share",
    "tensor_share",
    "link_share",
    "layer_ns",
    "collective_ns",
    "fp4_overhead",
    "acceptance",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedFits:
    """Fits to one file of measurements.

    Attributes:
        data: the file's name, sha256, and numbers of fitted rows and configurations.
        everything: the fit on every row.
        halves: on half of the configurations, by the split's seed.
        without: on every row but one machine's, by the machine.
        fitted_in: the seeds whose half had a configuration, by its fingerprint.
        fresh: by machine, errors of held-out TPOT under unshipped halves by other seeds: median
            absolute errors, pooled and of the worst seed, and the count of seeds over 12 %.
    """

    data: Mapping[str, str | int]
    everything: StackFactors
    halves: Mapping[int, StackFactors]
    without: Mapping[str, StackFactors]
    fitted_in: Mapping[str, frozenset[int]]
    fresh: Mapping[str, Mapping[str, float]]

    def as_data(self) -> dict[str, Any]:
        """The data that `from_data` reads."""
        return {
            "data": dict(self.data),
            "everything": _plain(self.everything),
            "halves": {str(seed): _plain(each) for seed, each in self.halves.items()},
            "without": {machine: _plain(each) for machine, each in self.without.items()},
            "fresh": {machine: dict(each) for machine, each in self.fresh.items()},
            "fitted_in": {key: sorted(seeds) for key, seeds in sorted(self.fitted_in.items())},
        }

    @classmethod
    def from_data(cls, held: Mapping[str, Any]) -> "ShippedFits":
        """The fits of a file's content."""
        return cls(
            data=held["data"],
            everything=_factors(held["everything"]),
            halves={int(seed): _factors(each) for seed, each in held["halves"].items()},
            without={machine: _factors(each) for machine, each in held["without"].items()},
            fresh=held["fresh"],
            fitted_in={key: frozenset(seeds) for key, seeds in held["fitted_in"].items()},
        )


def _plain(factors: StackFactors) -> dict[str, Any]:
    return {
        "name": factors.name,
        "source": factors.source,
        "shared": {name: _rounded(getattr(factors, name)) for name in SHARED_NAMES},
        "machines": {
            name: {"memory": _rounded(on.memory), "compute": _rounded(on.compute)}
            for name, on in factors.machines.items()
        },
        "frameworks": {
            name: {"overhead": _rounded(by.overhead), "ageing": _rounded(by.ageing)}
            for name, by in factors.frameworks.items()
        },
    }


def _rounded(value: float) -> float:
    """Five digits: beyond any fit's precision, and the same on every host."""
    return float(f"{value:.5g}")


def _factors(held: Mapping[str, Any]) -> StackFactors:
    return StackFactors(
        name=held["name"],
        source=held["source"],
        machines={name: MachineFactors(**each) for name, each in held["machines"].items()},
        frameworks={name: FrameworkFactors(**each) for name, each in held["frameworks"].items()},
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


def calibration_for(chip: str, framework: str | None = None, *, name: str = FITTED) -> Calibration:
    """The calibration `name` of CALIBRATIONS for a chip, under a current serving framework.

    Fitted: the shared factors, times the chip's and the framework's if measured, without ageing.
    All measurements were of GPUs. Raises ConfigError for another name, or a chip outside the
    catalog.
    """
    name = calibration_name(name)
    if name == ROOFLINE.name:
        return ROOFLINE
    if name != FITTED:
        raise ConfigError("calibration", name, f"one of {', '.join(CALIBRATIONS)}")
    return shipped_fits().everything.calibration(chip_by_name(chip).name, framework)

"""Power of a system in a state of its engines' busy shares.

The named states show a system's range, with assumed shares; a workload's own come from its steps.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np

from emulator.errors import ConfigError
from emulator.power.draw import FORMATS, throttle_factor, wanted_watts
from emulator.power.system_power import FacilityWatts, SystemPower
from emulator.specs.rack_power import Season

_AT_REST: Final = MappingProxyType(
    dict.fromkeys(("tensor", "vector", "scalar", "gpsimd", "dma", "collectives"), 0.0)
)
BUSY_ENGINES: Final = (*_AT_REST, *(f"tensor_{dtype}" for dtype in FORMATS))

# Assumed: a decode step is bound by HBM most of its time and multiplies little; a prefill step is
# bound by products; full is every engine at once, which no workload does.
NAMED_STATES: Final[Mapping[str, Mapping[str, float]]] = MappingProxyType(
    {
        "idle": {},
        "decode": {"dma": 0.7, "tensor": 0.1, "vector": 0.1, "scalar": 0.05, "collectives": 0.2},
        "prefill": {"dma": 0.3, "tensor": 0.7, "vector": 0.2, "scalar": 0.1, "collectives": 0.3},
        "full": dict.fromkeys(_AT_REST, 1.0),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerState:
    """Some chips of a system, all equally busy.

    `wanted_watts_per_chip` is without a budget, `watts_per_chip` within the chip's and the rack's;
    `slow_factor` is the slowdown by it, at least 1.
    """

    name: str
    busy: Mapping[str, float]
    wanted_watts_per_chip: float
    watts_per_chip: float
    slow_factor: float
    facility: FacilityWatts


def power_state(
    power: SystemPower,
    busy: Mapping[str, float],
    *,
    name: str,
    chips: int,
    season: Season = Season.PEAK,
) -> PowerState:
    """The state of `chips` chips with these busy shares of their engines, 0 for others.

    Raises ConfigError for an engine not in `BUSY_ENGINES`, a share outside [0, 1], formats that sum
    to over 1 on the one matrix engine, or chips that the system lacks.
    """
    for engine, share in busy.items():
        if engine not in BUSY_ENGINES:
            raise ConfigError("busy", engine, f"one of {', '.join(BUSY_ENGINES)}")
        if not 0 <= share <= 1:
            raise ConfigError(f"busy {engine}", share, "0 to 1")
    products = sum(share for engine, share in busy.items() if engine.startswith("tensor"))
    if products > 1:
        expected = "at most 1 over all formats, which one engine multiplies"
        raise ConfigError("busy tensor", products, expected)
    chip = power.system.chip
    shares = {engine: np.array([share]) for engine, share in {**_AT_REST, **busy}.items()}
    wanted = wanted_watts(chip, shares)  # [1]
    slow = float(throttle_factor(chip, wanted, cap_watts=power.chip_cap_watts)[0])
    held = chip.idle_watts.value + (float(wanted[0]) - chip.idle_watts.value) / slow
    return PowerState(
        name=name,
        busy=dict(busy),
        wanted_watts_per_chip=float(wanted[0]),
        watts_per_chip=held,
        slow_factor=slow,
        facility=power.facility_watts(held * chips, chips=chips, season=season),
    )

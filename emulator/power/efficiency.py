"""Tokens per second and megawatt, on three bases of power.

PROVISIONED: the racks' power budget, before cooling, by which a hall is filled. DRAWN: the
utility's meter while the tokens are generated. ALL_IN: the planned utility power, cooling included,
as InferenceX divides; where unpublished, the provisioned watts at the worst day's PUE, marked so.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from emulator.errors import ConfigError
from emulator.power.system_power import SystemPower

WATTS_PER_MEGAWATT: Final = 1e6


class PowerBasis(StrEnum):
    """The watts that divide tokens; see the module."""

    PROVISIONED = "provisioned"
    DRAWN = "drawn"
    ALL_IN = "all-in"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRates:
    """Tokens per second of some chips together; raises ConfigError for a negative one."""

    output_tokens_per_s: float
    input_tokens_per_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("output_tokens_per_s", "input_tokens_per_s"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise ConfigError(name, value, "at least 0")

    @property
    def total_tokens_per_s(self) -> float:
        """Input and output."""
        return self.output_tokens_per_s + self.input_tokens_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerEfficiency:
    """Tokens/s/MW of each kind over one basis; `watts` is the divisor, `why` its source."""

    basis: PowerBasis
    watts: float
    why: str
    output: float
    input: float
    total: float


def tokens_per_megawatt(
    power: SystemPower, rates: TokenRates, *, chips: int, drawn_watts: float
) -> tuple[PowerEfficiency, ...]:
    """All three bases, in the order of `PowerBasis`, for `rates` of `chips` chips together.

    `drawn_watts` is at the utility's meter (`FacilityWatts.total_watts`). Raises ConfigError for
    chips that the system lacks, or watts that are not positive.
    """
    system = power.system
    if not 1 <= chips <= system.chips.count:
        raise ConfigError("chips", chips, f"1 to {system.chips.count}")
    if not 0 < drawn_watts < float("inf"):
        raise ConfigError("drawn_watts", drawn_watts, "above 0")
    all_in_watts, published = power.all_in_watts(chips)
    bases = (
        (PowerBasis.PROVISIONED, power.provisioned_watts(chips), "racks' budget, no cooling"),
        (PowerBasis.DRAWN, drawn_watts, "at the utility's meter, cooling included"),
        (
            PowerBasis.ALL_IN,
            all_in_watts,
            "published for this machine"
            if published
            else f"computed: provisioned x peak PUE {power.pue():g}",
        ),
    )
    return tuple(
        PowerEfficiency(
            basis=basis,
            watts=watts,
            why=why,
            output=rates.output_tokens_per_s / watts * WATTS_PER_MEGAWATT,
            input=rates.input_tokens_per_s / watts * WATTS_PER_MEGAWATT,
            total=rates.total_tokens_per_s / watts * WATTS_PER_MEGAWATT,
        )
        for basis, watts, why in bases
    )

"""What is asked of a plan."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from emulator.errors import ConfigError
from emulator.power.token_cost import Prices
from emulator.specs.system import SystemSpec
from loadgen.measures.slo import Slo
from serving.analysis.plan.night import Day
from serving.analysis.plan.plan_check import CheckTerms
from serving.analysis.plan.plan_demand import PlanDemand
from serving.analysis.steady_state.sweep import Sweep
from serving.traffic.engine_limits import BatchLimits


class Minimised(StrEnum):
    """The unit in which a plan's answer is the cheapest."""

    CHIPS = "chips"
    MACHINES = "machines"
    MW = "mw"
    USD = "usd"
    GCO2 = "gco2"


class LostPart(StrEnum):
    """What is lost at once."""

    CHIP = "chip"
    TRAY = "tray"
    MACHINE = "machine"

    def chips_of(self, system: SystemSpec) -> int:
        """How many."""
        return {
            LostPart.CHIP: 1,
            LostPart.TRAY: system.chips_per_tray.count,
            LostPart.MACHINE: system.chips.count,
        }[self]


_NEEDED: Final = {
    Minimised.USD: "prices: --price-hour or --price-chip-hour, --price-kwh, or --prices FILE",
    Minimised.GCO2: "the grid's carbon: --gco2-per-kwh, or grid_gco2_per_kwh in a file of --prices",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTerms:
    """Prefill policies to try, partitions to simulate at each size, and the search's seconds.

    `other_limits` are tried, beside those of the schedulers, where a setting is near the target.

    Raises ConfigError for no policy, and numbers that are not above 0.
    """

    policies: tuple[str, ...]
    other_limits: tuple[BatchLimits, ...] = ()
    tries: int
    budget_s: float = float("inf")

    def __post_init__(self) -> None:
        if not self.policies:
            raise ConfigError("prefill-policy", "", "at least one")
        for name in ("tries", "budget_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(name.removesuffix("_s"), getattr(self, name), "above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanQuestion:
    """A planning question; `assumptions` name the sources chosen for the machine's figures.

    `pools`: of prefill and decode are tried, too; `margins`: the answer's are simulated, in a part
    of the budget; `narrow_kv`: and what FP8 KV would save, if time is left. With `lose` what comes
    after such a loss keeps the target, too. The schedulers of `check` have the first of the
    policies. `grid_gco2_per_kwh` is at the utility's meter. Raises ConfigError for a unit to
    minimise that has no price.
    """

    sweep: Sweep
    demand: PlanDemand
    slo: Slo
    day: Day
    prices: Prices | None = None
    grid_gco2_per_kwh: float | None = None
    minimise: Minimised = Minimised.CHIPS
    lose: LostPart | None = None
    check: CheckTerms
    search: SearchTerms
    pools: bool = True
    margins: bool = True
    narrow_kv: bool = False
    assumptions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        priced = {Minimised.USD: self.prices, Minimised.GCO2: self.grid_gco2_per_kwh}
        if priced.get(self.minimise, 0) is None:
            raise ConfigError("minimise", self.minimise, _NEEDED[self.minimise])

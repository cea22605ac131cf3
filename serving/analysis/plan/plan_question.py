"""What is asked of a plan."""

from dataclasses import dataclass

from emulator.errors import ConfigError
from emulator.power.token_cost import Prices
from loadgen.measures.slo import Slo
from serving.analysis.plan.night import Day
from serving.analysis.plan.plan_check import CheckTerms
from serving.analysis.plan.plan_demand import PlanDemand
from serving.analysis.steady_state.sweep import Sweep


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTerms:
    """Prefill policies to try, partitions to simulate at each size, and the search's seconds.

    Raises ConfigError for no policy, and numbers that are not above 0.
    """

    policies: tuple[str, ...]
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
    of the budget. The schedulers of `check` have the first of the policies.
    """

    sweep: Sweep
    demand: PlanDemand
    slo: Slo
    day: Day
    prices: Prices | None = None
    check: CheckTerms
    search: SearchTerms
    pools: bool = True
    margins: bool = True
    assumptions: tuple[str, ...] = ()

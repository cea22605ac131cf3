"""What a setting costs in the unit that a plan minimises.

Before it is simulated its power is an estimate of the steady state, with full batches: about the
least that it draws.
"""

from typing import Final

from emulator.power.efficiency import WATTS_PER_MEGAWATT, TokenRates
from loadgen.records.plain_number import counted
from reporting.numbers import four_digits
from serving.analysis.plan.plan_bill import BilledFleet, fleet_cost, gco2_per_hour
from serving.analysis.plan.plan_options import Option
from serving.analysis.plan.plan_question import Minimised, PlanQuestion

Cost = tuple[float, int]
"""In the unit, then chips in service: of equal ones the fewest."""

LESS: Final = {
    Minimised.CHIPS: "with fewer chips",
    Minimised.MACHINES: "on fewer machines, or on as many with fewer chips",
    Minimised.MW: "with fewer megawatts",
    Minimised.USD: "for fewer dollars",
    Minimised.GCO2: "with less carbon",
}
COUNTED: Final = {
    Minimised.CHIPS: "chips in service",
    Minimised.MACHINES: "machines bought",
    Minimised.MW: "MW at the utility's meter at the peak, idle chips of the machines bought too",
    Minimised.USD: "dollars of an hour, of the machines bought and their energy over the day",
    Minimised.GCO2: "gCO2 of an hour, of the energy of the machines bought over the day",
}
_UNPRICED: Final = TokenRates(output_tokens_per_s=0.0)


def replicas_per_machine(question: PlanQuestion, option: Option) -> int:
    """Replicas, or units of pools, that a machine holds."""
    if option.is_pooled:
        return question.sweep.system.chips.count // option.replica_chips
    return option.candidate.replicas


def steady_watts(question: PlanQuestion, option: Option, requests_per_s: float) -> float:
    """Of all chips of a replica that serves so many, each with the energy of the fullest step."""
    system, point = question.sweep.system, option.point
    idle_watts = system.chip.idle_watts.value
    request_joules = system.chips.count * (point.chip_watts - idle_watts) / point.requests_per_s
    return option.replica_chips * idle_watts + requests_per_s * request_joules


def fleet_of(
    question: PlanQuestion, option: Option, replicas: int, busy_watts: float
) -> BilledFleet:
    """Whole machines with so many replicas; `busy_watts` of all chips of one at the peak."""
    system = question.sweep.system
    return BilledFleet(
        system=system,
        season=question.sweep.season,
        machines=-(-replicas // replicas_per_machine(question, option)),
        replicas=replicas,
        replica_chips=option.replica_chips,
        busy_watts=busy_watts,
        idle_chip_watts=system.chip.idle_watts.value,
    )


def cost_of(question: PlanQuestion, fleet: BilledFleet) -> Cost:
    """In the question's unit, as `COUNTED` says."""
    return _in_unit(question, fleet), fleet.chips_in_service


def _in_unit(question: PlanQuestion, fleet: BilledFleet) -> float:
    match question.minimise:
        case Minimised.CHIPS:
            return fleet.chips_in_service
        case Minimised.MACHINES:
            return fleet.machines
        case Minimised.MW:
            return fleet.peak_watts(fleet.chips) / WATTS_PER_MEGAWATT
    # Watts are a line of the load, so that the day's mean is at its mean load.
    load = question.day.mean_share
    watts = fleet.drawn_watts(replicas=fleet.replicas, load=load, chips=fleet.chips)
    if question.minimise is Minimised.GCO2:
        grams = gco2_per_hour(watts, question.grid_gco2_per_kwh)
        assert grams is not None  # the question has a grid
        return grams
    cost = fleet_cost(
        fleet.system, question.prices, _UNPRICED, chips=fleet.chips, drawn_watts=watts
    )
    assert cost is not None  # the question has prices
    return cost.dollars_per_hour


def cost_words(minimise: Minimised, cost: Cost) -> str:
    """As `0.0791 MW with 14 chips`."""
    each, chips = cost
    said = {
        Minimised.MACHINES: lambda: counted(round(each), "machine"),
        Minimised.MW: lambda: f"{each:,.4g} MW",
        Minimised.USD: lambda: f"${each:,.2f} an hour",
        Minimised.GCO2: lambda: f"{four_digits(each)} gCO2 an hour",
    }
    if minimise is Minimised.CHIPS:
        return f"{chips:,} chips"
    return f"{said[minimise]()} with {chips:,} chips"

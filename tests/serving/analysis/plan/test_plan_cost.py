"""What a plan minimises: costs by hand, and a search that finds the cheapest of what passes."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from emulator.power.efficiency import TokenRates
from emulator.power.system_power import SystemPower
from emulator.power.token_cost import Prices
from emulator.specs.partition import Partition
from serving.analysis.plan.night import night_of
from serving.analysis.plan.plan_bill import bill_of
from serving.analysis.plan.plan_cost import (
    cost_of,
    cost_words,
    fleet_of,
    replicas_per_machine,
    steady_watts,
)
from serving.analysis.plan.plan_options import NEAR, Option, OptionTerms, best_options
from serving.analysis.plan.plan_pools import partitions_of
from serving.analysis.plan.plan_question import Minimised, PlanQuestion
from serving.analysis.plan.plan_race import Race
from serving.analysis.plan.plan_search import search
from serving.analysis.plan.plan_setting import Setting
from serving.analysis.steady_state.partitions import PartitionCandidate
from serving.simulator import THIS_PROCESS
from tests.serving.analysis.plan.planned import QUESTION, question

PRICED = question(
    prices=Prices(system_hour_dollars=500.0, kwh_dollars=0.1), grid_gco2_per_kwh=400.0
)
TERMS = OptionTerms.of(QUESTION.sweep, QUESTION.demand, QUESTION.slo, seats=64)
BASE = best_options(
    each.option for each in partitions_of(TERMS, QUESTION.sweep.tasks(), pools=False)
)[0]
CHIPS = QUESTION.sweep.system.chips.count
IDLE = QUESTION.sweep.system.chip.idle_watts.value


def asked(minimise: Minimised) -> PlanQuestion:
    return replace(PRICED, minimise=minimise)


def option(chips: int, *, needs: int, watts: float = 300.0) -> Option:
    """Replicas of so many chips, of which the load takes `needs`; `watts` of a chip of a machine
    that serves as much as one of them.
    """
    rate_per_s = PRICED.demand.peak_rate_per_s / needs
    candidate = PartitionCandidate(
        partition=Partition(chips=chips, tp=1, ep=chips, lnc=2),
        replicas=CHIPS // chips,
        first_chip=0,
        kv_capacity_tokens=BASE.candidate.kv_capacity_tokens,
    )
    point = replace(
        BASE.point,
        candidate=candidate,
        requests_per_s=rate_per_s,
        chip_watts=IDLE + (watts - IDLE) * chips / CHIPS,
    )
    return replace(
        BASE,
        point=point,
        requests_per_s=rate_per_s,
        most_requests_per_s=rate_per_s,
        replicas=needs,
        meets=True,
    )


def test_a_machine_holds_as_many_units_of_pools_as_all_their_engines_leave_chips_for() -> None:
    alone = option(8, needs=1)
    two_for_prompts, three_that_decode = (
        replace(alone.candidate, replicas=engines) for engines in (2, 3)
    )
    point = replace(alone.point, candidate=three_that_decode, prefill=two_for_prompts)
    pooled = replace(alone, point=point)

    assert CHIPS == 144
    assert replicas_per_machine(PRICED, alone) == 144 // 8
    assert replicas_per_machine(PRICED, pooled) == 144 // (5 * 8)


class SureRace(Race):
    """In which a setting passes if it has the replicas that its option needs."""

    def run(self, settings: Sequence[Setting], *, first: bool = False) -> bool:
        del first
        through = [each for each in settings if each.replicas >= each.option.replicas]
        self.passed += through
        return bool(through)


def searched(minimise: Minimised, options: Sequence[Option]) -> SureRace:
    race = SureRace(asked(minimise), THIS_PROCESS, lambda _: None)
    race.options = tuple(options)
    search(race)
    return race


def cheapest(race: Race, options: Sequence[Option]) -> float:
    """Of all options with the replicas that they need."""
    return min(
        race.cost(Setting(option=each, policy="", replicas=each.replicas))[0] for each in options
    )


def test_a_fleet_costs_what_its_bill_says() -> None:
    fleet = fleet_of(PRICED, option(29, needs=5), 5, busy_watts=29 * 500.0)
    night = night_of(PRICED.day, replicas=5, replica_chips=29, bought_chips=fleet.machines * CHIPS)
    rates = TokenRates(output_tokens_per_s=1_000.0)
    grid = PRICED.grid_gco2_per_kwh
    bill = bill_of(fleet, night, rates, PRICED.prices, grid_gco2_per_kwh=grid)
    by_unit = {each: cost_of(asked(each), fleet) for each in Minimised}

    assert replicas_per_machine(PRICED, option(29, needs=5)) == 4
    assert by_unit[Minimised.CHIPS] == (145, 145)
    assert by_unit[Minimised.MACHINES] == (2, 145)
    # By hand: 145 chips at 500 W, the other 143 of two machines idle.
    mean_watts = (145 * 500.0 + 143 * IDLE) / 288
    facility = SystemPower(PRICED.sweep.system).facility_watts(mean_watts, chips=1)
    assert by_unit[Minimised.MW][0] == pytest.approx(288 * facility.total_watts / 1e6)
    assert by_unit[Minimised.MW][0] == pytest.approx(bill.peak_drawn_watts / 1e6)
    assert bill.day_cost is not None
    assert by_unit[Minimised.USD][0] == pytest.approx(bill.day_cost.dollars_per_hour)
    assert by_unit[Minimised.USD][0] == pytest.approx(1_000 + bill.mean_drawn_watts / 1e3 * 0.1)
    assert by_unit[Minimised.GCO2][0] == pytest.approx(bill.gco2_per_hour)
    assert bill.gco2_per_hour == pytest.approx(bill.mean_drawn_watts / 1e3 * 400)


def test_before_a_simulation_a_request_takes_the_energy_of_the_fullest_step() -> None:
    served = option(10, needs=4, watts=300.0)
    alone = PRICED.demand.peak_rate_per_s / 4

    assert steady_watts(PRICED, served, alone) == pytest.approx(10 * 300.0)
    assert steady_watts(PRICED, served, alone / 2) == pytest.approx(10 * (300.0 + IDLE) / 2)


def test_fewer_machines_may_have_more_chips() -> None:
    small = option(30, needs=9)  # four to a machine: 270 chips on three
    wide = option(72, needs=4)  # two to a machine: 288 chips on two
    by_chips = searched(Minimised.CHIPS, [small, wide]).best
    by_machines = searched(Minimised.MACHINES, [small, wide]).best

    assert by_chips is not None
    assert by_machines is not None
    assert (by_chips.chips, by_chips.option) == (270, small)
    assert (by_machines.chips, by_machines.option) == (288, wide)


@pytest.mark.parametrize("minimise", [Minimised.MW, Minimised.USD, Minimised.GCO2])
def test_what_draws_less_wins_with_more_chips(minimise: Minimised) -> None:
    hungry, frugal = option(4, needs=10, watts=900.0), option(6, needs=9, watts=250.0)
    race = searched(minimise, [hungry, frugal])

    assert searched(Minimised.CHIPS, [hungry, frugal]).best == race.fewest
    assert race.fewest is not None
    assert race.fewest.option == hungry
    assert race.best is not None
    assert race.best.option == frugal
    assert race.cost(race.best) < race.cost(race.fewest)
    assert race.best.chips > race.fewest.chips


def test_only_a_search_for_other_than_chips_goes_above_the_fewest() -> None:
    options = [option(4, needs=10, watts=900.0), option(6, needs=9, watts=250.0)]
    race = searched(Minimised.CHIPS, options)

    assert race.fewest is not None
    assert race.best == race.fewest
    assert race.settings(race.fewest.chips, 6 * race.fewest.chips) == []


OPTIONS = st.builds(
    option,
    st.integers(1, 72),
    needs=st.integers(1, 12),
    watts=st.floats(IDLE + 1.0, 1_000.0),
)


@pytest.mark.long
@given(options=st.lists(OPTIONS, min_size=1, max_size=4), minimise=st.sampled_from(Minimised))
def test_no_option_with_what_it_needs_is_clearly_cheaper(
    options: list[Option], minimise: Minimised
) -> None:
    race = searched(minimise, options)
    likely = min(each.chips for each in options)
    reached = [each for each in options if each.chips <= 6 * likely]

    assert race.best is not None
    found, least = race.cost(race.best)[0], cheapest(race, reached)
    assert found <= NEAR * least + (1 if minimise is Minimised.CHIPS else 0)


@given(chips=st.integers(1, 144), replicas=st.integers(1, 40), minimise=st.sampled_from(Minimised))
def test_one_replica_more_never_costs_less(chips: int, replicas: int, minimise: Minimised) -> None:
    race = Race(asked(minimise), THIS_PROCESS, lambda _: None)
    served = option(chips, needs=replicas)
    costs = [
        race.cost(Setting(option=served, policy="", replicas=count))
        for count in (replicas, replicas + 1)
    ]

    assert costs[0][0] <= costs[1][0] * (1 + 1e-9)
    assert costs[0][1] < costs[1][1]


@pytest.mark.parametrize(
    ("minimise", "needed"), [(Minimised.USD, "--price-kwh"), (Minimised.GCO2, "--gco2-per-kwh")]
)
def test_a_unit_without_its_price_is_refused_in_one_line(minimise: Minimised, needed: str) -> None:
    with pytest.raises(ConfigError, match=f"minimise={minimise}: expected .*{needed}") as refusal:
        question(minimise=minimise)

    assert "\n" not in str(refusal.value)


def test_a_cost_is_said_in_its_unit() -> None:
    assert cost_words(Minimised.CHIPS, (14, 14)) == "14 chips"
    assert cost_words(Minimised.MACHINES, (1, 14)) == "1 machine with 14 chips"
    assert cost_words(Minimised.MW, (0.07904, 14)) == "0.07904 MW with 14 chips"
    assert cost_words(Minimised.USD, (506.294, 14)) == "$506.29 an hour with 14 chips"
    assert cost_words(Minimised.GCO2, (31_772.0, 14)) == "31,772 gCO2 an hour with 14 chips"

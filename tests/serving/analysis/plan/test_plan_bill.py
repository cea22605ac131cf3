"""What a plan draws and costs, against sums made by hand."""

import pytest

from emulator.power.efficiency import TokenRates
from emulator.power.system_power import SystemPower
from emulator.power.token_cost import Prices
from emulator.specs.rack_power import Season
from emulator.specs.systems import system_by_name
from serving.analysis.plan.night import HOURS, Day, Night, night_of
from serving.analysis.plan.plan_bill import BilledFleet, bill_of

SYSTEM = system_by_name("trn3-nl72x2")
IDLE = SYSTEM.chip.idle_watts.value
FLEET = BilledFleet(
    system=SYSTEM,
    season=Season.PEAK,
    machines=2,
    replicas=40,
    replica_chips=4,
    busy_watts=4 * 500.0,
    idle_chip_watts=IDLE,
)
RATES = TokenRates(output_tokens_per_s=10_000.0, input_tokens_per_s=40_000.0)
HALF_DAY = Day(
    source="by hand",
    mean_shares=(1.0,) * 12 + (0.5,) * 12,
    busiest_shares=(1.0,) * 12 + (0.5,) * 12,
)


def night_of_fleet(fleet: BilledFleet, day: Day = HALF_DAY) -> Night:
    return night_of(
        day,
        replicas=fleet.replicas,
        replica_chips=fleet.replica_chips,
        bought_chips=fleet.chips,
    )


def test_the_watts_at_the_peak_are_those_of_both_machines() -> None:
    # 160 of 288 chips at 500 W, the others idle; both machines alike.
    chip_watts = 160 * 500.0 + 128 * IDLE
    facility = SystemPower(SYSTEM).facility_watts(chip_watts / 2, chips=144)

    assert FLEET.peak_watts(FLEET.chips) == pytest.approx(2 * facility.total_watts)


def test_a_day_is_the_sum_of_its_hours() -> None:
    night = night_of_fleet(FLEET)
    bill = bill_of(FLEET, night, RATES, None)
    # Half the hours 40 replicas at their peak's load, the other half 20 of them, at that load too.
    twenty = 80 * 500.0 + 208 * IDLE
    half = 2 * SystemPower(SYSTEM).facility_watts(twenty / 2, chips=144).total_watts

    assert bill.mean_drawn_watts == pytest.approx((bill.peak_drawn_watts + half) / 2)
    assert bill.serving_mwh_per_day == pytest.approx(bill.mean_drawn_watts * HOURS / 1e6)
    assert night.free_chip_hours == 12 * 20 * 4
    assert bill.freed_mwh_per_day == pytest.approx(163_339 / 144 * 960 / 1e6)
    assert bill.provisioned_watts == pytest.approx(2 * 163_339)


def test_an_hour_whose_mean_is_below_its_busiest_draws_by_its_mean() -> None:
    # 20 of 40 replicas stay for the busiest minutes, and have half of their load on average.
    uneven = Day(source="by hand", mean_shares=(0.25,) * 24, busiest_shares=(0.5,) * 24)
    chip_watts = 80 * (500.0 + IDLE) / 2 + 208 * IDLE
    facility = SystemPower(SYSTEM).facility_watts(chip_watts / 2, chips=144)
    bill = bill_of(FLEET, night_of_fleet(FLEET, uneven), RATES, None)

    assert bill.mean_drawn_watts == pytest.approx(2 * facility.total_watts)


def test_dollars_by_hand() -> None:
    prices = Prices(system_hour_dollars=500.0, kwh_dollars=0.1)
    bill = bill_of(FLEET, night_of_fleet(FLEET), RATES, prices)
    assert bill.peak_cost is not None
    assert bill.day_cost is not None
    assert bill.shared_day_cost is not None
    energy = bill.peak_drawn_watts / 1e3 * 0.1

    assert bill.peak_cost.machine_dollars_per_hour == pytest.approx(1_000.0)
    assert bill.peak_cost.energy_dollars_per_hour == pytest.approx(energy)
    assert bill.peak_cost.dollars_per_million_output == pytest.approx((1_000 + energy) / 36)
    assert bill.peak_cost.dollars_per_million_input == pytest.approx((1_000 + energy) / 144)
    assert bill.peak_cost.dollars_per_million_total == pytest.approx((1_000 + energy) / 180)
    # Over the day three quarters of the tokens are made, for the same machines.
    day_energy = bill.mean_drawn_watts / 1e3 * 0.1
    assert bill.day_cost.dollars_per_million_output == pytest.approx((1_000 + day_energy) / 27)
    assert bill.shared_day_cost.machine_dollars_per_hour == pytest.approx(500 * 160 / 144)


def test_a_price_of_chips_is_a_price_of_the_machine_by_its_chips() -> None:
    night = night_of_fleet(FLEET)
    by_chip = bill_of(FLEET, night, RATES, Prices(chip_hour_dollars=3.0))
    by_machine = bill_of(FLEET, night, RATES, Prices(system_hour_dollars=3.0 * 144))

    assert by_chip.day_cost == by_machine.day_cost


def test_without_prices_there_are_no_dollars() -> None:
    bill = bill_of(FLEET, night_of_fleet(FLEET), RATES, None)

    assert (bill.peak_cost, bill.day_cost, bill.shared_day_cost) == (None, None, None)


def test_tokens_by_the_megawatt_are_of_all_machines() -> None:
    bill = bill_of(FLEET, night_of_fleet(FLEET), RATES, None)
    provisioned, drawn, _ = bill.per_megawatt

    assert provisioned.output == pytest.approx(10_000 / (2 * 163_339) * 1e6)
    assert drawn.total == pytest.approx(50_000 / bill.peak_drawn_watts * 1e6)

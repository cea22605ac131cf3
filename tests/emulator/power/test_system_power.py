from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from emulator.power.system_power import SystemPower
from emulator.specs.catalog.rack_powers import RACK_POWERS
from emulator.specs.rack_power import Cooling, Season
from emulator.specs.system import SystemSpec
from emulator.specs.systems import SYSTEMS, system_by_name
from tests.emulator.power.made_up_rack import ROUND, a_figure, over_budget, round_system

POWER = SystemPower(round_system())
TIGHT = SystemPower(round_system(provisioned_watts=144 * 1_225))
AIR = SystemPower(round_system(replace(ROUND, cooling=Cooling.AIR)))


def with_parts(name: str) -> SystemSpec:
    return replace(system_by_name(name), power=RACK_POWERS[name])


def test_the_parts_of_a_liquid_cooled_system_at_full_power_by_hand() -> None:
    """Per chip: CPU 25, tray 50, switches 100, fans 0.1 x 50, pumps 10: 1,190 W behind 80 %."""
    watts = POWER.facility_watts(144_000, chips=144)

    assert dict(watts.parts()) == pytest.approx(
        {
            "chip_watts": 144_000,
            "cpu_watts": 3_600,
            "tray_watts": 7_200,
            "switch_watts": 14_400,
            "fan_watts": 720,
            "pump_watts": 1_440,
            "conversion_watts": 144 * 297.5,
            "overhead_watts": 0,
            "cooling_watts": 144 * 1_487.5 / 2,
        }
    )
    assert watts.it_watts == pytest.approx(144 * 1_487.5)
    assert watts.total_watts == pytest.approx(144 * 1_487.5 * 1.5)
    assert watts.provisioned_watts == 288_000


def test_idle_chips_leave_each_part_at_its_idle_share() -> None:
    """Per chip: 200 + 12.5 + 25 + 100 + 2.5 + 10 = 350 W behind 80 %."""
    watts = POWER.facility_watts(144 * 200, chips=144)

    assert watts.it_watts == pytest.approx(144 * 437.5)
    assert (watts.cpu_watts, watts.tray_watts) == pytest.approx((1_800, 3_600))


def test_fans_carry_away_everything_where_nothing_else_does() -> None:
    watts = AIR.facility_watts(144_000, chips=144)

    assert watts.fan_watts == pytest.approx(0.1 * (144_000 + 3_600 + 7_200 + 14_400))


def test_a_part_of_the_system_has_its_share_of_everything() -> None:
    whole, tray = (POWER.facility_watts(chips * 700.0, chips=chips) for chips in (144, 4))

    for (name, all_watts), (_, watts) in zip(whole.parts(), tray.parts(), strict=True):
        assert watts == pytest.approx(all_watts / 36), name
    assert tray.provisioned_watts == pytest.approx(8_000)


def test_without_parts_the_rest_of_the_provisioned_power_is_one_overhead() -> None:
    power = SystemPower(round_system(power=None, provisioned_watts=163_339))
    watts = power.facility_watts(2_000, chips=4)

    assert watts.overhead_watts == pytest.approx(4 * (163_339 / 144 - 1_000))
    assert watts.total_watts == pytest.approx((2_000 + 4 * 134.2986) * 1.5, abs=0.01)
    assert {power.pue(season) for season in Season} == {1.5}


def test_pue_falls_from_the_peak_with_the_season() -> None:
    assert [POWER.pue(season) for season in Season] == [1.5, 1.25, 1.125, 1.0]
    winter = POWER.facility_watts(144_000, chips=144, season=Season.WINTER)
    assert winter.cooling_watts == 0
    assert winter.it_watts == pytest.approx(POWER.facility_watts(144_000, chips=144).it_watts)


@pytest.mark.parametrize("name", sorted(RACK_POWERS.keys() & SYSTEMS.keys()))
def test_no_season_of_a_catalog_system_is_worse_than_the_one_before_it(name: str) -> None:
    power = SystemPower(with_parts(name))
    pues = [power.pue(season) for season in Season]

    assert pues == sorted(pues, reverse=True)
    assert pues[0] == power.system.pue.value
    assert pues[-1] > 1


def test_a_rack_at_the_cap_draws_its_budget_and_one_above_it_is_over() -> None:
    """From 437.5 W a chip at 200 W to 1,487.5 at 1,000: 1,225 is three quarters, at 800 W."""
    assert TIGHT.chip_cap_watts == pytest.approx(800)
    at_cap = TIGHT.facility_watts(144 * 800.0, chips=144)
    above = TIGHT.facility_watts(144 * 801.0, chips=144)

    assert at_cap.it_watts == pytest.approx(at_cap.provisioned_watts)
    assert (over_budget(at_cap), over_budget(above)) == (False, True)
    assert POWER.chip_cap_watts == 1_000


def test_a_cluster_of_systems_has_the_same_racks_more_often() -> None:
    one, three = SystemPower(TIGHT.system), SystemPower(TIGHT.system.cluster(3))

    assert three.chip_cap_watts == pytest.approx(one.chip_cap_watts)
    whole = three.facility_watts(432 * 700.0, chips=432)
    assert whole.total_watts == pytest.approx(
        3 * one.facility_watts(144 * 700.0, chips=144).total_watts
    )


chip_watts = st.floats(200, 1_000)


@given(chip_watts, st.integers(1, 144), st.sampled_from(Season), st.sampled_from([POWER, AIR]))
def test_nothing_is_lost_between_the_meter_and_the_parts(
    each: float, chips: int, season: Season, power: SystemPower
) -> None:
    watts = power.facility_watts(each * chips, chips=chips, season=season)

    assert sum(dict(watts.parts()).values()) == pytest.approx(watts.total_watts)
    assert watts.total_watts == pytest.approx(watts.it_watts * power.pue(season))
    behind = watts.it_watts - watts.conversion_watts
    assert behind == pytest.approx(0.8 * watts.it_watts)
    assert all(part >= 0 for _, part in watts.parts())


@given(chip_watts, chip_watts, st.sampled_from([POWER, AIR, TIGHT]))
def test_busier_chips_never_draw_less_at_the_meter(
    first: float, second: float, power: SystemPower
) -> None:
    low, high = sorted((first, second))

    less = power.facility_watts(144 * low, chips=144).total_watts
    assert less <= power.facility_watts(144 * high, chips=144).total_watts


def test_a_busy_dgx_h100_draws_what_was_measured() -> None:
    """8.4 kW at most, with GPUs near full utilisation, of 10.2 kW rated (arXiv 2412.08602)."""
    power = SystemPower(with_parts("dgx-h100"))
    busy = power.facility_watts(8 * 700, chips=8)

    assert busy.it_watts == pytest.approx(8_400, rel=0.10)
    assert busy.it_watts < 10_200


def test_a_gb200_rack_at_full_power_fits_its_power_shelves() -> None:
    """Its 18 trays of 6,667 W, NVIDIA's figure, are 120 of the 132 kW."""
    power = SystemPower(with_parts("gb200-nvl72"))
    full = power.facility_watts(72 * 1_200, chips=72)

    assert full.chip_watts + full.cpu_watts + full.tray_watts == pytest.approx(18 * 6_667)
    assert not over_budget(full)


def test_a_trainium3_at_1000_watts_does_not_fit_the_power_that_its_racks_are_said_to_have() -> None:
    """163,339 W over 144 chips leave 134 W beside each; switches and hosts alone take more."""
    power = SystemPower(with_parts("trn3-nl72x2"))

    assert over_budget(power.facility_watts(144_000, chips=144))
    assert 800 < power.chip_cap_watts < 1_000
    twice = replace(power.system, provisioned_watts=a_figure(2 * 163_339))
    assert SystemPower(twice).chip_cap_watts == 1_000


@pytest.mark.parametrize("name", sorted(RACK_POWERS.keys() & SYSTEMS.keys()))
def test_every_catalog_system_can_at_least_idle_and_work(name: str) -> None:
    power = SystemPower(with_parts(name))
    chip = power.system.chip

    assert chip.idle_watts.value < power.chip_cap_watts <= chip.budget_watts.value


def test_all_in_watts_are_the_published_ones_or_say_that_they_are_computed() -> None:
    published = replace(POWER.system, all_in_watts_per_chip=a_figure(1_730))

    assert SystemPower(published).all_in_watts(4) == (4 * 1_730, True)
    unpublished = replace(POWER.system, all_in_watts_per_chip=None)
    assert SystemPower(unpublished).all_in_watts(4) == (4 * 2_000 * 1.5, False)


def test_nonsense_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match="chips=0: expected 1 to 144"):
        POWER.facility_watts(0, chips=0)
    with pytest.raises(ConfigError, match="chips=145"):
        POWER.facility_watts(0, chips=145)
    with pytest.raises(ConfigError, match="chip_watts_sum=-1"):
        POWER.facility_watts(-1, chips=1)
    heavy = replace(ROUND, switch_watts=a_figure(200_000))
    with pytest.raises(ConfigError, match="provisioned_watts"):
        SystemPower(round_system(heavy, provisioned_watts=144_001))

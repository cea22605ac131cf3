from dataclasses import replace

import pytest

from emulator.errors import ConfigError
from emulator.specs.catalog.rack_powers import RACK_POWERS, rack_power_of
from emulator.specs.rack_power import Cooling, Season
from emulator.specs.systems import SYSTEMS
from tests.emulator.power.made_up_rack import ROUND, a_figure


def test_seasons_are_found_by_name() -> None:
    assert [ROUND.overhead_in(season).value for season in Season] == [1, 0.5, 0.25, 0]
    assert dict(ROUND.figures())["spring_autumn_overhead"].value == 0.25


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cpu_watts", -1),
        ("tray_idle_share", 1.1),
        ("fan_share", 2),
        ("conversion_efficiency", 0),
        ("conversion_efficiency", 1.01),
    ],
)
def test_a_figure_that_cannot_be_is_refused_by_its_name(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{field}={value}"):
        replace(ROUND, **{field: a_figure(value)})


def test_seasons_are_all_there_once_and_parts_of_the_peak() -> None:
    with pytest.raises(ConfigError, match="each season once"):
        replace(ROUND, season_overhead=ROUND.season_overhead[:3])
    with pytest.raises(ConfigError, match="each season once"):
        replace(ROUND, season_overhead=(*ROUND.season_overhead, ROUND.season_overhead[0]))
    half = ((Season.PEAK, a_figure(0.5)), *ROUND.season_overhead[1:])
    with pytest.raises(ConfigError, match="1 at the peak"):
        replace(ROUND, season_overhead=half)


@pytest.mark.parametrize("name", RACK_POWERS)
def test_every_figure_of_every_system_is_sourced(name: str) -> None:
    for label, figure in RACK_POWERS[name].figures():
        assert len(figure.source) > len("assumed: "), label
        assert figure.unit in {"W", "share"}


def test_every_system_of_the_catalog_has_a_rack_power() -> None:
    assert {name for name in SYSTEMS if rack_power_of(name) is None} == set()
    assert rack_power_of("a system that nobody has counted") is None


def test_air_cooled_systems_have_no_pumps_and_liquid_cooled_ones_do() -> None:
    for name, power in RACK_POWERS.items():
        assert (power.pump_watts.value > 0) == (power.cooling is Cooling.LIQUID), name


def test_a_gb200_tray_idles_at_what_nvidia_says() -> None:
    """1,000 W: 4 GPUs at 200 W, 2 Graces at 50 W, 100 W for the rest."""
    power = RACK_POWERS["gb200-nvl72"]
    cpus = 2 * power.cpu_watts.value * power.cpu_idle_share.value
    rest = power.tray_watts.value / 18 * power.tray_idle_share.value

    assert 4 * 200 + cpus + rest == pytest.approx(1_000)

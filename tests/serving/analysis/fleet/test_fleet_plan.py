from pathlib import Path

import numpy as np
import pytest

from emulator.errors import ConfigError
from emulator.power.system_power import SystemPower
from emulator.specs.rack_power import Season
from emulator.specs.systems import system_by_name
from serving.analysis.fleet.fleet_plan import FleetWeather, read_fleet_plan

RAINIER = Path("deploy/fleets/rainier.toml")
SMALL = """
name = "small"
source = "by hand"
weather.mild = { season = "winter", source = "assumed" }
traffic = { model = "gpt-oss-20b", slo = "ttft=1s", source = "assumed" }
[[buildings]]
name = "b"
count = 2
weather = "mild"
cap_mw = 1.5
source = "assumed"
rows = [{ system = "trn2-ultraserver", machines = 3, hot_spares = 1 }]
"""


def test_rainier_is_half_a_million_chips_in_thirty_buildings() -> None:
    plan = read_fleet_plan(RAINIER)

    assert len({name for name, _, _ in plan.each_row()}) == 30
    chips = {name: system_by_name(name).chips.count for name in plan.systems}
    in_all = sum(row.machines * chips[row.system] for _, _, row in plan.each_row())
    assert in_all == pytest.approx(500_000, rel=0.002)
    assert plan.systems == ("trn2-ultraserver", "trn3-nl72x2")
    assert all(failure.source and failure.repair_source for failure in plan.failures)


def test_buildings_that_are_alike_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(SMALL)

    plan = read_fleet_plan(path)

    assert [name for name, _, _ in plan.each_row()] == ["b 1", "b 2"]
    assert plan.machines == 6
    assert plan.buildings[0].rows[0].slots == 2


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('weather = "mild"', 'weather = "hot"', "weather=hot: expected one of mild"),
        ("machines = 3", "machines = 1", "machines=1: expected more than the row's spares"),
        ("machines = 3", "machines = 'x'", "Expected `int`, got `str`"),
        ("machines = 3", "machine = 3", "unknown field `machine`"),
        ('"trn2-ultraserver"', '"trn9"', "system=trn9: expected one of "),
        ("cap_mw = 1.5", "cap_mw = 0.0", "cap_mw=0.0: expected above 0"),
        ("cap_mw = 1.5", "cap_mw = [1.0, 2.0]", "cap_mw=2 values: expected one, 24"),
        ("cap_mw = 1.5", "peak_percent = 0", "peak_percent=0.0: expected above 0, at most 200"),
        ('season = "winter"', "celsius = [3.0]", "pue_by_celsius=(): expected beside celsius"),
        ('season = "winter", ', "", "expected either a season or celsius"),
        ('name = "small"', "name = small", "expected TOML: "),
        ("count = 2", "count = 0", "count=0: expected 1 to 1000 buildings"),
    ],
)
def test_a_wrong_entry_is_refused_in_a_line(
    before: str, after: str, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "fleet.toml"
    assert before in SMALL
    path.write_text(SMALL.replace(before, after))

    with pytest.raises(ConfigError) as refused:
        read_fleet_plan(path)

    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a file to read"):
        read_fleet_plan(tmp_path / "none.toml")


def test_pue_follows_the_degrees_of_each_hour() -> None:
    by_hour = tuple(float(hour) for hour in range(24))
    weather = FleetWeather(source="-", celsius=by_hour, pue_by_celsius=((0.0, 1.0), (20.0, 1.2)))
    system = system_by_name("trn2-ultraserver")

    found = weather.pue(system, first_hour=22, hours=5)

    assert found == pytest.approx([1.2, 1.2, 1.0, 1.01, 1.02])


def test_a_season_is_the_catalogs() -> None:
    system = system_by_name("trn3-nl72x2")

    found = FleetWeather(source="-", season=Season.WINTER).pue(system, first_hour=0, hours=2)

    assert (found == np.full(2, SystemPower(system).pue(Season.WINTER))).all()

"""How a plan becomes rows, and rows a fleet."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from emulator.errors import ConfigError
from emulator.specs.systems import system_by_name
from serving.analysis.fleet.fleet_chart import fleet_chart
from serving.analysis.fleet.fleet_plan import (
    FleetBuilding,
    FleetPlan,
    FleetTraffic,
    FleetWeather,
)
from serving.analysis.fleet.virtual_fleet import (
    FleetQuestion,
    VirtualFleet,
    row_tasks,
    walked_rows,
)
from serving.simulator import SimulationWorkers
from tests.serving.analysis.day.days import HANDOVER, machine
from tests.serving.analysis.fleet.fleets import CHIP_FAILS, HOURS, question, row

WALKABLE = cast("Any", SimpleNamespace(machine=machine(), handover=HANDOVER))


def asked(policy: str = "fixed:1", *, length_h: float = HOURS, samples: int = 0) -> FleetQuestion:
    """Two capped buildings of two rows each, and one of a row without a cap."""
    plan = FleetPlan(
        name="three buildings",
        source="by hand",
        traffic=FleetTraffic(source="-", model="-", slo="-", peak_percent=50.0),
        weather={
            "warm": FleetWeather(
                source="-",
                celsius=tuple(float(hour) for hour in range(24)),
                pue_by_celsius=((0.0, 1.0), (10.0, 1.5)),
            )
        },
        buildings=(
            FleetBuilding(
                name="pair",
                count=2,
                weather="warm",
                rows=(row(6, hot=1), row(2)),
                cap_mw=8.0,
                source="-",
            ),
            FleetBuilding(
                name="free", weather="warm", rows=(row(3),), source="-", peak_percent=20.0
            ),
        ),
        failures=(CHIP_FAILS,),
    )
    sweep = SimpleNamespace(system=system_by_name("trn3-nl72x2"))
    days = SimpleNamespace(question=question(policy, length_h=length_h), sweep=sweep)
    settings = cast("Any", days)
    return FleetQuestion(plan=plan, settings={"trn3-nl72x2": settings}, samples=samples)


def fleet(workers: int = 1) -> VirtualFleet:
    asking = asked()
    walkable = {"trn3-nl72x2": WALKABLE}
    rows = walked_rows(asking, walkable, workers=SimulationWorkers(workers))
    return VirtualFleet(question=asking, walkable=walkable, rows=rows, sampled=None)


def test_rows_are_numbered_and_share_their_buildings_power() -> None:
    tasks = row_tasks(asked())

    assert [task.building for task in tasks] == ["pair 1", "pair 1", "pair 2", "pair 2", "free"]
    assert [task.first_machine for task in tasks] == [0, 6, 8, 14, 16]
    assert [task.peak_share for task in tasks] == [0.5, 0.5, 0.5, 0.5, 0.2]
    caps = [None if task.cap_watts is None else task.cap_watts.tolist() for task in tasks]
    assert caps == [[6e6] * HOURS, [2e6] * HOURS, [6e6] * HOURS, [2e6] * HOURS, None]
    assert tasks[0].pue == pytest.approx([1.0, 1.05, 1.1, 1.15, 1.2, 1.25])


def test_buildings_sum_to_the_fleet() -> None:
    found = fleet()

    everything = found.everything
    assert [each.name for each in found.buildings] == ["pair 1", "pair 2", "free"]
    for name in (
        "machines",
        "chips",
        "arrived",
        "served",
        "failures",
        "energy_mwh",
        "paused_hours",
    ):
        total = sum(getattr(each, name) for each in found.buildings)
        assert getattr(everything, name) == pytest.approx(total, rel=1e-12)
    assert everything.cap_watts is None
    uses = np.sum(list(everything.chip_uses().values()), axis=0)
    assert uses == pytest.approx(float(everything.chips))


def test_who_walks_a_row_does_not_change_it() -> None:
    one, three = fleet(1), fleet(3)

    for row_of_one, row_of_three in zip(one.rows, three.rows, strict=True):
        assert row_of_one.task.first_machine == row_of_three.task.first_machine
        assert (row_of_one.meter_watts == row_of_three.meter_watts).all()
        assert (row_of_one.kept == row_of_three.kept).all()


def test_buildings_that_are_alike_have_their_own_failures() -> None:
    first, second, _ = fleet().buildings

    assert (first.rows[0].duty.out != second.rows[0].duty.out).any()


@pytest.mark.long
def test_a_picture_has_every_building() -> None:
    drawn = fleet_chart(fleet()).to_json()

    assert all(f'"{name}"' in drawn for name in ("pair 1", "pair 2", "free", "out of service"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"samples": -1}, "sample=-1: expected from 0 on"),
        ({"policy": "oracle"}, "policy=oracle: expected a policy that need not know the day"),
        ({"length_h": 1.5}, "trace=1.5 hours: expected whole hours"),
    ],
)
def test_a_wrong_question_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        asked(**changes)

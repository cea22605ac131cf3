"""Small fleets whose weeks can be computed by hand, on the machines of the days' tests."""

from typing import Any

import numpy as np

from serving.analysis.day.day_comparison import DayQuestion
from serving.analysis.day.day_demand import WalkTerms
from serving.analysis.day.day_trace import DayTrace
from serving.analysis.fleet.fleet_plan import FailureClass, FleetRow
from serving.analysis.fleet.row_week import RowTask, RowWeek, row_walker
from tests.serving.analysis.day.days import HANDOVER, MONDAY, machine

HOURS = 6
TRACE = DayTrace.hourly(
    np.array([900.0, 300.0, 100.0, 100.0, 500.0, 900.0]), source="by hand", begins=MONDAY
)
CHIP_FAILS = FailureClass(
    name="chip", per="chip", mtbf_hours=1_000.0, repair_hours=0.5, source="-", repair_source="-"
)


def row(machines: int, *, hot: int = 0, cold: int = 0) -> FleetRow:
    return FleetRow(system="trn3-nl72x2", machines=machines, hot_spares=hot, cold_spares=cold)


def question(policy: str = "never", *, length_h: float = HOURS) -> DayQuestion:
    return DayQuestion(
        trace=TRACE,
        begin_s=0.0,
        length_s=length_h * 3_600,
        policies=(policy,),
        peak_shares=(0.5,),
        terms=WalkTerms(seed=3),
    )


def task(of: FleetRow, **changes: Any) -> RowTask:
    fields: dict[str, Any] = {
        "building": "one",
        "row": of,
        "first_machine": 0,
        "peak_share": 0.5,
        "pue": np.full(HOURS, 1.25),
        "cap_watts": None,
        "failures": (),
    }
    return RowTask(**(fields | changes))


def week(of: FleetRow, policy: str = "never", **changes: Any) -> RowWeek:
    walker = row_walker(machine(), HANDOVER, question(policy))
    return walker.row_week(task(of, **changes))

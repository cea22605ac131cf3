"""What each machine of a row is for: working, ready as a hot spare, off, or out of service.

Failures are seen at each look: hot spares take over then, cold ones at the next full hour. How many
machines a power cap can hold is decided by the hour.
"""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from serving.analysis.fleet.fleet_plan import FleetRow

Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowDuty:
    """Machines in each look, [looks] each, which sum to the row's; see `by_interval`.

    Attributes:
        working: they serve and train.
        hot: idle spares.
        off: cold spares.
        shed: off, as the power cap holds no more.
        out: under repair.
    """

    working: Int64s
    hot: Int64s
    off: Int64s
    shed: Int64s
    out: Int64s

    def by_interval(self, look_intervals: int) -> "RowDuty":
        """The same in each interval, of which a look is so many, [intervals] each."""
        columns = {each.name: getattr(self, each.name) for each in fields(self)}
        return RowDuty(**{name: np.repeat(of, look_intervals) for name, of in columns.items()})


def row_duty(row: FleetRow, out: Int64s, limit: Int64s, *, looks_per_hour: int) -> RowDuty:
    """By the machines `out` in each look, [looks], and how many may work in each hour, [hours]."""
    up = row.machines - out
    hour = np.arange(len(out)) // looks_per_hour
    ready = up[hour * looks_per_hour]  # as the hour began
    stays_off = np.clip(ready - row.slots - row.hot_spares, 0, row.cold_spares)
    off = np.minimum(stays_off, up)
    on = up - off
    needed = np.minimum(on, row.slots)
    working = np.minimum(needed, limit[hour])
    return RowDuty(working=working, hot=on - needed, off=off, shed=needed - working, out=out)

"""How long the requests that find a queue in a walk wait: its queue is a fluid, served in order."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving.analysis.day.day_walk import DayWalk
from serving.analysis.day.fluid_queue import queue_step
from serving.analysis.day.partition_curve import GroupCurve

Float64s = NDArray[np.float64]
Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LateWaits:
    """A walk's requests that find a queue, those of a part of an interval together, [parts].

    `waits_s` [2, parts]: of the first one of a part and of the last one; between them they grow or
    fall in a straight line.
    """

    intervals: Int64s
    requests: Float64s
    waits_s: Float64s

    @classmethod
    def of(cls, walk: DayWalk, curve: GroupCurve) -> "LateWaits":
        """A queue is served at the rate of the part in which a request comes."""
        found: list[tuple[float, float, float, float]] = []
        waiting = np.zeros(1)
        for number, times in enumerate(walk.times):
            arrived = float(walk.demand.arrivals[number])
            for share, groups in times.shares:
                per_s = float(curve.saturated_at(groups)) * groups
                most = np.array([per_s * share * walk.demand.interval_s])
                _, left, those = queue_step(waiting, arrived * share, most)
                if those[0] > 0:
                    found.append((number, those[0], waiting[0] / per_s, left[0] / per_s))
                waiting = left
        intervals, requests, first_s, last_s = np.array(found, dtype=np.float64).reshape(-1, 4).T
        return cls(
            intervals=intervals.astype(np.int64),
            requests=requests,
            waits_s=np.stack([first_s, last_s]),
        )

    def within(self, begin: int, end: int) -> "LateWaits":
        """Of the intervals from `begin` to before `end`, counted from `begin`."""
        kept = (self.intervals >= begin) & (self.intervals < end)
        return LateWaits(
            intervals=self.intervals[kept] - begin,
            requests=self.requests[kept],
            waits_s=self.waits_s[:, kept],
        )

    def sliced(self, slices: int) -> Float64s:
        """Mean waits of equal slices of each part's requests, [slices, parts]."""
        first_s, last_s = self.waits_s
        middles = (np.arange(slices) + 0.5) / slices
        found: Float64s = first_s + middles[:, None] * (last_s - first_s)
        return found

"""What a group of one engine serves, by how many of the engine's groups serve with it.

All ranks of an engine step together and its experts lie on all chips that serve, so that a group's
rate depends on the others. Between two simulated numbers of groups figures are mixed at the same
share of what a group then can serve at all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from emulator.arrays import Float64s
from emulator.errors import ConfigError
from serving.analysis.day.replica_curve import ReplicaCurve
from serving.analysis.day.replica_run import RatePoint


@dataclass(frozen=True, kw_only=True)
class PartitionCurve:
    """`curves` of one group while `serving` groups serve, by ascending numbers; the last of all.

    Has what a `ReplicaCurve` has. Raises ConfigError for numbers that do not ascend from 1 on, or
    not one for each curve.
    """

    serving: tuple[int, ...]
    curves: tuple[ReplicaCurve, ...]

    def __post_init__(self) -> None:
        ascend = list(self.serving) == sorted({0, *self.serving})[1:]
        if not ascend or not self.serving or len(self.serving) != len(self.curves):
            raise ConfigError("serving", self.serving, "ascending numbers of groups from 1 on")

    @property
    def _whole(self) -> ReplicaCurve:
        return self.curves[-1]

    @property
    def points(self) -> tuple[RatePoint, ...]:
        """Those of a group while all serve."""
        return self._whole.points

    @property
    def required_share(self) -> float:
        """Of the requests, that must keep both limits at a capacity."""
        return self._whole.required_share

    @property
    def idle_watts(self) -> float:
        """Of a group."""
        return self._whole.idle_watts

    @property
    def capacity_per_s(self) -> float:
        """The highest rate of a group at which the target is kept while all serve."""
        return self._whole.capacity_per_s

    @property
    def least_capacity_per_s(self) -> float:
        """The same at any number of groups that serve."""
        return min(curve.capacity_per_s for curve in self.curves)

    @cached_property
    def patience_s(self) -> float:
        """As of a replica, the shortest at any number of groups that serve."""
        return min(curve.patience_s for curve in self.curves)

    @property
    def saturated_per_s(self) -> float:
        """What a group can serve at all while all serve."""
        return self._whole.saturated_per_s

    @cached_property
    def _saturated_per_s(self) -> Float64s:
        return np.array([curve.saturated_per_s for curve in self.curves])

    def saturated_at(self, serving: Float64s | float) -> Float64s | float:
        """What a group can serve at all while so many serve."""
        found: Float64s | float = np.interp(serving, self.serving, self._saturated_per_s)
        return found

    def share(
        self, name: str, rates_per_s: Float64s, serving: Float64s | float | None = None
    ) -> Float64s:
        """As of a replica, while so many groups serve; None for all."""
        return self._mixed(lambda curve, rates: curve.share(name, rates), rates_per_s, serving)

    def chip_watts(
        self, rates_per_s: Float64s, serving: Float64s | float | None = None
    ) -> Float64s:
        """Of a group."""
        return self._mixed(lambda curve, rates: curve.chip_watts(rates), rates_per_s, serving)

    def least_chip_watts(
        self, rates_per_s: Float64s, serving: Float64s | float | None = None
    ) -> Float64s:
        """Of a group at each rate or a higher one, whichever is the lowest."""
        return self._mixed(lambda curve, rates: curve.least_chip_watts(rates), rates_per_s, serving)

    def seconds(
        self, name: str, rates_per_s: Float64s, serving: Float64s | float | None = None
    ) -> Float64s:
        """A latency by its name."""
        return self._mixed(lambda curve, rates: curve.seconds(name, rates), rates_per_s, serving)

    def tail(
        self, name: str, rates_per_s: Float64s, serving: Float64s | float | None = None
    ) -> Float64s:
        """As of a replica, [rates] -> [TAIL, rates]."""
        return self._mixed(lambda curve, rates: curve.tail(name, rates), rates_per_s, serving)

    def _mixed(
        self,
        of: Callable[[ReplicaCurve, Float64s], Float64s],
        rates_per_s: Float64s,
        serving: Float64s | float | None,
    ) -> Float64s:
        """Of the two simulated numbers of groups around `serving`, by how near each is."""
        groups = np.asarray(self.serving[-1] if serving is None else serving, dtype=np.float64)
        load = rates_per_s / self.saturated_at(groups)
        mixed = np.zeros(1)
        for curve, nearness in zip(self.curves, np.eye(len(self.curves)), strict=True):
            share = np.asarray(np.interp(groups, self.serving, nearness))
            if share.any() or not share.size:
                mixed = mixed + share * of(curve, load * curve.saturated_per_s)
        return mixed


GroupCurve = ReplicaCurve | PartitionCurve
"""Of groups that are replicas, or parts of one engine."""

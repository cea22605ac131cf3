"""The upper envelope of curves in a plane, larger being better: the best choice at each place.

A curve is a partition with all its batches, linear between them: with a step time `a + b x batch`,
the throughput batch / (a + b x batch) is (1 - a x interactivity) / b, and any batch between two can
be run (between 1 and 2 on the average of replicas). The envelope jumps between partitions. A point
that exceeds the requirement serves too: left of its first point a curve is flat; beyond its last
nothing serves.

Against users the time per token is linear instead: see `Envelope.of_users`.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float64s = NDArray[np.float64]
Int64s = NDArray[np.int64]
Figures = Sequence[float] | Float64s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Envelope:
    """The highest of several curves, and the points that no other point beats.

    `x` rises and `y` falls strictly, both float64[n]: the Pareto-optimal points. `chosen` int64[n]
    are their indices among the given points; `curves` are those of each family.
    """

    x: Float64s
    y: Float64s
    chosen: Int64s
    curves: tuple[tuple[Float64s, Float64s], ...]

    @classmethod
    def of(cls, x: Figures, y: Figures, family: Sequence[Hashable] | None = None) -> "Envelope":
        """Of the points (x[i], y[i]) of `family[i]`, or all of one; of equal points the first.

        Raises ValueError without points, or for one that is not finite.
        """
        xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
        if xs.ndim != 1 or xs.shape != ys.shape or not len(xs):
            raise ValueError(f"an envelope is of points: {xs.shape}, {ys.shape}")
        if not (np.isfinite(xs).all() and np.isfinite(ys).all()):
            raise ValueError("an envelope is of finite points")
        members: dict[Hashable, list[int]] = {}
        for index, name in enumerate(family or [None] * len(xs)):
            members.setdefault(name, []).append(index)
        curves = []
        for indices in members.values():
            kept = np.array(indices)[_unbeaten(xs[indices], ys[indices])]
            curves.append((xs[kept], ys[kept]))
        chosen = _unbeaten(xs, ys)
        return cls(x=xs[chosen], y=ys[chosen], chosen=chosen, curves=tuple(curves))

    @classmethod
    def of_users(
        cls, users: Figures, interactivity: Figures, family: Sequence[Hashable] | None = None
    ) -> "Envelope":
        """Of `interactivity`, tokens/s, against `users`; heights are minus seconds per token."""
        return cls.of(users, -1 / np.asarray(interactivity, dtype=np.float64), family)

    def at(self, x: Float64s) -> Float64s:
        """The height at each x, NaN beyond the last point: [...] -> [...]."""
        highest = np.full(np.shape(x), -np.inf)
        for xs, ys in self.curves:
            highest = np.maximum(highest, np.interp(x, xs, ys, left=ys[0], right=-np.inf))
        height: Float64s = np.where(np.isfinite(highest), highest, np.nan)
        return height

    @property
    def reach(self) -> float:
        """The largest x that is served."""
        return float(self.x[-1])


def _unbeaten(x: Float64s, y: Float64s) -> Int64s:
    """Indices of the Pareto-optimal points, by rising x: [n] -> [unbeaten]."""
    order = np.lexsort((np.arange(len(x)), -y, -x))  # from the right, higher ones first
    highest = np.maximum.accumulate(y[order])
    is_new = np.concatenate([[True], highest[1:] > highest[:-1]])
    unbeaten: Int64s = order[is_new][::-1].astype(np.int64)
    return unbeaten


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """From `low` to `high`, both included."""

    low: float
    high: float


def intervals_where(holds: NDArray[np.bool_], x: Float64s) -> tuple[Interval, ...]:
    """The runs of rising x[n] in which holds[n] is true."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], holds, [False]]).astype(np.int8)))
    starts, ends = edges[::2], edges[1::2] - 1
    return tuple(
        Interval(low=float(x[start]), high=float(x[end]))
        for start, end in zip(starts, ends, strict=True)
    )

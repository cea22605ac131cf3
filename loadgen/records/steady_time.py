"""The epochs of a server's clock, and a run's stamps under one dilation.

In an *epoch* an emulated second takes the same number of wall seconds. Files keep wall stamps and
the epochs; measures take *steady* ns: wall ns as if the run's first dilation had held throughout. A
difference of two, divided by that dilation, is emulated time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadgen.records.arrays import Float64s, Int64s
from loadgen.records.result import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockEpoch:
    """From `from_wall_ns` after the run's start (before it, if negative) an emulated second takes
    `dilation` wall seconds; `from_emulated_s` counts from the server's start.
    """

    epoch: int
    from_wall_ns: int
    from_emulated_s: float
    dilation: float


class SteadyTime:
    """The steady time of wall stamps; `dilation` is the one at the run's start.

    A missing epoch between two others has its mean dilation.
    """

    def __init__(self, epochs: Sequence[ClockEpoch], dilation: float) -> None:
        """`epochs` are at least one, in order."""
        self._wall_ns = np.array([each.from_wall_ns for each in epochs], dtype=np.float64)
        emulated_s = np.array([each.from_emulated_s for each in epochs])
        self._steady_ns = (emulated_s - emulated_s[0]) * 1e9 * dilation
        self._before = dilation / epochs[0].dilation  # steady per wall
        self._after = dilation / epochs[-1].dilation
        self._origin_ns = float(self._of(np.zeros(1))[0])

    def of(self, wall_ns: Int64s) -> Int64s:
        """Steady ns since the run's start, [stamps]; monotone in `wall_ns`."""
        return np.rint(self._of(wall_ns.astype(np.float64)) - self._origin_ns).astype(np.int64)

    def wall_ns(self, steady_ns: Int64s) -> Int64s:
        """Wall ns since the run's start, [stamps]; the inverse of `of`."""
        ends = self._origin_ns + steady_ns.astype(np.float64)
        within = np.interp(ends, self._steady_ns, self._wall_ns)
        within += np.minimum(0.0, ends - self._steady_ns[0]) / self._before
        within += np.maximum(0.0, ends - self._steady_ns[-1]) / self._after
        return np.rint(within).astype(np.int64)

    def _of(self, wall_ns: Float64s) -> Float64s:
        steady: Float64s = np.interp(wall_ns, self._wall_ns, self._steady_ns)
        steady += np.minimum(0.0, wall_ns - self._wall_ns[0]) * self._before
        steady += np.maximum(0.0, wall_ns - self._wall_ns[-1]) * self._after
        return steady


def changes(epochs: Sequence[ClockEpoch], dilation: float | None) -> bool:
    """Whether the dilation changes from the run's first."""
    return dilation is not None and any(each.dilation != dilation for each in epochs)


def steady_results(
    results: Sequence[Result], epochs: Sequence[ClockEpoch], dilation: float | None
) -> Sequence[Result]:
    """The results with steady stamps; unchanged under one dilation."""
    if dilation is None or not changes(epochs, dilation):
        return results
    time = SteadyTime(epochs, dilation)

    def steady(result: Result) -> Result:
        ends = np.array([result.intended_ns, result.sent_ns, result.ended_ns], dtype=np.int64)
        intended_ns, sent_ns, ended_ns = time.of(ends).tolist()
        return replace(
            result,
            intended_ns=intended_ns,
            sent_ns=sent_ns,
            ended_ns=ended_ns,
            chunk_ns=time.of(result.chunk_ns),
        )

    return [steady(result) for result in results]

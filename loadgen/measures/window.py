"""The measured part of a run, and amounts within it."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from loadgen.measures.columns import Columns
from loadgen.measures.samples import CELLS
from loadgen.records.arrays import Float64s, Int64s


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredWindow:
    """From `start_ns` to `end_ns`, wall ns since the run's start, inclusive; cut into cells.

    Raises ValueError for an empty one.
    """

    start_ns: int
    end_ns: int

    def __post_init__(self) -> None:
        if self.end_ns <= self.start_ns:
            raise ValueError(f"a window from {self.start_ns} to {self.end_ns} ns")

    @classmethod
    def of(cls, columns: Columns, *, skip_ns: int) -> Self | None:
        """From the first send, or the end of the skipped part, to the last token of a completed
        reply; None without one, or without time in between.
        """
        if not columns.done.any():
            return None
        start_ns = max(int(columns.sent_ns.min()), skip_ns)
        end_ns = int(columns.last_ns[columns.done].max())
        return None if end_ns <= start_ns else cls(start_ns=start_ns, end_ns=end_ns)

    @property
    def wall_s(self) -> float:
        """Its length in wall seconds."""
        return (self.end_ns - self.start_ns) / 1e9

    def amounts(self, at_ns: Int64s, weights: ArrayLike | None = None) -> Float64s:
        """Sum `weights` (1) of events at `at_ns` in the window, by cell: [events] -> [CELLS]."""
        counts = np.ones(at_ns.size) if weights is None else np.asarray(weights, dtype=np.float64)
        within = (at_ns >= self.start_ns) & (at_ns <= self.end_ns)  # [events]
        share = (at_ns[within] - self.start_ns) / (self.end_ns - self.start_ns)
        cell = np.minimum((share * CELLS).astype(np.int64), CELLS - 1)
        return np.asarray(np.bincount(cell, counts[within], CELLS), dtype=np.float64)

    def busy_ns(self, begun_ns: Int64s, ended_ns: Int64s) -> Float64s:
        """Time of the spans, [spans], in each cell: ns, [CELLS]."""
        edges = np.linspace(self.start_ns, self.end_ns, CELLS + 1)
        return np.diff(_gone_by(begun_ns, edges) - _gone_by(ended_ns, edges))


def _gone_by(times_ns: Int64s, edges: Float64s) -> Float64s:
    """At each edge, the sum of the times since all past `times_ns`: [edges]."""
    ordered = np.sort(times_ns).astype(np.float64)
    total = np.concatenate([[0.0], np.cumsum(ordered)])
    come = np.searchsorted(ordered, edges, side="right")
    return np.asarray(edges * come - total[come])

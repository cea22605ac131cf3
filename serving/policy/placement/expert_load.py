"""Load of each expert: a moving window over steps, in whole tokens."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]


class ExpertWindow:
    """Router decisions of the last `window_steps` steps, by layer and logical expert.

    Memory: at most window_steps * layers * experts * 8 bytes. Integer sums leave no residue.
    """

    def __init__(self, *, window_steps: int, layers: int, experts: int) -> None:
        assert min(window_steps, layers, experts) >= 1, (window_steps, layers, experts)
        self._window: I64 = np.zeros((window_steps, layers, experts), dtype=np.int64)
        self._total: I64 = np.zeros((layers, experts), dtype=np.int64)
        self._added = 0

    @property
    def steps(self) -> int:
        """Steps in the window now."""
        return min(self._added, len(self._window))

    def add(self, counts: NDArray[np.integer[Any]]) -> None:
        """Add one step: counts[layers, experts] of (token, expert) pairs; the oldest step leaves.
        Raises ValueError for another shape, non-integers and negative counts.
        """
        if counts.shape != self._total.shape or not np.issubdtype(counts.dtype, np.integer):
            raise ValueError(
                f"counts are integers[layers, experts] of {self._total.shape}, "
                f"not {counts.dtype}{counts.shape}"
            )
        if counts.min() < 0:
            raise ValueError(f"counts are at least 0, not {counts.min()}")
        oldest = self._window[self._added % len(self._window)]
        self._total += counts - oldest
        oldest[:] = counts
        self._added += 1

    def total(self) -> I64:
        """Pairs of all steps in the window: int64[layers, experts], a copy."""
        return self._total.copy()

    def total_slowly(self) -> I64:
        """The same, summed anew over the window."""
        total: I64 = self._window.sum(axis=0)
        return total

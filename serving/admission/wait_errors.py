"""By how much waits turned out longer than they were expected to be.

Split conformal prediction: with a margin of the `ceil(0.99 * (n + 1))`-th smallest of `n` errors of
the past, 99 % of the waits to come stay within expectation and margin, whatever their distribution,
as long as they come as those did (V. Vovk et al., "Algorithmic Learning in a Random World", 2005,
section 2.2). Where they do not, the share that is asked of the past follows what came of it: it
rises with each wait that was too long, and falls back with those that were not (I. Gibbs and
E. Candes, "Adaptive Conformal Inference Under Distribution Shift", 2021).
"""

import math
from bisect import bisect_left, insort
from collections import deque
from typing import Final

COVERED: Final = 0.99
"""The share of requests that has its first token within the target: a p99."""

KEPT_MAX: Final = 2_000
"""Errors that are kept: of 2,000, the twentieth largest is the margin. Assumed: enough that a few
disturbances together do not fall under the 1 % that may be late."""

STEP: Final = 0.01
"""How fast the share follows. Assumed: one late request in a hundred asks for the worst error that
is kept, until a hundred in time have taken that back."""


class WaitErrors:
    """The newest `KEPT_MAX` errors, in seconds; less than 0 where a wait was shorter.

    Invariant: `_sorted_s` holds what `_newest_s` does, so that adding an error and reading a place
    take microseconds.
    """

    def __init__(self) -> None:
        self._newest_s: deque[float] = deque()
        self._sorted_s: list[float] = []
        self._covered = COVERED

    def add(self, *, predicted_s: float, waited_s: float, is_late: bool) -> None:
        """Take one that is over, and whether it was too long."""
        followed = self._covered + STEP * (float(is_late) - (1.0 - COVERED))
        self._covered = min(1.0, max(COVERED, followed))
        if len(self._newest_s) == KEPT_MAX:
            del self._sorted_s[bisect_left(self._sorted_s, self._newest_s.popleft())]
        error_s = waited_s - predicted_s
        self._newest_s.append(error_s)
        insort(self._sorted_s, error_s)

    @property
    def margin_s(self) -> float:
        """What to add to an expectation; never less than 0.

        Infinite while there are too few errors to tell 99 %.
        """
        count = len(self._sorted_s)
        if count + 1 < 1.0 / (1.0 - COVERED):
            return math.inf
        place = min(count, math.ceil(self._covered * (count + 1))) - 1
        return max(0.0, self._sorted_s[place])

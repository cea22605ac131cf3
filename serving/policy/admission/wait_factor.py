"""Factor by which waits exceed their prediction.

Split conformal prediction on ratios: with the second largest of the newest 200 as factor, 99 % of
coming waits stay within prediction times factor, as long as they are exchangeable (V. Vovk et al.,
"Algorithmic Learning in a Random World", 2005, section 2.2). Unmeasured ratios count as 1, and the
factor returns to 1 while nothing is measured.
"""

import math
from bisect import bisect_left, insort
from collections import deque
from typing import Final

COVERED: Final = 0.99
"""The share of requests that has its first token within the target: a p99."""

_KEPT: Final = 200
_PLACE: Final = math.ceil(COVERED * (_KEPT + 1)) - 1

FACTOR_MIN: Final = 0.25
FACTOR_MAX: Final = 100.0
"""Assumed: prompts that the prefix cache has are computed in less, and a host that cannot follow
its clock takes longer; beyond these bounds a ratio tells of something else."""

_TELLING_SHARE: Final = 0.5
"""Of the target: shorter waits, predicted and real, say nothing about those near the target; what
is fixed in them (a step under way, the way through the server) is most of them. Assumed."""

_MEMORY_TARGETS: Final = 60.0
"""Targets without a measurement after which 1/e of the factor's logarithm is left. Assumed: long
against a pause between bursts, short against a change of the traffic over a day."""


class WaitFactor:
    """The newest ratios, of waits near a target of `target_s`; each counts as at least `least`.

    Invariant: `_sorted` holds the ratios of `_newest`, so adding and reading take microseconds.
    """

    def __init__(self, target_s: float, *, least: float = FACTOR_MIN) -> None:
        self._least = least
        self._telling_s = _TELLING_SHARE * target_s
        self._memory_s = _MEMORY_TARGETS * target_s
        self._newest = deque([1.0] * _KEPT)
        self._sorted = [1.0] * _KEPT
        self._measured_s = 0.0

    def add(self, *, predicted_s: float, waited_s: float, now_s: float) -> None:
        """Take a wait that is over."""
        if max(predicted_s * self.value(now_s), waited_s) < self._telling_s:
            return
        self._measured_s = now_s
        del self._sorted[bisect_left(self._sorted, self._newest.popleft())]
        # A short prediction counts as one that tells something.
        ratio = waited_s / max(predicted_s, self._telling_s)
        ratio = min(max(ratio, self._least), FACTOR_MAX)
        self._newest.append(ratio)
        insort(self._sorted, ratio)

    def value(self, now_s: float) -> float:
        """Factor of a prediction, from `least` to `FACTOR_MAX`."""
        age = (now_s - self._measured_s) / self._memory_s
        return float(self._sorted[_PLACE] ** math.exp(-max(0.0, age)))

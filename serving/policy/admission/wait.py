"""A predicted wait, its parts, and the factor by which waits exceed their prediction.

Split conformal prediction on ratios: with the second largest of the newest 200 as factor, 99 % of
coming waits stay within prediction times factor, if exchangeable (V. Vovk et al., "Algorithmic
Learning in a Random World", 2005, section 2.2). Missing ratios count as 1, and the factor returns
to 1 while nothing is measured.
"""

import math
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Parts of a wait, in emulated seconds.

    Attributes:
        tokens: of prompts computed before the first token, its own included.
        prompts_s, prompts_factor: their time by the cost model, and its measured correction.
        ends: sequences that must end first; 0 when a seat and KV are free.
        seats_s, seats_factor: the same for those ends; infinite when not enough are sure to come.
        step_s: of the next step at this backlog.
    """

    tokens: int
    prompts_s: float
    prompts_factor: float
    ends: int
    seats_s: float
    seats_factor: float
    step_s: float

    @property
    def seconds(self) -> float:
        """The corrected wait."""
        return max(self.prompts_s * self.prompts_factor, self.seats_s * self.seats_factor)

    @property
    def predicted_s(self) -> float:
        """The wait before correction."""
        return max(self.prompts_s, self.seats_s)

    @property
    def is_for_seat(self) -> bool:
        """Whether seats, not prompts, decide it."""
        return self.seats_s * self.seats_factor > self.prompts_s * self.prompts_factor

    @property
    def factor(self) -> float:
        """Correction of the deciding part."""
        return self.seats_factor if self.is_for_seat else self.prompts_factor


COVERED: Final = 0.99
"""Share of requests with the first token within the target: a p99."""

_KEPT: Final = 200
_PLACE: Final = math.ceil(COVERED * (_KEPT + 1)) - 1

FACTOR_MIN: Final = 0.25
FACTOR_MAX: Final = 100.0
"""Assumed: prefix cache hits shorten a prompt, a slow host lengthens it; ratios beyond these bounds
have another cause."""

_TELLING_SHARE: Final = 0.5
"""Share of the target below which waits, predicted and real, are ignored: fixed parts (the current
step, the way through the server) dominate them. Assumed."""

_MEMORY_TARGETS: Final = 60.0
"""Targets without a measurement after which 1/e of the factor's logarithm is left. Assumed: long
against a pause between bursts, short against the day's change of traffic."""


class WaitFactor:
    """Newest ratios of waits near `target_s`, each at least `least`; `_sorted` orders them."""

    def __init__(self, target_s: float, *, least: float = FACTOR_MIN) -> None:
        self._least = least
        self._telling_s = _TELLING_SHARE * target_s
        self._memory_s = _MEMORY_TARGETS * target_s
        self._newest = deque([1.0] * _KEPT)
        self._sorted = [1.0] * _KEPT
        self._measured_s = 0.0

    def add(self, *, predicted_s: float, waited_s: float, now_s: float) -> None:
        """Learn from a wait that is over."""
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

"""Chooses the dilation by the host's need for the load.

Paced at a dilation K, a step takes the longer of K times its emulated duration and the host's need:
a high K makes the host wait, a low one makes steps late. The target is the highest K whose waiting
lengthens the window's steps by at most `HEADROOM`.

`LoadFollower` is pure: wall time is passed in. `HostPace` measures it for each step, and adapts the
clock's dilation between steps.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np

from emulator.arrays import Float64s
from emulator.sim.clock import DilatedClock
from emulator.sim.epochs import Epoch

HEADROOM: Final = 0.15
"""Assumed: steps may wait by this share of the host's own time, so that few are late; with varying
times, more are."""

WINDOW_WALL_NS: Final = 5_000_000_000
STEPS_MIN: Final = 16
STEPS_MAX: Final = 4_096
"""Assumed: the window is the last 5 wall seconds, and at least the last 16 steps."""

CHANGE_MIN: Final = 1.08
"""Least factor between dilation and target for a change."""

LARGE_CHANGE: Final = 1.3
EPOCH_STEPS_MIN: Final = 4
EPOCH_WALL_NS_MIN: Final = 2_000_000_000
SMALL_CHANGE_WALL_NS_MIN: Final = 10_000_000_000
"""Assumed: least length of an epoch; longer before a change by less than `LARGE_CHANGE`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStep:
    """One step: its end, the host's need, and its emulated duration."""

    at_wall_ns: int
    need_wall_ns: int
    emulated_ns: int


class LoadFollower:
    """Recent steps, and the dilation that fits them.

    Invariants: a proposal is at least 1; at least `EPOCH_STEPS_MIN` steps and `EPOCH_WALL_NS_MIN`
    after the last.
    """

    def __init__(self, *, began_wall_ns: int) -> None:
        self._steps: deque[HostStep] = deque(maxlen=STEPS_MAX)
        self._changed_wall_ns = began_wall_ns
        self._looked_wall_ns = began_wall_ns
        self._since_change = 0

    def add(self, step: HostStep) -> None:
        """Take a step into the window."""
        if step.need_wall_ns <= 0 or step.emulated_ns <= 0:
            return
        self._steps.append(step)
        self._since_change += 1
        oldest_wall_ns = step.at_wall_ns - WINDOW_WALL_NS
        while len(self._steps) > STEPS_MIN and self._steps[0].at_wall_ns < oldest_wall_ns:
            self._steps.popleft()

    def proposal(self, dilation: float, now_wall_ns: int) -> float | None:
        """The dilation that should replace `dilation`, or None to keep it."""
        if (
            self._since_change < EPOCH_STEPS_MIN
            or now_wall_ns < self._changed_wall_ns + EPOCH_WALL_NS_MIN
            or now_wall_ns < self._looked_wall_ns + EPOCH_WALL_NS_MIN // 4
        ):
            return None
        self._looked_wall_ns = now_wall_ns
        target = max(1.0, round_dilation(self.target()))
        factor = max(target / dilation, dilation / target)
        patience_ns = EPOCH_WALL_NS_MIN if factor >= LARGE_CHANGE else SMALL_CHANGE_WALL_NS_MIN
        if factor < CHANGE_MIN or now_wall_ns < self._changed_wall_ns + patience_ns:
            return None
        self._changed_wall_ns = now_wall_ns
        self._since_change = 0
        return target

    def target(self) -> float:
        """The highest dilation at which the window's steps wait within `HEADROOM`."""
        return paced_dilation(
            np.array([step.need_wall_ns for step in self._steps], dtype=np.float64),
            np.array([step.emulated_ns for step in self._steps], dtype=np.float64),
        )


def paced_dilation(need_wall_ns: Float64s, emulated_ns: Float64s) -> float:
    """Solve sum(max(K x emulated, need)) = (1 + HEADROOM) x sum(need) for K; all are [steps].

    The left side rises with K, and is linear between the steps' own ratios of need to emulated.
    """
    ratio = need_wall_ns / emulated_ns
    order = np.argsort(ratio)
    ratio, need, emulated = ratio[order], need_wall_ns[order], emulated_ns[order]
    allowed_ns = (1.0 + HEADROOM) * need.sum()
    # With K between ratio i and i + 1, the steps up to i wait, and those behind it are late.
    waiting_ns = np.cumsum(emulated)  # [steps]
    late_ns = need.sum() - np.cumsum(need)  # [steps]
    fits = ratio * waiting_ns + late_ns <= allowed_ns  # K = ratio i; the first always fits
    at = int(np.flatnonzero(fits)[-1])
    return float((allowed_ns - late_ns[at]) / waiting_ns[at])


def round_dilation(dilation: float) -> float:
    """To three significant digits, as people read it."""
    return float(f"{dilation:.3g}")


class HostPace:
    """Adapts the dilation of `clock` to the host's time for each step of a `StepPacer`.

    A step's need is the wall time from when the host was free to begin it (for one that continues,
    the last step's release) until it was computed.
    """

    def __init__(self, clock: DilatedClock) -> None:
        self._clock = clock
        self._follower = LoadFollower(began_wall_ns=clock.wall_ns())
        self._released_wall_ns = self._began_wall_ns = clock.wall_ns()
        self._computed_wall_ns: int | None = None

    @property
    def epoch(self) -> Epoch:
        """The present one."""
        return self._clock.epochs.last

    def begin(self, *, continues: bool) -> None:
        """The next step begins; `continues` as in `StepPacer.begin_ns`."""
        self._began_wall_ns = self._released_wall_ns if continues else self._clock.wall_ns()
        self._computed_wall_ns = None

    def computed(self) -> None:
        """Note that a step is computed; the rest of it is waiting."""
        self._computed_wall_ns = self._clock.wall_ns()

    def released(self, emulated_ns: int | None, *, may_change: bool) -> bool:
        """Note a step's end; returns whether the dilation has changed.

        `emulated_ns` is its duration; None, or a step never `computed`, is no sign of the load.
        """
        self._released_wall_ns = now_wall_ns = self._clock.wall_ns()
        if emulated_ns is not None and self._computed_wall_ns is not None:
            need_ns = self._computed_wall_ns - self._began_wall_ns
            step = HostStep(at_wall_ns=now_wall_ns, need_wall_ns=need_ns, emulated_ns=emulated_ns)
            self._follower.add(step)
        if not may_change:
            return False
        dilation = self._follower.proposal(self._clock.dilation, now_wall_ns)
        if dilation is None:
            return False
        self._clock.change(dilation)
        return True

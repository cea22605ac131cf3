"""Measures the host's time for each step, and adapts the clock's dilation to it between steps."""

from emulator.sim.clock import DilatedClock
from emulator.sim.epochs import Epoch
from emulator.sim.load_follower import HostStep, LoadFollower


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

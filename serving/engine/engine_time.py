"""The engine's emulated time: begin and end of each step; totals of steps, pauses and lag."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, Protocol

from emulator.sim.clock import Clock, DilatedClock, VirtualClock
from emulator.sim.epochs import Epoch, EpochMap
from emulator.sim.load_follower import HostPace
from emulator.sim.pacing import StepPacer
from emulator.units import NS_PER_S
from serving.engine.calibration import SLOW_RATIO
from serving.engine.step_report import StepReport
from serving.settings import ClockSetting
from serving.wire.engine_status import EngineStatus

logger = logging.getLogger(f"vllm.{__name__}")  # below a name that the engine's process shows

_REST_S: Final = 0.02
"""Assumed: wall seconds between polls for emulated time alone. A new request waits as long; 50
steps without tokens a second cost little."""


def make_clock(setting: str, calibrated_dilation: float) -> Clock:
    """Make the clock of `setting`; `auto` takes the calibrated dilation."""
    parsed = ClockSetting.parse(setting)
    if parsed.kind == "virtual":
        return VirtualClock()
    return DilatedClock(parsed.dilation or calibrated_dilation)


def _warn_of_slow(dilation: float, before: float = 0.0) -> None:
    """Warn when the dilation is above SLOW_RATIO, and was not `before`."""
    if before <= SLOW_RATIO < dilation:
        logger.warning(
            "clock auto: this host is %.0f times slower than the emulated machine; fewer chips "
            "(--chips), --weights none or a smaller stand-in make it quicker",
            dilation,
        )


class Present(Protocol):
    """The emulated present: of a running engine, or of a simulated one."""

    @property
    def now_ns(self) -> int:
        """In ns since the start."""
        ...

    @property
    def now_s(self) -> float:
        """The same in seconds."""
        ...


class EngineTime:
    """Paces steps by a clock.

    Invariants: steps follow each other without overlap. With `follows_load` (dilated clocks only)
    the dilation follows the host's needs, between steps only.
    """

    def __init__(self, clock: Clock, *, follows_load: bool = False) -> None:
        self._clock = clock
        self._pace: HostPace | None = None
        if follows_load:
            assert isinstance(clock, DilatedClock), "time that jumps follows nothing"
            self._pace = HostPace(clock)
            _warn_of_slow(clock.dilation)
        self._keeps_pace = False
        self._unix_offset_ns = time.time_ns() - time.monotonic_ns()
        self._known_epochs: EpochMap | None = None
        self._unix_epochs: tuple[Epoch, ...] = ()  # those, by Unix time
        self._pacer = StepPacer(clock)
        self.start_ns = clock.now_ns()
        self._moment_ns: int | None = None
        self.accounted_ns = self.start_ns  # the end of the last step
        self._begin_ns = self.accounted_ns
        self.computes_ns = self.accounted_ns  # when the last step began after its pause
        self.steps = 0
        self.compute_wall_s = 0.0
        self.pause_ns = 0

    def begin_ns(self, *, continues: bool) -> int:
        """Begin of the next step; see `StepPacer.begin_ns`."""
        if self._pace is not None:
            self._pace.begin(continues=continues)
        return self._pacer.begin_ns(continues=continues)

    def computed(self) -> None:
        """Note that the step is computed and costed, which ends the host's own work for it."""
        if self._pace is not None:
            self._pace.computed()

    def finish(
        self,
        begin_ns: int,
        duration_ns: int,
        *,
        pause_ns: int,
        compute_wall_s: float,
    ) -> None:
        """Hold a step until its emulated end, after a stall of `pause_ns`, and count it."""
        paced = self._pacer.finish(begin_ns, duration_ns + pause_ns)
        self._follow(None if pause_ns else duration_ns)
        self.accounted_ns = paced.end_ns
        self._begin_ns = begin_ns
        self.computes_ns = paced.end_ns - duration_ns
        self.steps += 1
        self.pause_ns += pause_ns
        self.compute_wall_s += compute_wall_s

    @property
    def busy_ns(self) -> int:
        """Time in steps, without pauses."""
        return self._pacer.busy_ns_total - self.pause_ns

    @property
    def lag_ns(self) -> int:
        """Time by which steps ended late, because the host could not keep up."""
        return self._pacer.lag_ns_total

    @property
    def lagging_steps(self) -> int:
        """Steps that ended late."""
        return self._pacer.lagging_steps

    def keep_pace(self, keeps: bool) -> None:
        """Freeze the clock's dilation, or let it follow the load again."""
        self._keeps_pace = keeps

    def _follow(self, emulated_ns: int | None) -> None:
        """Let the clock follow the load; a step with a pause gives no measurement."""
        before = self._clock.dilation
        if self._pace is not None and self._pace.released(
            emulated_ns, may_change=not self._keeps_pace
        ):
            epoch = self._pace.epoch
            logger.info(
                "clock auto: epoch %d, %g wall seconds per emulated second from %.6f s on",
                epoch.index,
                epoch.dilation,
                epoch.from_ns / NS_PER_S,
            )
            _warn_of_slow(epoch.dilation, before)

    @property
    def passes(self) -> bool:
        """Whether emulated time passes while nothing happens; virtual time does not."""
        return self._clock.dilation > 0

    def rest(self) -> None:
        """Sleep a moment of wall time."""
        time.sleep(_REST_S)

    @property
    def dilation(self) -> float:
        """Wall seconds per emulated second, now; 0 in virtual time."""
        return self._clock.dilation

    def wall_left_s(self, deadline_ns: int) -> float:
        """Wall seconds until an emulated time, at the present pace; 0 in virtual time."""
        left_ns = max(0, deadline_ns - self._clock.now_ns())
        return left_ns / NS_PER_S * self._clock.dilation

    @contextmanager
    def one_moment(self, *, continues: bool) -> Iterator[None]:
        """Let the present stand still: a control call takes time of the host, not of the machine.

        Between two steps that follow each other without a gap, `continues`, the machine has no
        other time than the end of the last one. Steps that are made meanwhile move it on.
        """
        self._moment_ns = self.accounted_ns if continues else self.now_ns
        try:
            yield
        finally:
            self._moment_ns = None

    @property
    def now_ns(self) -> int:
        """The end of the last step, or the clock's present when later."""
        present_ns = self._clock.now_ns() if self._moment_ns is None else self._moment_ns
        return max(self.accounted_ns, present_ns)

    @property
    def now_s(self) -> float:
        """`now_ns` in seconds."""
        return self.now_ns / NS_PER_S

    def status(self, ranks_up: int) -> EngineStatus:
        """At the end of the last step; the clock's newest epochs are in Unix time."""
        known = self._clock.epochs
        if known is not self._known_epochs:
            self._known_epochs = known
            self._unix_epochs = tuple(
                replace(epoch, from_wall_ns=epoch.from_wall_ns + self._unix_offset_ns)
                for epoch in (known.epochs if known else ())
            )
        return EngineStatus(
            emulated_s=self.accounted_ns / NS_PER_S, ranks_up=ranks_up, epochs=self._unix_epochs
        )

    def report(self, **news: Any) -> StepReport:
        """The end of the last step, with the other fields of a `StepReport`."""
        return StepReport(
            begin_s=self._begin_ns / NS_PER_S,
            end_s=self.accounted_ns / NS_PER_S,
            epochs=self._clock.epochs,
            **news,
        )

    def unix_s(self, epoch: Epoch) -> float:
        """Unix time at which `epoch` began."""
        return (epoch.from_wall_ns + self._unix_offset_ns) / NS_PER_S

    @property
    def epoch(self) -> Epoch | None:
        """The clock's newest; None in virtual time."""
        epochs = self._clock.epochs
        return None if epochs is None else epochs.last

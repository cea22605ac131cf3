"""The engine's emulated time: where each step lies, and how long steps, pauses and lag were."""

import logging
import time
from dataclasses import replace
from typing import Any, Final

from emulator.sim.clock import Clock, DilatedClock, VirtualClock
from emulator.sim.epochs import Epoch, EpochMap
from emulator.sim.host_pace import HostPace
from emulator.sim.pacing import StepPacer
from emulator.units import NS_PER_S
from serving.engine.calibration import SLOW_RATIO
from serving.engine.step_report import StepReport
from serving.settings import ClockSetting
from serving.wire.engine_status import EngineStatus

logger = logging.getLogger(f"vllm.{__name__}")  # below a name that the engine's process shows

_REST_S: Final = 0.02
"""Assumed: an engine that waits for emulated time alone looks again so many wall seconds later. A
request that comes meanwhile waits as long; 50 steps without tokens a second cost little."""


def make_clock(setting: str, calibrated_dilation: float) -> Clock:
    """Make the clock that `setting` asks for; `auto` takes the calibrated dilation."""
    parsed = ClockSetting.parse(setting)
    if parsed.kind == "virtual":
        return VirtualClock()
    return DilatedClock(parsed.dilation or calibrated_dilation)


def _warn_of_slow(dilation: float, before: float = 0.0) -> None:
    """Where the clock's dilation is above SLOW_RATIO, and was not `before`."""
    if before <= SLOW_RATIO < dilation:
        logger.warning(
            "clock auto: this host is %.0f times slower than the emulated machine; fewer chips "
            "(--chips), --weights none or a smaller stand-in make it quicker",
            dilation,
        )


class EngineTime:
    """Paces steps by a clock.

    Invariants: steps follow each other, and no time is in two of them. With `follows_load`, which
    takes a dilated clock, its dilation changes with what the host needs, between steps only.
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
        self.accounted_ns = self.start_ns  # the end of the last step
        self._begin_ns = self.accounted_ns
        self.steps = 0
        self.compute_wall_s = 0.0
        self.pause_ns = 0

    def begin_ns(self, *, continues: bool) -> int:
        """When the next step begins; see `StepPacer.begin_ns`."""
        if self._pace is not None:
            self._pace.begin(continues=continues)
        return self._pacer.begin_ns(continues=continues)

    def computed(self) -> None:
        """The step has been computed and costed: what this host needs for it has passed."""
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
        """Hold a step of `duration_ns` until its emulated end, and count it.

        `pause_ns` is time in which the machine was held up before or in the step.
        """
        paced = self._pacer.finish(begin_ns, duration_ns + pause_ns)
        self._follow(None if pause_ns else duration_ns)
        self.accounted_ns = paced.end_ns
        self._begin_ns = begin_ns
        self.steps += 1
        self.pause_ns += pause_ns
        self.compute_wall_s += compute_wall_s

    @property
    def busy_ns(self) -> int:
        """In steps, without what held them up."""
        return self._pacer.busy_ns_total - self.pause_ns

    @property
    def lag_ns(self) -> int:
        """By which steps ended late, because the host could not keep up."""
        return self._pacer.lag_ns_total

    @property
    def lagging_steps(self) -> int:
        """Steps that did."""
        return self._pacer.lagging_steps

    def keep_pace(self, keeps: bool) -> None:
        """Let the clock's dilation stay, whatever the load, or follow the load again."""
        self._keeps_pace = keeps

    def _follow(self, emulated_ns: int | None) -> None:
        """Let the clock follow the load; what a fault held up says nothing of it."""
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
        """Let a moment of wall time pass, in which nothing is computed."""
        time.sleep(_REST_S)

    @property
    def dilation(self) -> float:
        """Wall seconds per emulated second, now; 0 where time jumps."""
        return self._clock.dilation

    def wall_left_s(self, deadline_ns: int) -> float:
        """Wall seconds until an emulated time, at the present pace; 0 where time jumps."""
        left_ns = max(0, deadline_ns - self._clock.now_ns())
        return left_ns / NS_PER_S * self._clock.dilation

    @property
    def now_ns(self) -> int:
        """The end of the last step, or the clock's present when it is later."""
        return max(self.accounted_ns, self._clock.now_ns())

    @property
    def now_s(self) -> float:
        """The same in seconds."""
        return self.now_ns / NS_PER_S

    def status(self, ranks_up: int) -> EngineStatus:
        """At the end of the last step; the clock's newest epochs are told by Unix time."""
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
        """When `epoch` began, by the wall."""
        return (epoch.from_wall_ns + self._unix_offset_ns) / NS_PER_S

    @property
    def epoch(self) -> Epoch | None:
        """The newest of the clock; None where time is virtual."""
        epochs = self._clock.epochs
        return None if epochs is None else epochs.last

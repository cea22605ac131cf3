"""The engine's emulated time and energy: where each step lies, what it drew, the totals."""

import logging
import time
from dataclasses import asdict, dataclass, replace

from emulator.model import EnergyMeter, StepCost, StepCostModel
from emulator.sim.clock import Clock, DilatedClock, VirtualClock
from emulator.sim.epochs import Epoch, EpochMap
from emulator.sim.host_pace import HostPace
from emulator.sim.pacing import StepPacer
from emulator.units import NS_PER_S
from serving.engine.calibration import SLOW_RATIO
from serving.engine.step_report import StepReport
from serving.settings import ClockSetting
from serving.wire.engine_status import EngineStatus
from serving.wire.snapshot import Snapshot

logger = logging.getLogger(f"vllm.{__name__}")  # below a name that the engine's process shows

_REST_S = 0.02
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


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineTotals:
    """What of the snapshot the machine and the scheduler say, not the clock."""

    chips_up: int
    ranks_up: int
    faults: int
    requests_moved: int
    empty_rank_steps: int
    expert_imbalance: float
    expert_rebalances: int
    expert_moved_bytes: int
    model_version: int = 1
    blocks_waiting: int = 0
    chips_lent: int = 0
    handovers: int = 0
    handover_bytes: int = 0
    handover_joules: float = 0.0
    training_tokens: int = 0
    training_joules: float = 0.0
    stall_s: float = 0.0
    stall_wall_s: float = 0.0


class EngineTime:
    """Paces steps by a clock and integrates their energy.

    Invariants: every emulated nanosecond since the start is counted once, in a step at its own
    watts or between steps at idle. With `follows_load`, which takes a dilated clock, its dilation
    changes with what the host needs, between steps only.
    """

    def __init__(self, clock: Clock, cost: StepCostModel, *, follows_load: bool = False) -> None:
        self._clock = clock
        self._cost = cost
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
        self._meter = EnergyMeter(cost.facility_watts)
        self._lost_chips = 0
        self._owed_joules = (0.0, 0.0)  # chips, facility: of changes between two countings
        self._spare_watts = cost.idle_chip_watts * cost.partition.spares
        self.start_ns = clock.now_ns()
        self._accounted_ns = self.start_ns
        self._begin_ns = self._accounted_ns
        self._last_watts = self.idle_watts
        self._steps = 0
        self._compute_wall_s = 0.0
        self._pause_ns = 0
        self._step_joules = (0.0, 0.0)

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
        cost: StepCost,
        *,
        pause_ns: int,
        compute_wall_s: float,
    ) -> None:
        """Hold the step until its emulated end, and count it.

        `pause_ns` is time in which the machine was held up before or in the step, at idle power.
        """
        paced = self._pacer.finish(begin_ns, cost.duration_ns + pause_ns)
        self._follow(None if pause_ns else cost.duration_ns)
        unpowered_watts = self._cost.idle_chip_watts * self._lost_chips
        watts = float(cost.chip_watts.sum()) + self._spare_watts - unpowered_watts
        idle_ns = begin_ns - self._accounted_ns + paced.lag_ns + pause_ns
        self._meter.add(duration_ns=idle_ns, chip_watts=self.idle_watts)
        self._step_joules = self._meter.add(duration_ns=cost.duration_ns, chip_watts=watts)
        self._accounted_ns = paced.end_ns
        self._begin_ns = begin_ns
        self._last_watts = watts
        self._steps += 1
        self._pause_ns += pause_ns
        self._compute_wall_s += compute_wall_s

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

    def spend(self, joules: float) -> None:
        """Count what chips drew beyond what steps and idle chips do."""
        self._meter.add_beyond(joules)

    @property
    def now_ns(self) -> int:
        """The end of the last step, or the clock's present when it is later."""
        return max(self._accounted_ns, self._clock.now_ns())

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
            emulated_s=self.accounted_s, ranks_up=ranks_up, epochs=self._unix_epochs
        )

    @property
    def accounted_ns(self) -> int:
        """The end of the last step."""
        return self._accounted_ns

    @property
    def accounted_s(self) -> float:
        """The same in seconds."""
        return self._accounted_ns / NS_PER_S

    @property
    def facility_joules(self) -> float:
        """What everything has drawn at the utility's meter until then."""
        return self._meter.facility_joules + self._owed_joules[1]

    @property
    def idle_watts(self) -> float:
        """Of all chips that are not lost, when none of them computes."""
        partition = self._cost.partition
        chips = partition.chips + partition.spares - self._lost_chips
        return self._cost.idle_chip_watts * chips

    def lose(self, chips: int) -> None:
        """So many chips are lost from now on, and draw nothing; a smaller number: some are back.

        What is counted from the last step's end on is counted as if it had been so since then; the
        difference until now is kept beside it.
        """
        before_watts, facility_watts = self.idle_watts, self._cost.facility_watts
        self._lost_chips = chips
        after_watts = self.idle_watts
        seconds = (self.now_ns - self._accounted_ns) / NS_PER_S
        chip_joules, facility_joules = self._owed_joules
        self._owed_joules = (
            chip_joules + (before_watts - after_watts) * seconds,
            facility_joules
            + (facility_watts(before_watts) - facility_watts(after_watts)) * seconds,
        )

    @property
    def step_joules(self) -> tuple[float, float]:
        """What the last step drew, at the chips and at the facility: spares too, but no pause."""
        return self._step_joules

    def report(
        self,
        machine: MachineTotals,
        *,
        lost_ranks: tuple[int, ...] = (),
        ranks_up: tuple[bool, ...] | None = None,
    ) -> StepReport:
        """The state at the end of the last step; see `StepReport`."""
        return StepReport(
            begin_s=self._begin_ns / NS_PER_S,
            end_s=self._accounted_ns / NS_PER_S,
            epochs=self._clock.epochs,
            snapshot=self.snapshot(machine),
            lost_ranks=lost_ranks,
            ranks_up=ranks_up,
        )

    def snapshot(self, machine: MachineTotals, *, now_ns: int | None = None) -> Snapshot:
        """Times, energy and the machine's totals, at the end of the last step.

        With `now_ns` the idle time since then is in them. Nothing is counted by that, and no total
        falls later: a step that begins in that time draws at least idle power.
        """
        cost = self._cost
        at_ns = self._accounted_ns if now_ns is None else now_ns
        idle_s = (at_ns - self._accounted_ns) / NS_PER_S
        idle_joules = self.idle_watts * idle_s + self._owed_joules[0]
        idle_facility_joules = cost.facility_watts(self.idle_watts) * idle_s
        busy_ns = self._pacer.busy_ns_total - self._pause_ns
        epochs = self._clock.epochs
        epoch = None if epochs is None else epochs.last
        return Snapshot(
            dilation=self._clock.dilation,
            clock_epoch=epoch.index if epoch else 0,
            epoch_emulated_s=epoch.from_ns / NS_PER_S if epoch else 0.0,
            epoch_unix_s=(epoch.from_wall_ns + self._unix_offset_ns) / NS_PER_S if epoch else 0.0,
            emulated_s=at_ns / NS_PER_S,
            steps=self._steps,
            busy_s=busy_ns / NS_PER_S,
            lag_s=self._pacer.lag_ns_total / NS_PER_S,
            lagging_steps=self._pacer.lagging_steps,
            chip_joules=self._meter.chip_joules + idle_joules,
            facility_joules=self.facility_joules + idle_facility_joules,
            chips=cost.partition.chips,
            chip_watts=self._last_watts,
            facility_watts=cost.facility_watts(self._last_watts),
            provisioned_watts=cost.provisioned_watts,
            compute_wall_s=self._compute_wall_s,
            pause_s=self._pause_ns / NS_PER_S,
            **asdict(machine),
        )

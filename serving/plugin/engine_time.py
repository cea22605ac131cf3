"""The engine's emulated time and energy: where each step lies, what it drew, the totals."""

import time
from dataclasses import asdict, dataclass

from emulator.model import EnergyMeter, StepCost, StepCostModel
from emulator.sim.clock import Clock, DilatedClock, VirtualClock
from emulator.sim.pacing import StepPacer
from emulator.units import NS_PER_S
from serving.metrics.snapshot import Snapshot
from serving.plugin.step_report import StepReport
from serving.settings import ClockSetting

_REST_S = 0.02
"""Assumed: an engine that waits for emulated time alone looks again so many wall seconds later. A
request that comes meanwhile waits as long; 50 steps without tokens a second cost little."""


def make_clock(setting: str, calibrated_dilation: float) -> Clock:
    """Make the clock that `setting` asks for; `auto` takes the calibrated dilation."""
    parsed = ClockSetting.parse(setting)
    if parsed.kind == "virtual":
        return VirtualClock()
    return DilatedClock(parsed.dilation or calibrated_dilation)


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
    watts or between steps at idle.
    """

    def __init__(self, clock: Clock, cost: StepCostModel) -> None:
        self._clock = clock
        self._cost = cost
        self._wall_origin_s = time.monotonic() - clock.now_ns() * clock.dilation / NS_PER_S
        self._pacer = StepPacer(clock)
        self._meter = EnergyMeter(cost.facility_watts)
        self._idle_watts = cost.idle_chip_watts * (cost.partition.chips + cost.partition.spares)
        self._spare_watts = cost.idle_chip_watts * cost.partition.spares
        self.start_ns = clock.now_ns()
        self._accounted_ns = self.start_ns
        self._begin_ns = self._accounted_ns
        self._last_watts = self._idle_watts
        self._steps = 0
        self._compute_wall_s = 0.0
        self._pause_ns = 0
        self._step_joules = (0.0, 0.0)

    def begin_ns(self, *, continues: bool) -> int:
        """When the next step begins; see `StepPacer.begin_ns`."""
        return self._pacer.begin_ns(continues=continues)

    def finish(
        self, begin_ns: int, cost: StepCost, *, pause_ns: int, compute_wall_s: float
    ) -> None:
        """Hold the step until its emulated end, and count it.

        `pause_ns` is time in which the machine was held up before or in the step, at idle power.
        """
        paced = self._pacer.finish(begin_ns, cost.duration_ns + pause_ns)
        watts = float(cost.chip_watts.sum()) + self._spare_watts
        idle_ns = begin_ns - self._accounted_ns + paced.lag_ns + pause_ns
        self._meter.add(duration_ns=idle_ns, chip_watts=self._idle_watts)
        self._step_joules = self._meter.add(duration_ns=cost.duration_ns, chip_watts=watts)
        self._accounted_ns = paced.end_ns
        self._begin_ns = begin_ns
        self._last_watts = watts
        self._steps += 1
        self._pause_ns += pause_ns
        self._compute_wall_s += compute_wall_s

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
        return self._meter.facility_joules

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
            wall_origin_s=self._wall_origin_s,
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
        idle_joules = self._idle_watts * idle_s
        idle_facility_joules = cost.facility_watts(self._idle_watts) * idle_s
        busy_ns = self._pacer.busy_ns_total - self._pause_ns
        return Snapshot(
            dilation=self._clock.dilation,
            emulated_s=at_ns / NS_PER_S,
            steps=self._steps,
            busy_s=busy_ns / NS_PER_S,
            lag_s=self._pacer.lag_ns_total / NS_PER_S,
            lagging_steps=self._pacer.lagging_steps,
            chip_joules=self._meter.chip_joules + idle_joules,
            facility_joules=self._meter.facility_joules + idle_facility_joules,
            chips=cost.partition.chips,
            chip_watts=self._last_watts,
            facility_watts=cost.facility_watts(self._last_watts),
            provisioned_watts=cost.provisioned_watts,
            compute_wall_s=self._compute_wall_s,
            pause_s=self._pause_ns / NS_PER_S,
            **asdict(machine),
        )

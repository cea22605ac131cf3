"""The engine's emulated time and energy: where each step lies, what it drew, the totals."""

import time

from emulator.model import EnergyMeter, StepCost
from emulator.sim.clock import Clock, DilatedClock, VirtualClock
from emulator.sim.pacing import StepPacer
from emulator.units import NS_PER_S
from serving.metrics.snapshot import Snapshot
from serving.plugin.deployment import Deployment
from serving.plugin.step_report import StepReport
from serving.settings import ClockSetting


def make_clock(setting: str, calibrated_dilation: float) -> Clock:
    """Make the clock that `setting` asks for; `auto` takes the calibrated dilation."""
    parsed = ClockSetting.parse(setting)
    if parsed.kind == "virtual":
        return VirtualClock()
    return DilatedClock(parsed.dilation or calibrated_dilation)


class EngineTime:
    """Paces steps by a clock and integrates their energy.

    Invariants: every emulated nanosecond since the start is counted once, in a step at its own
    watts or between steps at idle.
    """

    def __init__(self, clock: Clock, deployment: Deployment) -> None:
        self._clock = clock
        self._deployment = deployment
        self._wall_origin_s = time.monotonic() - clock.now_ns() * clock.dilation / NS_PER_S
        self._pacer = StepPacer(clock)
        self._meter = EnergyMeter(deployment.cost.facility_watts)
        self._idle_watts = deployment.cost.idle_chip_watts * deployment.partition.chips
        self._accounted_ns = clock.now_ns()
        self._begin_ns = self._accounted_ns
        self._last_watts = self._idle_watts
        self._steps = 0
        self._compute_wall_s = 0.0

    def begin_ns(self, *, continues: bool) -> int:
        """When the next step begins; see `StepPacer.begin_ns`."""
        return self._pacer.begin_ns(continues=continues)

    def finish(self, begin_ns: int, cost: StepCost, compute_wall_s: float) -> StepReport:
        """Hold the step until its emulated end, and count it."""
        paced = self._pacer.finish(begin_ns, cost.duration_ns)
        watts = float(cost.chip_watts.sum())
        idle_ns = begin_ns - self._accounted_ns + paced.lag_ns
        self._meter.add(duration_ns=idle_ns, chip_watts=self._idle_watts)
        self._meter.add(duration_ns=cost.duration_ns, chip_watts=watts)
        self._accounted_ns = paced.end_ns
        self._begin_ns = begin_ns
        self._last_watts = watts
        self._steps += 1
        self._compute_wall_s += compute_wall_s
        return self.report()

    def report(self) -> StepReport:
        """The state at the end of the last step."""
        return StepReport(
            begin_s=self._begin_ns / NS_PER_S,
            end_s=self._accounted_ns / NS_PER_S,
            wall_origin_s=self._wall_origin_s,
            snapshot=self._snapshot(),
        )

    def _snapshot(self) -> Snapshot:
        cost = self._deployment.cost
        return Snapshot(
            dilation=self._clock.dilation,
            emulated_s=self._accounted_ns / NS_PER_S,
            steps=self._steps,
            busy_s=self._pacer.busy_ns_total / NS_PER_S,
            lag_s=self._pacer.lag_ns_total / NS_PER_S,
            lagging_steps=self._pacer.lagging_steps,
            chip_joules=self._meter.chip_joules,
            facility_joules=self._meter.facility_joules,
            chips=self._deployment.partition.chips,
            chip_watts=self._last_watts,
            facility_watts=cost.facility_watts(self._last_watts),
            provisioned_watts=cost.provisioned_watts,
            compute_wall_s=self._compute_wall_s,
        )

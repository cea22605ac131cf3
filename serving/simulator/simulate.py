"""The driver of a simulation: schedulers in virtual time, metered."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ConfigError
from emulator.specs.batch import StepBatch
from emulator.ultraserver.step_cost import StepCost
from emulator.ultraserver.step_parts import THROTTLE
from emulator.units import NS_PER_S
from loadgen.measures.slo import Bound
from loadgen.workloads.traffic import Traffic
from serving.engine.scheduler_state import RankQueues
from serving.engine.step_batch import StepWatcher
from serving.simulator.run import Run
from serving.simulator.simulated_deployment import SimulatedDeployment

Bools = NDArray[np.bool_]


def simulate(
    deployment: SimulatedDeployment,
    traffic: Traffic,
    *,
    judged: Bools | None = None,
    window_s: tuple[float, float] | None = None,
    levels: Sequence[Bound] = (),
    until_s: float = float("inf"),
    on_step: StepWatcher | None = None,
) -> Run:
    """Serve `traffic` on `deployment` step by step, in virtual time.

    Arguments:
        judged: a mask [requests]; the run ends when all of these have their tokens, and figures are
            about them. None judges all.
        window_s: begin and end of the time that watts and shares are of; None takes the arrivals of
            the judged requests, or without `judged` the whole run.
        levels: the run ends early once one of these is certain to be missed by judged requests.
        until_s: no step begins later.
        on_step: is called with every step.

    The same arguments give the same run. Raises ConfigError for a mask without a request, for a
    request that is longer than the context or than a rank's KV, and for a prefill policy that does
    not exist.
    """
    # Imported here: it loads vLLM, which takes seconds that a report without a simulation saves.
    from serving.plugin.virtual_serving import serve_in_virtual_time

    begin_s, end_s = _window_of(traffic, judged) if window_s is None else window_s
    meter = _WindowMeter(begin_ns=begin_s * NS_PER_S, end_ns=end_s * NS_PER_S)

    def watch(
        cost: StepCost, batch: StepBatch, *, begin_ns: int, queues: Sequence[RankQueues]
    ) -> None:
        meter.add(cost, begin_ns)
        if on_step is not None:
            on_step(cost, batch, begin_ns=begin_ns, queues=queues)

    served = serve_in_virtual_time(
        traffic,
        deployment.cost_model,
        deployment.limits,
        levels=levels,
        among=judged,
        until_s=until_s,
        on_step=watch,
    )
    if np.isinf(end_s):
        end_s = served.emulated_s
        meter.end_ns = end_s * NS_PER_S
    return Run(
        served=served,
        judged=np.ones(len(traffic), dtype=np.bool_) if judged is None else judged,
        begin_s=begin_s,
        end_s=end_s,
        chip_watts=meter.watts(deployment.idle_watts),
        busy_share=meter.busy_share,
        throttled_share=meter.throttled_share,
    )


def _window_of(traffic: Traffic, judged: Bools | None) -> tuple[float, float]:
    """From the first judged arrival to the last; without `judged` from 0 to the end, whenever."""
    if judged is None:
        return 0.0, float("inf")
    if not judged.any():
        raise ConfigError(field="judged", value="no request", expected="at least one of them")
    arrival_s = traffic.arrival_s[judged]
    begin_s, end_s = float(arrival_s[0]), float(arrival_s[-1])
    return begin_s, max(end_s, float(np.nextafter(begin_s, np.inf)))


@dataclass(slots=True)
class _WindowMeter:
    """Sums the steps that begin in [`begin_ns`, `end_ns`).

    `throttled_ns`: by how much power limits lengthen steps.
    """

    begin_ns: float
    end_ns: float
    busy_ns: int = 0
    throttled_ns: float = 0.0
    joules: float = 0.0

    def add(self, cost: StepCost, begin_ns: int) -> None:
        """Count a step, if it begins within the stretch."""
        if self.begin_ns <= begin_ns < self.end_ns:
            self.busy_ns += cost.duration_ns
            self.throttled_ns += cost.parts_ns[THROTTLE]
            self.joules += cost.chip_joules

    def watts(self, idle_watts: float) -> float:
        """Mean watts of the window, idle times included; 0 for an empty window."""
        idle_ns = max(0.0, self.end_ns - self.begin_ns - self.busy_ns)
        joules = self.joules + idle_watts * idle_ns / NS_PER_S
        return joules / (self.busy_ns + idle_ns) * NS_PER_S if self.busy_ns + idle_ns else 0.0

    @property
    def busy_share(self) -> float:
        """At most 1: a step may outlast the window in which it begins."""
        length_ns = self.end_ns - self.begin_ns
        return min(1.0, self.busy_ns / length_ns) if length_ns else 0.0

    @property
    def throttled_share(self) -> float:
        """Of the steps' time."""
        return self.throttled_ns / self.busy_ns if self.busy_ns else 0.0

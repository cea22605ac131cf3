"""The driver of a simulation: schedulers in virtual time, metered."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ConfigError
from emulator.units import NS_PER_S
from loadgen.measures.slo import Bound
from loadgen.workloads.traffic import Traffic
from serving.engine.step_batch import StepWatcher
from serving.simulator.run import Run
from serving.simulator.simulated_deployment import SimulatedDeployment
from serving.simulator.virtual_serving import Progress, serve_in_virtual_time

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
    progress: Progress | None = None,
) -> Run:
    """Serve `traffic` on `deployment` step by step, in virtual time.

    Arguments:
        judged: a mask [requests] of the figures; the run ends with their last token. None judges
            all.
        window_s: of watts and shares; None takes the judged requests' arrivals, or without `judged`
            the whole run.
        levels: the run ends early once judged requests are certain to miss one of these.
        until_s: no step begins later.
        on_step: called with every step.
        progress: called every few steps with the requests that are done and the emulated seconds;
            it may raise StopSimulation, and the run has what there is.

    Deterministic. Raises ConfigError for an empty mask, a request above the context or a rank's KV,
    and an unknown prefill policy.
    """
    begin_s, end_s = _window_of(traffic, judged) if window_s is None else window_s
    served, steps = serve_in_virtual_time(
        deployment,
        traffic,
        levels=levels,
        among=judged,
        until_s=until_s,
        on_step=on_step,
        progress=progress,
    )
    end_s = served.emulated_s if np.isinf(end_s) else end_s
    within = (steps.begin_ns >= begin_s * NS_PER_S) & (steps.begin_ns < end_s * NS_PER_S)
    engines = deployment.replicas.count
    length_ns = (end_s - begin_s) * NS_PER_S * engines
    busy_ns = int(steps.duration_ns[within].sum())
    # A step may outlast the window in which it begins.
    engine_ns = max(length_ns, busy_ns)
    joules = float(steps.joules[within].sum())
    joules += deployment.idle_watts * (engine_ns - busy_ns) / NS_PER_S
    throttled_ns = float(steps.throttled_ns[within].sum())
    return Run(
        served=served,
        judged=np.ones(len(traffic), dtype=np.bool_) if judged is None else judged,
        begin_s=begin_s,
        end_s=end_s,
        chip_watts=engines * joules / engine_ns * NS_PER_S if engine_ns else 0.0,
        busy_share=min(1.0, busy_ns / length_ns) if length_ns else 0.0,
        throttled_share=throttled_ns / busy_ns if busy_ns else 0.0,
    )


def _window_of(traffic: Traffic, judged: Bools | None) -> tuple[float, float]:
    """From the first judged arrival to the last; without `judged` from 0 to infinity."""
    if judged is None:
        return 0.0, float("inf")
    if not judged.any():
        raise ConfigError(field="judged", value="no request", expected="at least one of them")
    arrival_s = traffic.arrival_s[judged]
    begin_s, end_s = float(arrival_s[0]), float(arrival_s[-1])
    return begin_s, max(end_s, float(np.nextafter(begin_s, np.inf)))

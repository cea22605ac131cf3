"""The driver of a simulation: schedulers in virtual time, metered."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from emulator.arrays import Bools, Float64s
from emulator.errors import ConfigError
from emulator.units import NS_PER_S
from loadgen.measures.slo import Bound
from loadgen.workloads.traffic import Traffic
from serving.engine.step_batch import StepWatcher
from serving.simulator.machine_calls import TimedCall
from serving.simulator.run import Run
from serving.simulator.run_log import Logs, StepSums
from serving.simulator.serve_traffic import serve_in_virtual_time
from serving.simulator.session_pauses import pause_ns
from serving.simulator.simulated_deployment import SimulatedDeployment
from serving.simulator.virtual_serving import Progress

if TYPE_CHECKING:
    from serving.simulator.day_night import SimulatedDayNight


def simulate(  # noqa: PLR0913  a keyword for each thing in which runs differ
    deployment: SimulatedDeployment,
    traffic: Traffic,
    *,
    judged: Bools | None = None,
    window_s: tuple[float, float] | None = None,
    levels: Sequence[Bound] = (),
    until_s: float = float("inf"),
    calls: Sequence[TimedCall] = (),
    timeout_s: float | None = None,
    seed: int = 0,
    on_step: StepWatcher | None = None,
    progress: Progress | None = None,
    day_night: "SimulatedDayNight | None" = None,
    logs: bool = True,
) -> Run:
    """Serve `traffic` on `deployment` step by step, in virtual time.

    Arguments:
        judged: a mask [requests] of the figures; the run ends with their last token. None judges
            all. Where engines go ahead of others, some end at other steps than that, which no
            figure shows but `served.steps`.
        window_s: of watts and shares; None takes the judged requests' arrivals, or without `judged`
            the whole run.
        levels: the run ends early once judged requests are certain to miss one of these.
        until_s: no step begins later.
        calls: faults, repairs and hand-overs of chips, each at its time to one replica's machine.
        timeout_s: from its arrival on, after which a client gives a request up; None: never.
        seed: of the draws which drafts are right.
        on_step: called with every step.
        progress: called every few steps with the requests that are done and the emulated seconds;
            it may raise StopSimulation, and the run has what there is.
        day_night: a policy that hands chips to training and back as demand goes, from 0:00 on a
            Monday unless it says another time; chips that serve prompts alone stay.
        logs: keep each step and token. Without, the run has the times of first and last tokens, and
            totals; memory grows with requests alone, unless a part of the run is judged;
            `throttled_share` may differ in its last bits, by the order of a sum. Of requests that
            wait for others only for those that come a pause later, without calls and timeouts.

    Deterministic. Raises ConfigError for totals of such, an empty mask, a request above the
    context or a rank's KV, and an unknown prefill policy; this and LeaseRefused for a call that a
    machine refuses.
    """
    if judged is not None and not judged.any():
        raise ConfigError(field="judged", value="no request", expected="at least one of them")
    is_part = judged is not None or (window_s is not None and np.isfinite(window_s[1]))
    comes = bool(calls) or timeout_s is not None or day_night is not None
    if not logs and (not pause_ns(traffic) or (traffic.sessions and comes)):
        expected = "tokens that are kept, for requests that wait for others"
        raise ConfigError(field="logs", value=logs, expected=expected)
    kept = Logs.STEPS if is_part else Logs.TOTALS
    served, sent, steps, handovers = serve_in_virtual_time(
        deployment,
        traffic,
        levels=levels,
        among=judged,
        until_s=until_s,
        calls=calls,
        timeout_s=timeout_s,
        seed=seed,
        on_step=on_step,
        progress=progress,
        day_night=day_night,
        logs=Logs.ALL if logs else kept,
    )
    judged = None if judged is None else judged[sent]
    begin_s, end_s = window_s or _window_of(served.arrival_s, judged)
    to_the_end = np.isinf(end_s)
    end_s = served.emulated_s if to_the_end else end_s
    begin_ns, end_ns = round(begin_s * NS_PER_S), round(end_s * NS_PER_S)
    sums = steps if isinstance(steps, StepSums) else steps.within(begin_ns, end_ns)
    engines = deployment.engines
    length_ns = (end_s - begin_s) * NS_PER_S * engines
    # A step may outlast the window in which it begins.
    seconds = max(length_ns, sums.busy_ns) / engines / NS_PER_S
    if to_the_end and sums.are_all:  # with hand-overs and lost chips, which are in no step
        joules = served.joules - deployment.all_idle_watts * begin_s
    else:
        joules = deployment.all_idle_watts * seconds
        joules += sums.joules
    return Run(
        served=served,
        sent=sent,
        judged=np.ones(len(served.traffic), dtype=np.bool_) if judged is None else judged,
        begin_s=begin_s,
        end_s=end_s,
        chip_watts=joules / seconds if seconds else 0.0,
        busy_share=min(1.0, sums.busy_ns / length_ns) if length_ns else 0.0,
        throttled_share=sums.throttled_ns / sums.busy_ns if sums.busy_ns else 0.0,
        handovers=None if handovers is None else handovers[0],
        calls=() if handovers is None else handovers[1],
    )


def _window_of(arrival_s: Float64s, judged: Bools | None) -> tuple[float, float]:
    """From the first judged arrival to the last; without `judged` from 0 to infinity."""
    if judged is None:
        return 0.0, float("inf")
    came_s = arrival_s[judged & ~np.isnan(arrival_s)]
    begin_s, end_s = (float(came_s.min()), float(came_s.max())) if len(came_s) else (0.0, 0.0)
    return begin_s, max(end_s, float(np.nextafter(begin_s, np.inf)))

"""The driver of a simulation of known traffic: its result, and the run that is made for it."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from emulator.arrays import Bools
from emulator.units import NS_PER_S
from loadgen.measures.slo import Bound
from loadgen.workloads.traffic import Traffic
from serving.engine.step_batch import StepWatcher
from serving.simulator.machine_calls import TimedCall
from serving.simulator.oversized_requests import refuse_what_never_fits
from serving.simulator.pools_ahead import PromptsHeldUp
from serving.simulator.run_log import Logs, StepLog, StepSums
from serving.simulator.simulated_deployment import SimulatedDeployment
from serving.simulator.virtual_serving import Progress, StopSimulation, VirtualServing
from serving.traffic.serving_run import Ending, ServingRun

if TYPE_CHECKING:
    from serving.simulator.day_night import SimulatedDayNight
    from serving.simulator.run import HandoverOutcome


def serve_in_virtual_time(  # noqa: PLR0913  as `simulate`
    deployment: SimulatedDeployment,
    traffic: Traffic,
    *,
    levels: Sequence[Bound] = (),
    among: Bools | None = None,
    until_s: float = float("inf"),
    calls: Sequence[TimedCall] = (),
    timeout_s: float | None = None,
    seed: int = 0,
    on_step: StepWatcher | None = None,
    progress: Progress | None = None,
    day_night: "SimulatedDayNight | None" = None,
    logs: Logs = Logs.ALL,
) -> (
    "tuple[ServingRun, Bools, StepLog | StepSums,"
    " tuple[HandoverOutcome, tuple[TimedCall, ...]] | None]"
):
    """Serve `traffic` until all requests, or those in the mask `among` [requests], have their
    tokens.

    A run ends earlier when one of `levels` is certain to be missed by those requests, when no step
    begins before `until_s`, or when `progress` raises StopSimulation; the result says which. It is
    of the requests of a mask, [requests]: those that the times of closed loops let begin.
    `calls` come to the machines at their times; requests without a last token `timeout_s` after
    their arrival are aborted; `on_step` gets every step; `day_night` hands chips over. Without
    all `logs` there are totals, as `simulate` says.

    Raises ConfigError for a request longer than the context or a rank's KV, and for an unknown
    prefill policy, a timeout not above 0; this and LeaseRefused for a call that a machine refuses.
    """
    for pool, part in deployment.parts_of(traffic):
        refuse_what_never_fits(pool, part)
    judged = np.ones(len(traffic), dtype=np.bool_) if among is None else among
    make = partial(
        VirtualServing,
        deployment,
        traffic,
        judged,
        calls=calls,
        timeout_s=timeout_s,
        seed=seed,
        on_step=on_step,
        progress=progress,
        day_night=day_night,
        logs=logs,
    )
    serving, until_ns = make(), until_s * NS_PER_S
    try:
        try:
            ending = serving.serve(levels, until_ns=until_ns)
        except PromptsHeldUp:
            serving = make()
            ending = serving.serve(levels, until_ns=until_ns, may_go_ahead=False)
    except StopSimulation:
        ending = Ending.STOPPED
    served = serving.result(serving.ended(ending))
    return served, serving.sent, serving.log(), serving.machines.handovers(served, serving.now_ns)

"""The driver of a long simulation: a stream of requests, under a policy of day and night."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from emulator.errors import ConfigError
from serving.simulator.day_night import DaySample, SimulatedDayNight
from serving.simulator.machine_calls import TimedCall
from serving.simulator.request_stream import RequestStream, StreamedArrivals
from serving.simulator.run_log import Logs
from serving.simulator.simulated_deployment import SimulatedDeployment
from serving.simulator.virtual_serving import Progress, VirtualServing


def serve_stream(
    deployment: SimulatedDeployment,
    stream: RequestStream,
    day_night: SimulatedDayNight,
    *,
    calls: Sequence[TimedCall] = (),
    progress: Progress | None = None,
) -> Sequence[DaySample]:
    """Serve all of a stream; returns totals at each decision, and at the end.

    As `simulate`, without a record of each request, so that memory does not grow with the day. A
    preempted request is computed again: none finds its blocks in a prefix cache.
    Raises ConfigError for engines that do not take turns, or make their steps one by one alone, and
    for a load under which too many requests wait.
    """
    table, limits = stream.table, replace(deployment.limits, prefix_caching=False)
    serving = VirtualServing(
        replace(deployment, limits=limits),
        table,
        np.ones(len(table), dtype=np.bool_),
        calls=calls,
        timeout_s=None,
        seed=0,
        on_step=None,
        progress=progress,
        day_night=day_night,
        logs=Logs.TOTALS,
        stream=stream,
    )
    controller, arrivals = serving.machines.day_night, serving.arrivals
    assert controller is not None, "no policy"
    assert isinstance(arrivals, StreamedArrivals), "no stream"
    if not serving.goes_side_by_side(looks=False):
        expected = "engines that take turns, with a built-in choice of ranks and no drafts"
        raise ConfigError("stream", "steps one by one", expected)
    controller.samples = []
    serving.ended(serving.serve((), until_ns=float("inf")))
    arrivals.let_go()
    return controller.samples

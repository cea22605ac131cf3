"""Recording of a running server's steps."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Final

from emulator.errors import ConfigError
from emulator.units import NS_PER_S
from serving.analysis.profile.profiled_run import WHAT_IF_FACTOR, ProfiledRun, chips_of, moments_of
from serving.commands.analysis_options import say
from serving.commands.control_connection import connect
from serving.wire import control_call

if TYPE_CHECKING:
    from emulator.ultraserver.ceilings import Ceilings
    from serving.server.control.control_client import ControlClient
    from serving.wire.control_call import RecordingState
    from serving.wire.step_record import StepRecord, StepWhatIf

_SECONDS: Final = 10.0
_POLL_S: Final = 0.2
_STALLED_S: Final = 60.0
"""Wall seconds without progress after which the engine counts as idle."""


def profile_server(args: argparse.Namespace) -> tuple[ProfiledRun, Ceilings]:
    """Record for the time in `args` and fetch the recording.

    Raises:
        ConfigError: a time that is not above 0.
        UltraServeError: no answer of the server, or another recording has begun.
    """
    wall_s = _SECONDS if args.seconds is None else args.seconds
    for name, value in (("seconds", wall_s), ("emulated-seconds", args.emulated_seconds)):
        if value is not None and not 0 < value < float("inf"):
            raise ConfigError(name, value, "a number above 0")
    with connect(args) as client:
        begun = client.call(control_call.RECORD_STEPS, steps_max=args.keep_steps)
        try:
            if args.emulated_seconds is None:
                say(f"recording for {wall_s:g} s")
                time.sleep(wall_s)
            else:
                say(f"recording for {args.emulated_seconds:g} emulated s")
                wait_emulated(client, begun, args.emulated_seconds)
        finally:
            ended = client.call(control_call.RECORD_STEPS, ends=begun.recording)
        return fetch(client, ended), ended.ceilings


def wait_emulated(client: ControlClient, begun: RecordingState, emulated_s: float) -> None:
    """Wait for `emulated_s`, or until the engine is idle."""
    until_ns = begun.now_ns + round(emulated_s * NS_PER_S)
    last, moved_s = begun, time.monotonic()
    while last.now_ns < until_ns:
        time.sleep(_POLL_S)  # polls another process
        now = client.call(control_call.GET_RECORDING, recording=begun.recording)
        if now.now_ns > last.now_ns:
            last, moved_s = now, time.monotonic()
        elif time.monotonic() - moved_s > _STALLED_S:
            passed_s = (last.now_ns - begun.now_ns) / NS_PER_S
            say(f"the engine is idle after {passed_s:.3f} emulated s")
            return


def fetch(client: ControlClient, ended: RecordingState) -> ProfiledRun:
    """All of a recording that has ended."""
    steps: list[StepRecord] = []
    while (
        page := client.call(
            control_call.GET_STEPS,
            recording=ended.recording,
            first_step=steps[-1].step + 1 if steps else 0,
        )
    ).steps:
        steps.extend(page.steps)
    what_ifs: list[StepWhatIf] = [
        client.call(
            control_call.GET_WHAT_IF,
            recording=ended.recording,
            sample=sample,
            factor=WHAT_IF_FACTOR,
        )
        for sample in range(ended.samples)
    ]
    state = client.call(control_call.GET_STATE)
    return ProfiledRun(
        source="live",
        system=state.system,
        model=state.model,
        weights=state.weights,
        routing=state.routing,
        calibration=client.call(control_call.DESCRIBE_SYSTEM).calibration,
        tp=state.partition.tp,
        begin_ns=ended.begin_ns,
        end_ns=ended.now_ns,
        chips=chips_of(state, ended.ceilings.idle_watts),
        kv_blocks=tuple(rank.kv_blocks for rank in state.ranks),
        steps=tuple(steps),
        dropped=ended.dropped,
        moments=moments_of(state.faults, ended.begin_ns, ended.now_ns),
        expert_imbalance=state.expert_balance.imbalance,
        what_ifs=tuple(what_ifs),
    )

"""A live night that is fast-forwarded has the cost model's tokens and joules, and a real loss."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from serving.server.control.control_client import ServerUnreachable
from serving.server.training.job_spec import read_spec
from serving.server.training.job_timing import job_terms
from serving.simulator.job_cost import best_job
from serving.simulator.simulated_job import SimulatedJob
from serving.traffic.start_time import START_S
from serving.wire import control_call
from serving.wire.day_night_state import DayNightState
from tests.e2e.server_answers import control as control_of
from tests.e2e.server_process import ULTRASERVE, started

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]

WAIT_S = 360.0
NS = 1_000_000_000


def test_a_night_has_the_tokens_and_joules_of_a_simulated_one(tmp_path: Path) -> None:
    corpus, directory = tmp_path / "corpus", tmp_path / "training"
    corpus.mkdir()
    for number in range(60):
        lines = (f"line {line} of file {number}: the bridge stands.\n" for line in range(200))
        (corpus / f"{number}.txt").write_text("".join(lines))
    arguments = (
        *("--chips", "4", "--max-num-batched-tokens", "512", "--max-model-len", "1024"),
        *("--clock", "real", "--day-night", "manual", "--drain-grace", "0.1s"),
        *("--group-chips", "2", "--lend-chips", "2", "--train-pace", "fast-forward"),
        *("--train-dir", str(directory), "--train-corpus", str(corpus)),
    )
    with started(ULTRASERVE, *arguments) as server:
        server.wait_ready()
        with control_of(server, timeout_s=60.0) as control:

            def wait(condition: Callable[[DayNightState], bool]) -> DayNightState:
                end_s = time.monotonic() + WAIT_S
                while time.monotonic() < end_s:
                    server.look()
                    # A busy host may take a call's time to start the chips that come back.
                    with contextlib.suppress(ServerUnreachable):
                        if condition(state := control.call(control_call.GET_DAY_NIGHT)):
                            return state
                    time.sleep(0.3)  # polls another process
                raise AssertionError(server.log()[-5000:])

            control.call(control_call.SET_PHASE, group=1, phase="training")
            wait(lambda state: state.job.step > 5)
            by_night = control.call(control_call.GET_STATE)
            control.call(control_call.SET_PHASE, group=1, phase="serving")
            morning = wait(lambda state: state.groups[1].phase == "serving")
            telemetry = control.call(control_call.GET_HARDWARE).telemetry

    job, (lease,) = morning.job, morning.leases
    assert (job.phase, job.pace, job.lag_s) == ("stopped", "fast-forward", 0.0)
    assert job.loss is not None
    assert 0 < job.tokens < job.trained_tokens
    told = lease.training
    assert told is not None
    assert (told.steps, told.tokens) == (job.trained_steps, job.trained_tokens)
    assert told.joules == pytest.approx(job.joules)
    assert telemetry.training_joules == pytest.approx(job.joules)
    assert telemetry.training_tokens == job.trained_tokens

    spec = read_spec(directory / "job.json")
    terms = job_terms(spec)
    cost = best_job(terms, spec.system_chips)
    assert cost is not None
    idle_watts = terms.system.chip.idle_watts.value
    simulated = SimulatedJob(lambda _: cost, start_s=START_S, idle_chip_watts=idle_watts)
    simulated.start(spec.system_chips)
    simulated.advance(round(job.emulated_s * NS) - cost.save.duration_ns - cost.step_ns // 2)
    simulated.stop()
    assert simulated.ready_ns is not None
    simulated.advance(simulated.ready_ns)
    assert job.trained_tokens == pytest.approx(simulated.work.tokens, rel=0.02)
    assert job.joules == pytest.approx(simulated.work.joules, rel=0.02)
    watts = sum(by_night.chips[chip].watts for chip in lease.chips)
    assert watts == pytest.approx(cost.watts)

"""Chips of a server train and come back, under load, and nobody who asks it for text notices.

One engine serves the file; the nights of a policy, and the crashes, are not in the everyday suite.
"""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Self

import httpx
import psutil
import pytest

from serving.server.control.control_client import ControlClient, RefusedByServer
from serving.server.training.job_status import read_curve
from serving.wire import control_call
from serving.wire.day_night_state import DayNightState
from tests.e2e.server_answers import control as control_of
from tests.e2e.server_process import ROOT, ULTRASERVE, ServerProcess, started
from tests.emulator.fleet_steps import left_of

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1500)]

MODEL = "small-moe"
WAIT_S = 240.0
PROMPTS = ["The old bridge", "import numpy as np\n", "Four chips stand in a row, and the first of"]
DILATION = 20  # a job and four chips on two cores: about what they keep up with
DAY_LENGTH_S = 8  # emulated
RATE_PER_WALL_S = 0.5


@dataclass
class Clients:
    """Several clients that ask one after another, greedily, and note what became of it."""

    url: str
    failures: list[str] = field(default_factory=list)
    texts: dict[str, set[str]] = field(default_factory=dict)
    fingerprints: list[str] = field(default_factory=list)
    answered: int = 0
    _ended: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Self:
        for number in range(3):
            thread = threading.Thread(target=self._ask, args=(number,))
            self._threads.append(thread)
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, number: int) -> None:
        with httpx.Client(timeout=180.0) as http:
            for turn in itertools.count(number):
                if self._ended.is_set():
                    return
                self._ask_one(http, PROMPTS[turn % len(PROMPTS)])

    def _ask_one(self, http: httpx.Client, prompt: str) -> None:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 24, "temperature": 0}
        try:
            answer = http.post(f"{self.url}/v1/completions", json=body | {"ignore_eos": True})
        except httpx.HTTPError as error:
            self.failures.append(repr(error))
            return
        if answer.status_code != 200 or answer.json()["usage"]["completion_tokens"] != 24:
            self.failures.append(answer.text)
            return
        self.answered += 1
        self.texts.setdefault(prompt, set()).add(answer.json()["choices"][0]["text"])
        self.fingerprints.append(answer.json()["system_fingerprint"])
        time.sleep(0.2)  # a steady load that two cores keep up with


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("training")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some text that is learnt quickly: enough files that some are held out."""
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(60):
        lines = (f"line {line} of file {number}: the bridge stands.\n" for line in range(200))
        (folder / f"{number}.txt").write_text("".join(lines))
    return folder


@pytest.fixture(scope="module")
def server(training: Path, corpus: Path) -> Iterator[ServerProcess]:
    arguments = (
        *("--chips", "4", "--max-num-batched-tokens", "512", "--max-model-len", "1024"),
        *("--clock", f"dilated:{DILATION}", "--disable-uvicorn-access-log"),
        *("--day-night", "manual", "--day-start", "12:00", "--day-length", f"{DAY_LENGTH_S}s"),
        *("--group-chips", "2", "--lend-chips", "2", "--drain-grace", "0.1s"),
        *("--train-dir", str(training), "--train-corpus", str(corpus)),
        *("--publish", "if-better"),
    )
    with started(ULTRASERVE, *arguments) as running:
        running.wait_ready()
        yield running


@pytest.fixture(scope="module")
def control(server: ServerProcess) -> Iterator[ControlClient]:
    with control_of(server, timeout_s=60.0) as connected:
        yield connected


def wait(
    server: ServerProcess, control: ControlClient, condition: Callable[[DayNightState], bool]
) -> DayNightState:
    """The state in which `condition` holds at last."""
    end_s = time.monotonic() + WAIT_S
    while not condition(state := control.call(control_call.GET_DAY_NIGHT)):
        assert time.monotonic() < end_s, f"{state}\n{server.log()[-5000:]}"
        server.look()
        time.sleep(0.3)  # polls another process
    return state


def trains(state: DayNightState) -> bool:
    return state.groups[1].phase == "training" and state.job.phase == "running"


def serves(state: DayNightState) -> bool:
    return all(group.phase == "serving" for group in state.groups) and state.job.pid is None


def stepped(beyond: int) -> Callable[[DayNightState], bool]:
    return lambda state: trains(state) and state.job.step > beyond


def test_a_group_trains_and_comes_back_and_nobody_notices(
    server: ServerProcess, control: ControlClient, training: Path
) -> None:
    with Clients(server.url) as clients:
        control.call(control_call.DRAIN, chips=(2, 3), grace_s=0.1, purpose="training")
        by_night = wait(server, control, stepped(3))
        assert control.call(control_call.GET_STATE).chips[2].phase == "training"
        assert clients.failures == []
        # Two chips give the text that four do.
        assert {len(texts) for texts in clients.texts.values()} == {1}
        with pytest.raises(RefusedByServer, match="lease=9: expected one that is out: 1"):
            control.call(control_call.RESUME, lease=9)
        control.call(control_call.RESUME, lease=1)
        by_day = wait(server, control, serves)
        before = clients.answered
        wait(server, control, lambda _: clients.answered > before + 3)

    assert clients.failures == []
    (lease,) = by_day.leases
    assert (lease.chips, lease.phase, lease.lost_chips) == ((2, 3), "serving", ())
    assert lease.experts_moved > 0
    assert lease.bytes_links > 0
    assert lease.bytes_storage > 0
    assert lease.training is not None
    assert lease.training.steps >= by_night.job.step
    assert by_day.job.phase == "stopped"
    assert by_day.job.checkpoint_step == by_day.job.step
    assert by_day.return_s is not None
    assert by_day.return_s <= by_day.burst_response_s - by_day.burst_seen_s


@contextlib.contextmanager
def load(url: str, report: Path, *, wall_s: float) -> Iterator[subprocess.Popen[bytes]]:
    """The load generator, at a steady rate for so long."""
    run = ("run", "--url", url, "--wall-time", "--arrivals", "constant", "--quiet")
    work = ("--rate", f"{RATE_PER_WALL_S}", "--requests", f"{ceil(wall_s * RATE_PER_WALL_S)}")
    sizes = ("--max-input-tokens", "60", "--max-output-tokens", "24", "--timeout", "180")
    command = (sys.executable, "-m", "loadgen", *run, *work, *sizes, "--json", str(report))
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


def test_three_days_and_nights_under_load(
    server: ServerProcess, control: ControlClient, training: Path, tmp_path: Path
) -> None:
    begin = control.call(control_call.GET_DAY_NIGHT)
    version = max(each.number for each in control.call(control_call.GET_STATE).versions)
    steps, answered_s = begin.job.step, begin.burst_response_s - begin.burst_seen_s
    with load(server.url, tmp_path / "report", wall_s=3.3 * DAY_LENGTH_S * DILATION) as running:
        control.call(control_call.SET_POLICY, policy="schedule:20:00-08:00")
        for _ in range(3):
            steps = wait(server, control, stepped(steps)).job.step
            back = wait(server, control, serves)
            assert back.return_s is not None
            assert back.return_s <= answered_s
        assert running.wait(WAIT_S) == 0
        state = wait(server, control, serves)
        control.call(control_call.SET_POLICY, policy="manual")

    report = json.loads((tmp_path / "report").read_text())
    assert report["failed_requests"] == report["aborted_requests"] == 0
    assert report["completed_requests"] == report["requests"] > 100
    assert state.day_s - begin.day_s >= 3 * 86_400
    assert len(state.leases) >= len(begin.leases) + 3
    assert state.restarts == 0
    losses = [point.loss for point in read_curve(training / "curve.jsonl")]
    assert len(losses) >= 9
    assert losses[-1] < losses[0]
    assert control.call(control_call.GET_STATE).versions[-1].number > version
    print(f"lag {report['lag_s']:.2f} of {report['emulated_s']:.2f} emulated s, {steps} steps")


def part_of(job: psutil.Process, name: str) -> psutil.Process:
    """A process of the job's own Ray."""
    for each in job.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if name in " ".join([each.name(), *each.cmdline()]):
                return each
    raise AssertionError(f"no {name} below the job")


@pytest.mark.parametrize(
    "victim", ["job", "ray::ChipWorker", "gcs_server", "raylet/raylet", "fork_server.py"]
)
def test_a_night_with_a_kill(server: ServerProcess, control: ControlClient, victim: str) -> None:
    with Clients(server.url) as clients:
        control.call(control_call.SET_PHASE, group=1, phase="training")
        state = wait(server, control, stepped(control.call(control_call.GET_DAY_NIGHT).job.step))
        assert state.job.pid is not None
        job = psutil.Process(state.job.pid)
        killed = job if victim == "job" else part_of(job, victim)
        os.kill(killed.pid, signal.SIGKILL)
        wait(server, control, stepped(state.job.step))
        control.call(control_call.SET_PHASE, group=1, phase="serving")
        after = wait(server, control, serves)

    assert clients.failures == []
    assert (after.job.pid, after.groups[1].failures) == (None, 0)


def test_a_server_that_is_killed_leaves_nothing_and_no_job(
    server: ServerProcess, control: ControlClient
) -> None:
    control.call(control_call.SET_PHASE, group=1, phase="training")
    state = wait(server, control, stepped(control.call(control_call.GET_DAY_NIGHT).job.step))
    assert state.job.pid is not None
    job = psutil.Process(state.job.pid)
    family = [job, *job.children(recursive=True)]
    server.look()
    server.kill(server.pid)
    server.wait_end()

    assert left_of(family) == []  # it saves first
    assert server.left_over() == []

"""`ultraserve train` as a user starts it: killed, told to stop, robbed of a chip; it goes on."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from serving.server.training.job_spec import FIRST_SAVE_STEPS, JobSpec
from serving.server.training.job_status import JobStatus, TrainingPhase, read_curve, read_status
from tests.emulator.fleet_steps import left_of
from tests.serving.server.training.tiny_job import Job, tiny_spec

pytestmark = [pytest.mark.fleet, pytest.mark.slow]

WAIT_S = 90.0


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("live")


def command(root: Path, path: Path, steps: int, *more: str) -> list[str]:
    spec = tiny_spec(root)
    flags = f"--init 3 --chips 2 --steps {steps} --batch-tokens 64 --sequence-tokens 16 "
    flags += "--warmup 2 --save-every 20 --eval-every 0 --eval-sequences 4 --keep 3"
    where = ["--dir", str(path), "--weights", spec.weights, "--corpus", spec.corpus]
    return [sys.executable, "-m", "serving.main", "train", *where, *flags.split(), *more]


def job_spec(root: Path, steps: int) -> JobSpec:
    """The same job."""
    return tiny_spec(
        root,
        steps=steps,
        micro_batch_tokens=4096,
        learning_rate=2e-3,
        save_every_steps=20,
        eval_every_steps=0,
        keep_checkpoints=3,
    )


def started(
    arguments: list[str], *, talk: int = subprocess.STDOUT, session: bool = False
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=talk, text=True, start_new_session=session
    )


def wait(path: Path, process: subprocess.Popen[str], seen: Callable[[JobStatus], bool]) -> None:
    """Until the job's status is as asked; fails when the job ends before."""
    end_s = time.monotonic() + WAIT_S
    while time.monotonic() < end_s:
        status = read_status(path)
        if status is not None and status.pid == process.pid and seen(status):
            return
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)
    raise AssertionError(f"not seen within {WAIT_S} s: {read_status(path)}")


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def losses(path: Path) -> list[float]:
    return [point.loss for point in read_curve(path / "curve.jsonl")]


def test_a_job_killed_at_random_moments_and_robbed_of_a_chip_has_the_losses_of_one_left_alone(
    root: Path,
) -> None:
    path, steps = root / "killed", 120
    chance = random.Random(5)

    # It ends with all its processes, wherever it was.
    process = started(command(root, path, steps))
    wait(path, process, lambda status: status.step >= 3)
    time.sleep(chance.uniform(0, 0.5))
    children = family(process)
    assert len(children) > 2
    process.kill()
    process.wait()
    assert left_of(children) == []

    # A chip is lost: the job itself goes on from its newest checkpoint.
    process = started(command(root, path, steps, "--json"), talk=subprocess.PIPE)
    wait(path, process, lambda status: status.checkpoint_step >= 40)
    chips = [each for each in family(process) if "ChipWorker" in " ".join(each.cmdline())]
    assert len(chips) == 2
    chips[chance.randrange(2)].send_signal(signal.SIGKILL)
    output, talk = process.communicate(timeout=WAIT_S)

    assert process.returncode == 0, talk
    assert "starting again from the newest checkpoint" in talk
    assert json.loads(output)["phase"] == "done"
    alone = Job(job_spec(root, steps), root / "alone")  # chips in one process learn the same bits
    alone.run()
    assert losses(path) == losses(alone.path)
    assert len(losses(path)) == steps


def test_a_new_job_that_is_killed_begins_again_from_its_early_first_checkpoint(root: Path) -> None:
    path = root / "young"
    process = started(command(root, path, 100_000, "--save-every", "100000"))
    wait(path, process, lambda status: status.step >= FIRST_SAVE_STEPS + 2)
    process.kill()
    process.wait()
    killed = read_status(path)
    assert killed is not None
    assert (killed.checkpoint_step, killed.next_save_step) == (FIRST_SAVE_STEPS, 100_000)
    assert killed.step < 1_000  # far from the second one

    output = subprocess.run(
        command(root, path, FIRST_SAVE_STEPS + 1), check=True, capture_output=True, text=True
    ).stdout

    assert f"goes on from step-{FIRST_SAVE_STEPS}" in output


def test_a_job_that_is_told_to_end_saves_a_checkpoint_and_no_other_trains_in_its_place(
    root: Path,
) -> None:
    path = root / "told"
    process = started(command(root, path, 100_000), session=True)
    wait(path, process, lambda status: status.step >= 5)
    second = subprocess.run(command(root, path, 10), check=False, capture_output=True, text=True)
    children = family(process)

    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: its chips get it too
    output, _ = process.communicate(timeout=WAIT_S)

    assert second.returncode == 2
    assert second.stderr.count("\n") == 1
    assert "expected a directory in which no other process trains" in second.stderr
    assert process.returncode == 0, output
    assert "stops after this step, with a checkpoint" in output
    assert left_of(children) == []
    status = read_status(path)
    assert status is not None
    assert status.phase is TrainingPhase.STOPPED
    assert status.checkpoint_step == status.step >= 5
    assert (path / "checkpoints" / status.checkpoint / "model.safetensors").is_file()

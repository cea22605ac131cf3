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

from serving.training.job_status import JobPhase, JobStatus, read_curve, read_status
from tests.serving.training.tiny_job import tiny_spec

pytestmark = pytest.mark.fleet

WAIT_S = 90.0


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("live")


def command(root: Path, path: Path, steps: int, *more: str) -> list[str]:
    spec = tiny_spec(root)
    flags = f"--init 3 --chips 2 --steps {steps} --batch-tokens 64 --sequence-tokens 16 "
    flags += "--warmup 2 --save-every 20 --eval-every 0 --eval-sequences 4 --keep 3"
    where = ["--output", str(path), "--weights", spec.weights, "--corpus", spec.corpus]
    return [sys.executable, "-m", "serving.main", "train", *where, *flags.split(), *more]


def started(arguments: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


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


def gone(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that are still there after a while."""
    return psutil.wait_procs(processes, timeout=30)[1]


def losses(path: Path) -> list[float]:
    return [point.loss for point in read_curve(path / "curve.jsonl")]


def test_a_job_killed_at_random_moments_and_robbed_of_a_chip_has_the_losses_of_one_left_alone(
    root: Path,
) -> None:
    alone, path = root / "alone", root / "killed"
    steps = 120
    done = subprocess.run(
        command(root, alone, steps, "--json"), check=True, capture_output=True, text=True
    )
    assert json.loads(done.stdout)["phase"] == "done"
    chance = random.Random(5)

    # It ends with all its processes, wherever it was.
    process = started(command(root, path, steps))
    wait(path, process, lambda status: status.step >= 3)
    time.sleep(chance.uniform(0, 0.5))
    children = family(process)
    assert len(children) > 2
    process.kill()
    process.wait()
    assert gone(children) == []

    # A chip is lost: the job itself goes on from its newest checkpoint.
    process = started(command(root, path, steps))
    wait(path, process, lambda status: status.checkpoint_step >= 40)
    chips = [each for each in family(process) if "ChipActor" in " ".join(each.cmdline())]
    assert len(chips) == 2
    chips[chance.randrange(2)].send_signal(signal.SIGKILL)
    output, _ = process.communicate(timeout=WAIT_S)

    assert process.returncode == 0, output
    assert "starting again from the newest checkpoint" in output
    assert losses(path) == losses(alone)
    assert len(losses(path)) == steps


def test_a_job_that_is_told_to_end_saves_a_checkpoint_and_ends_well(root: Path) -> None:
    path = root / "told"
    process = started(command(root, path, 100_000))
    wait(path, process, lambda status: status.step >= 5)
    children = family(process)

    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=WAIT_S)

    assert process.returncode == 0, output
    assert gone(children) == []
    status = read_status(path)
    assert status is not None
    assert status.phase is JobPhase.STOPPED
    assert status.checkpoint_step == status.step >= 5
    assert (path / "checkpoints" / status.checkpoint / "model.safetensors").is_file()


def test_two_jobs_do_not_train_in_one_directory(root: Path) -> None:
    path = root / "shared"
    process = started(command(root, path, 100_000))
    try:
        wait(path, process, lambda status: status.phase is not JobPhase.FAILED)
        second = subprocess.run(
            command(root, path, 10), check=False, capture_output=True, text=True
        )
    finally:
        children = family(process)
        os.kill(process.pid, signal.SIGTERM)
        process.communicate(timeout=WAIT_S)

    assert second.returncode == 2
    assert second.stderr.count("\n") == 1
    assert "expected a directory in which no other process trains" in second.stderr
    assert gone(children) == []

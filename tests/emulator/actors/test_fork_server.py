"""The fork server, driven as Ray's daemon does it: its launcher gets a worker's arguments."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from emulator.actors.fork_server import WORKER_SCRIPT, ForkServer

pytestmark = pytest.mark.process

WAIT_S = 60.0

# Stands for Ray's script: it says what it sees.
WORKER = """
import json, os, sys, time
seen = {
    "name": __name__,
    "arguments": sys.argv,
    "mark": os.environ.get("MARK"),
    "old": os.environ.get("OLD"),
    "directory": os.getcwd(),
    "pid": os.getpid(),
    "group": os.getpgid(0),
    "knows_ray": "ray" in sys.modules and "emulator.actors.chip_worker" in sys.modules,
    "threads": len(os.listdir("/proc/self/task")),
    "sockets": os.popen(f"ls -l /proc/{os.getpid()}/fd").read().count("socket:"),
}
print(json.dumps(seen), flush=True)
if "stay" in sys.argv:
    time.sleep(600)
sys.exit(3)
"""


class Ordered:
    """A fork server in a directory, and a script to have run by it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.script = directory / "scripts" / WORKER_SCRIPT
        self.script.parent.mkdir()
        self.script.write_text(WORKER)
        private = directory / "private"
        private.mkdir()
        self.fork_server = ForkServer(private, {**os.environ, "OLD": "old"})

    def run(self, script: Path, *arguments: str, **environment: str) -> dict[str, object]:
        done = subprocess.run(
            [self.fork_server.executable, "-u", str(script), *arguments],
            env={**os.environ, **environment},
            cwd=self.directory,
            stdout=subprocess.PIPE,
            timeout=WAIT_S,
            check=False,
        )
        # A forked worker may write after its launcher has ended: the pipe is open until it ends.
        return dict(json.loads(done.stdout))


@pytest.fixture
def ordered(tmp_path: Path) -> Iterator[Ordered]:
    ordered = Ordered(tmp_path)
    yield ordered
    ordered.fork_server.stop()


def test_a_worker_is_a_fork_that_has_imported_everything_and_runs_the_script(
    ordered: Ordered,
) -> None:
    one = ordered.run(ordered.script, "--a", "b c", MARK="1")
    two = ordered.run(ordered.script, "--a", "'\"", MARK="2")

    for seen, argument, mark in ((one, "b c", "1"), (two, "'\"", "2")):
        assert seen["knows_ray"]
        assert seen["name"] == "__main__"
        assert seen["arguments"] == [str(ordered.script), "--a", argument]
        assert (seen["mark"], seen["old"]) == (mark, None)
        assert seen["directory"] == str(ordered.directory)
        assert seen["group"] == seen["pid"], "Ray ends a worker's whole process group"
        assert seen["threads"] == 1
        assert seen["sockets"] == 0, "what the fork server holds open is not the worker's"
    assert one["pid"] != two["pid"]


def test_another_script_runs_in_an_interpreter_of_its_own(ordered: Ordered) -> None:
    agent = ordered.script.with_name("agent.py")
    agent.write_text(WORKER)

    seen = ordered.run(agent, "x", MARK="3")

    assert not seen["knows_ray"]
    assert (seen["mark"], seen["arguments"]) == ("3", [str(agent), "x"])


def test_a_worker_of_another_job_or_without_a_nursery_is_started_from_nothing(
    ordered: Ordered,
) -> None:
    assert ordered.run(ordered.script, RAY_JOB_ID="01000000")["knows_ray"]
    assert not ordered.run(ordered.script, RAY_JOB_ID="02000000")["knows_ray"]
    assert ordered.run(ordered.script, RAY_JOB_ID="01000000")["knows_ray"]

    ordered.fork_server.stop()
    ordered.fork_server.stop()

    assert not ordered.run(ordered.script, RAY_JOB_ID="01000000")["knows_ray"]


OWNER = """
import os, sys, time
from pathlib import Path
from emulator.actors.fork_server import ForkServer
fork_server = ForkServer(Path(sys.argv[1]), dict(os.environ))
print(fork_server._process.pid, flush=True)
time.sleep(600)
"""


def test_the_nursery_ends_with_its_owner_however_that_ends(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert owner.stdout is not None
        fork_server = psutil.Process(int(owner.stdout.readline()))
        assert fork_server.is_running()
    finally:
        owner.kill()
        owner.wait()

    assert comes_true(lambda: not fork_server.is_running())


def comes_true(condition: Callable[[], bool]) -> bool:
    end_s = time.monotonic() + WAIT_S
    while not condition() and time.monotonic() < end_s:
        time.sleep(0.05)
    return condition()

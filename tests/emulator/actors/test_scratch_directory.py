import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from emulator.actors import scratch_directory
from emulator.actors.scratch_directory import ScratchDirectory

pytestmark = pytest.mark.process

WAIT_S = 30.0


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def watchers(path: Path) -> list[psutil.Process]:
    """The processes that wait for the owner of `path`."""
    script = scratch_directory.__file__
    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if script in command and str(path) in command:
            found.append(process)
    return found


def comes_true(condition: object) -> bool:
    assert callable(condition)
    end_s = time.monotonic() + WAIT_S
    while not condition() and time.monotonic() < end_s:
        time.sleep(0.05)
    return bool(condition())


def test_it_is_new_private_and_empty() -> None:
    one, two = ScratchDirectory("some-"), ScratchDirectory("some-")
    try:
        assert one.path != two.path
        assert one.path.name.startswith("some-")
        assert stat.S_IMODE(one.path.stat().st_mode) == 0o700
        assert list(one.path.iterdir()) == []
    finally:
        one.remove()
        two.remove()


def test_removing_it_takes_everything_and_the_watcher_ends() -> None:
    directory = ScratchDirectory("some-")
    (directory.path / "deep" / "deeper").mkdir(parents=True)
    (directory.path / "deep" / "file").write_text("x")
    assert comes_true(lambda: len(watchers(directory.path)) == 1)

    directory.remove()
    directory.remove()

    assert not directory.path.exists()
    assert comes_true(lambda: not watchers(directory.path))


HOLDER = "import sys, time; file = open(sys.argv[1], 'w'); print(flush=True); time.sleep(600)"


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Callable[..., "subprocess.Popen[bytes]"]]:
    """Starts processes that keep a file open; none outlives the test."""
    started = []

    def start(file: Path, *, python: bool) -> "subprocess.Popen[bytes]":
        if python:
            command = [sys.executable, "-c", HOLDER, str(file)]
            process = subprocess.Popen(command, stdout=subprocess.PIPE)
            assert process.stdout is not None
            process.stdout.readline()
        else:
            with file.open("w") as open_file:
                process = subprocess.Popen(["sleep", "600"], stdout=open_file)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_pythons_that_still_use_it_are_ended_with_it_and_nobody_else(
    tmp_path: Path, holder: Callable[..., "subprocess.Popen[bytes]"]
) -> None:
    directory = ScratchDirectory("some-")
    (directory.path / "deep").mkdir()
    inside = holder(directory.path / "deep" / "file", python=True)
    beside = holder(tmp_path / f"{directory.path.name}-other", python=True)
    no_python = holder(directory.path / "log", python=False)
    with (directory.path / "own").open("w"):  # this process, the owner, stays too
        directory.remove()
        inside.wait(WAIT_S)
        assert comes_true(lambda: not watchers(directory.path))

    assert beside.poll() is None
    assert no_python.poll() is None


def test_a_directory_is_cleared_though_somebody_ended_its_watcher(
    holder: Callable[..., "subprocess.Popen[bytes]"],
) -> None:
    """Ray's agents then outlived the server by half a minute and more, in one run of some."""
    directory = ScratchDirectory("some-")
    assert comes_true(lambda: len(watchers(directory.path)) == 1)
    inside = holder(directory.path / "file", python=True)
    (watcher,) = watchers(directory.path)
    watcher.kill()
    assert comes_true(lambda: not watchers(directory.path))

    directory.remove()

    assert not directory.path.exists()
    assert inside.wait(WAIT_S) == -signal.SIGKILL


def test_a_watcher_is_no_child_of_its_owner_and_not_of_its_session() -> None:
    directory = ScratchDirectory("some-")
    try:
        assert comes_true(lambda: len(watchers(directory.path)) == 1)
        (watcher,) = watchers(directory.path)

        assert watcher.pid not in {child.pid for child in psutil.Process().children(recursive=True)}
        assert os.getsid(watcher.pid) != os.getsid(0)
    finally:
        directory.remove()


OWNER = """
import sys, time
from emulator.actors.scratch_directory import ScratchDirectory
directory = ScratchDirectory("some-")
(directory.path / "file").write_text("x")
print(directory.path, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_it_is_gone_however_its_owner_ends(number: int, tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        text=True,
        start_new_session=True,
    )
    try:
        assert owner.stdout is not None
        path = Path(owner.stdout.readline().strip())
        assert path.parent == tmp_path
        assert (path / "file").exists()

        os.killpg(owner.pid, number)
        owner.wait(WAIT_S)

        assert comes_true(lambda: not path.exists())
        assert comes_true(lambda: not watchers(path))
    finally:
        owner.kill()
        owner.wait()


def test_what_is_written_after_the_owners_end_is_removed_too(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        text=True,
    )
    try:
        assert owner.stdout is not None
        path = Path(owner.stdout.readline().strip())
        owner.kill()
        owner.wait(WAIT_S)
        # As a daemon does that has not noticed yet. Not by this process: who has a file open there
        # is ended.
        late = f"mkdir -p {path}; for n in $(seq 40); do echo x > {path}/late-$n; sleep 0.01; done"
        subprocess.run(["sh", "-c", late], check=False, stderr=subprocess.DEVNULL, timeout=WAIT_S)

        assert comes_true(lambda: not watchers(path))
        assert not path.exists()
    finally:
        owner.kill()
        owner.wait()


STARTER = """
import os, sys, time
from emulator.actors.scratch_directory import ScratchDirectory

directory = ScratchDirectory("some-")
kept = (directory.path / "log").open("w")  # as a Ray that has ended keeps its driver's logs
directory.remove()
for _ in range(3):
    child = os.fork()  # what every start of a program begins with
    if not child:
        time.sleep(0.4)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


def test_what_its_owner_starts_while_it_is_cleared_is_left_alone(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", STARTER], env=environment, check=True, timeout=WAIT_S)

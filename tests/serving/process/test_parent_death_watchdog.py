"""An engine's process ends with the server's, however that ends. The server here is a script."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from serving.access.control_claim import held_if_free
from serving.process.parent_death_watchdog import (
    SERVER_FILES,
    clear_sockets,
    cleared_by_engine,
    sockets_prefix,
)

WAIT_S = 60.0

# It starts a child as vLLM starts its engine's process, and says the child's number. The child
# looks at once, or when the file "go" is there.
SERVER = """
import multiprocessing, sys, time
from pathlib import Path

def engine(go):
    while not Path(go).exists():
        time.sleep(0.01)
    from serving.plugin.register import platform
    platform()
    platform()
    Path(f"{go}-watched").touch()
    time.sleep(600)

if __name__ == "__main__":
    name, go, lock, *files = sys.argv[1:]
    from serving.process.parent_death_watchdog import cleared_by_engine
    import contextlib
    with contextlib.ExitStack() as stack:
        for file in files:
            held = Path(lock) if file.endswith("key") else None
            stack.enter_context(cleared_by_engine(Path(file), unless_held=held))
        child = multiprocessing.get_context("spawn").Process(target=engine, args=(go,), name=name)
        child.start()
    print(child.pid, flush=True)
    time.sleep(600)
"""


# It forks a child as vLLM forks its engine's process, which then looks at nothing.
FORKING_SERVER = """
import multiprocessing, sys, time
from serving.plugin.register import platform
platform()
platform()
child = multiprocessing.get_context("fork").Process(
    target=time.sleep, args=(600,), name=sys.argv[1]
)
child.start()
print(child.pid, flush=True)
time.sleep(600)
"""


class Server:
    """A server's process, and its child."""

    def __init__(
        self,
        directory: Path,
        *,
        name: str = "EngineCore",
        go: bool = True,
        left: str = "ultraserve-a:b",
        code: str = SERVER,
        **environment: str,
    ) -> None:
        self.go = directory / "go"
        if go:
            self.go.touch()
        script = directory / "server.py"
        script.write_text(code)
        # What separates paths elsewhere may be part of one.
        self.left = [directory / left, directory / "key"]
        self.lock = directory / "lock"
        self.left[0].mkdir()
        (self.left[0] / "socket").touch()
        self.left[1].touch()
        (directory / "beside").touch()
        self._popen = subprocess.Popen(
            [sys.executable, str(script), name, str(self.go), str(self.lock), *map(str, self.left)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])} | environment,
        )
        assert self._popen.stdout is not None
        self.child = psutil.Process(int(self._popen.stdout.readline()))

    def kill(self) -> None:
        self._popen.kill()
        self._popen.wait()

    def child_runs(self) -> bool:
        return self.child.is_running() and self.child.status() != psutil.STATUS_ZOMBIE

    def child_watches(self) -> bool:
        return self.go.with_name("go-watched").exists()


@pytest.fixture
def servers() -> Iterator[Callable[..., Server]]:
    made = []

    def make(*args: object, **settings: object) -> Server:
        made.append(Server(*args, **settings))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for server in made:
        server.kill()
        if server.child_runs():
            server.child.kill()


def comes_true(condition: Callable[[], bool]) -> bool:
    end_s = time.monotonic() + WAIT_S
    while not condition() and time.monotonic() < end_s:
        time.sleep(0.02)  # polls other processes
    return condition()


@pytest.mark.process
def test_an_engine_ends_with_its_server_and_removes_what_is_left_of_it(
    servers: Callable[..., Server], tmp_path: Path
) -> None:
    server = servers(tmp_path)
    assert comes_true(server.child_watches)
    threads = server.child.num_threads()
    assert server.child_runs()
    assert all(path.exists() for path in server.left)

    server.kill()

    assert comes_true(lambda: not server.child_runs())
    assert not any(path.exists() for path in server.left)
    assert (tmp_path / "beside").exists()
    assert threads == 2, "the main thread, and one that watches"


@pytest.mark.process
@pytest.mark.parametrize(("name", "ends"), [("EngineCore_DP1", True), ("Process-1", False)])
def test_an_engine_that_is_forked_ends_with_its_server_before_it_looks_and_another_does_not(
    name: str, ends: bool, servers: Callable[..., Server], tmp_path: Path
) -> None:
    server = servers(tmp_path, name=name, code=FORKING_SERVER)
    assert comes_true(lambda: server.child.num_threads() == 1 + ends)

    server.kill()

    if ends:
        assert comes_true(lambda: not server.child_runs())
    else:
        assert server.child_runs()


@pytest.mark.process
def test_an_engine_that_looks_when_its_server_is_gone_ends_too(
    servers: Callable[..., Server], tmp_path: Path
) -> None:
    server = servers(tmp_path, go=False)
    server.kill()
    assert server.child_runs()

    server.go.touch()

    assert comes_true(lambda: not server.child_runs())
    assert not any(path.exists() for path in server.left)


@pytest.mark.process
def test_a_user_s_own_process_does_not_end_with_its_parent(
    servers: Callable[..., Server], tmp_path: Path
) -> None:
    server = servers(tmp_path, name="SomebodyElse")
    assert comes_true(server.child_watches)

    server.kill()
    time.sleep(0.5)  # nothing happens, and that cannot be waited for

    assert server.child_runs()
    assert all(path.exists() for path in server.left)


KILLED = """
import multiprocessing, sys, time
from serving.process.parent_death_watchdog import kill_within
multiprocessing.current_process().name = sys.argv[1]
kill_within(0.1)
time.sleep(float(sys.argv[2]))
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "sleep_s", "code"),
    [("EngineCore", 600, -signal.SIGKILL), ("EngineCore", 0, 0), ("SomebodyElse", 0.5, 0)],
)
def test_an_engine_that_does_not_end_by_itself_is_killed_and_nobody_else(
    name: str, sleep_s: float, code: int
) -> None:
    command = [sys.executable, "-c", KILLED, name, str(sleep_s)]
    ended = subprocess.run(command, cwd=Path(__file__).parents[3], timeout=WAIT_S, check=False)

    assert ended.returncode == code


@pytest.mark.process
def test_the_file_of_a_server_that_has_taken_over_is_left(
    servers: Callable[..., Server], tmp_path: Path
) -> None:
    server = servers(tmp_path)
    assert comes_true(server.child_watches)
    with held_if_free(server.lock) as is_free:
        assert is_free
        server.kill()
        assert comes_true(lambda: not server.child_runs())

    assert [path.exists() for path in server.left] == [False, True]


@pytest.mark.process
def test_what_another_server_left_in_the_environment_is_not_removed(
    servers: Callable[..., Server], tmp_path: Path
) -> None:
    inherited = tmp_path / "ultraserve-inherited"
    inherited.mkdir()
    with cleared_by_engine(inherited):
        told = os.environ[SERVER_FILES]
    (tmp_path / "own").mkdir()
    server = servers(tmp_path / "own", **{SERVER_FILES: told})
    assert comes_true(server.child_watches)

    server.kill()

    assert comes_true(lambda: not server.child_runs())
    assert not any(path.exists() for path in server.left)
    assert inherited.exists()


@pytest.mark.parametrize("told", ["/nowhere", "[]", "7", '{"server": 1}', ""])
def test_a_variable_that_says_something_else_is_nobody_s(
    told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(SERVER_FILES, told)
    with cleared_by_engine(tmp_path / "a"):
        assert paths_in(os.environ[SERVER_FILES]) == [str(tmp_path / "a")]
    assert os.environ[SERVER_FILES] == told


@pytest.mark.process
def test_a_directory_that_is_not_ours_by_name_stays(
    servers: Callable[..., Server], tmp_path: Path
) -> None:
    server = servers(tmp_path, left="home")
    assert comes_true(server.child_watches)

    server.kill()

    assert comes_true(lambda: not server.child_runs())
    assert [path.exists() for path in server.left] == [True, False]


def test_the_sockets_of_a_server_that_has_ended_are_removed_and_no_other_s(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    own, other = (Path(tempfile.mkdtemp(prefix=sockets_prefix(pid))) for pid in (12, 123))
    (own / "socket").touch()
    clear_sockets(12)
    clear_sockets(12)  # again: there is nothing
    assert [own.exists(), other.exists()] == [False, True]


def paths_in(told: str) -> list[str]:
    return [file["path"] for file in json.loads(told)["files"]]


def test_paths_are_named_for_the_time_of_the_block_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(SERVER_FILES, raising=False)
    with cleared_by_engine(tmp_path / "a"):
        with cleared_by_engine(tmp_path / "b:c"):
            both = paths_in(os.environ[SERVER_FILES])
        assert paths_in(os.environ[SERVER_FILES]) == [str(tmp_path / "a")]

    assert both == [str(tmp_path / "a"), str(tmp_path / "b:c")]
    assert SERVER_FILES not in os.environ

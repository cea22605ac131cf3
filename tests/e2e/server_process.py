"""A server as a user starts it: a process with its own session, port and temporary folder.

Other engines may run on the machine, so leftovers are looked for among its own: descendants seen,
its session, and processes that name its folder.
"""

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Self

import psutil

HOST = "127.0.0.1"
ROOT = Path(__file__).resolve().parents[2]
READY_TIMEOUT_S = 240.0
END_TIMEOUT_S = 60.0
_GONE_TIMEOUT_S = 30.0
_SHARED = Path("/dev/shm")
_PORTS = (15_000, 32_000)

ULTRASERVE = (sys.executable, "-m", "serving.main")
ULTRASERVE_SCRIPT = (str(Path(sys.executable).with_name("ultraserve")),)
VLLM = (str(Path(sys.executable).with_name("vllm")),)

Process = tuple[int, float]  # a process id may be used again; with its start it is one process


def free_port() -> int:
    """A free port whose next one, the console's, is free too.

    Below those that the kernel gives to connections: a server takes its ports half a minute later.
    """
    while True:
        port = random.randrange(*_PORTS)
        with socket.socket() as probe, socket.socket() as after, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            after.bind((HOST, port + 1))
            return port


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((HOST, port)) == 0


class ServerProcess:
    """A context that starts the server, and kills it with everything it started."""

    def __init__(
        self,
        *command: str,
        port: int,
        control_port: int = 0,
        environment: Mapping[str, str] = MappingProxyType({}),
        cwd: Path = ROOT,
    ) -> None:
        self.port = port
        self._cwd = cwd
        self._environment = environment
        self.control_port = control_port
        self.url = f"http://{HOST}:{port}"
        self._command = command
        self._seen: dict[Process, str] = {}
        self._shared_before: frozenset[Path] = frozenset()

    def __enter__(self) -> Self:
        # Ray puts Unix sockets into it, whose paths may have 107 characters and not more.
        self.folder = Path(tempfile.mkdtemp(prefix="us", dir="/tmp"))
        self._shared_before = frozenset(_SHARED.glob("*"))
        self._log = (self.folder / "log").open("w+")
        self._popen = subprocess.Popen(
            self._command,
            cwd=self._cwd,
            env=os.environ | self.own_environment | self._environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        return self

    def __exit__(self, *error: object) -> None:
        self.look()
        for pid, _ in self.running():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._popen.wait()
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def console_url(self) -> str:
        """The page, on the default port."""
        return f"http://{HOST}:{self.control_port + 1}"

    @property
    def own_environment(self) -> dict[str, str]:
        """The environment with which commands find the server's files and control key."""
        return {"TMPDIR": str(self.folder), "XDG_RUNTIME_DIR": str(self.folder)}

    @property
    def _runtime(self) -> Path:
        """A user's runtime directory; the server's keys in it end with it."""
        return self.folder / "ultraserve"

    @property
    def pid(self) -> int:
        return self._popen.pid

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def look(self) -> dict[Process, str]:
        """Note the server's processes; returns names and command lines of all ever seen."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if self._is_ours(process):
                    shown = " ".join([process.name(), *process.cmdline()])
                    self._seen[process.pid, process.create_time()] = shown
        return self._seen

    def _is_ours(self, process: psutil.Process) -> bool:
        if os.getsid(process.pid) == self.pid:
            return True
        if any(str(self.folder) in argument for argument in process.cmdline()):
            return True
        parent = process.parent()
        return parent is not None and (parent.pid, parent.create_time()) in self._seen

    def running(self) -> dict[Process, str]:
        """Processes started for this server that still run."""
        alive = {}
        for (pid, started), shown in self._seen.items():
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                if process.create_time() == started and process.status() != psutil.STATUS_ZOMBIE:
                    alive[pid, started] = shown
        return alive

    def wait_until(
        self,
        condition: Callable[[], bool],
        what: str,
        *,
        running: bool = True,
        timeout_s: float = READY_TIMEOUT_S,
    ) -> None:
        """Wait while the server runs, if it has to, noting its processes."""
        end_s = time.monotonic() + timeout_s
        while not condition():
            ended = running and self._popen.poll() is not None
            assert not ended, f"it ended before {what}:\n{self.log()}"
            assert time.monotonic() < end_s, f"no {what} in time:\n{self.log()}"
            self.look()
            time.sleep(0.3)  # polls another process
        self.look()

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        self.wait_until(self._answers, "health", timeout_s=timeout_s)

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(f"{self.url}/health", timeout=2).close()
        except (urllib.error.URLError, OSError):
            return False
        return True

    def runs(self, *names: str) -> bool:
        """Whether a process that one of `names` describes has been seen."""
        return any(name in shown for shown in self.look().values() for name in names)

    def runs_now(self, name: str) -> bool:
        self.look()
        return any(name in shown for shown in self.running().values())

    def imports(self, library: str) -> bool:
        """Whether the server has mapped a file of `library`."""
        with contextlib.suppress(psutil.Error):
            return any(
                f"/{library}/" in each.path for each in psutil.Process(self.pid).memory_maps()
            )
        return False

    def pid_of(self, pattern: str) -> int:
        """The oldest running process whose name and command match the regular expression."""
        self.look()
        found = [
            (born, pid)
            for (pid, born), shown in self.running().items()
            if re.search(pattern, shown)
        ]
        assert found, f"nothing called {pattern} runs"
        return min(found)[1]

    def kill(self, pid: int) -> None:
        assert any(pid == seen for seen, _ in self.look())
        os.kill(pid, signal.SIGKILL)

    def signal(self, number: signal.Signals, *, group: bool = False) -> None:
        """Signal the server, or its whole group like a terminal's Ctrl-C."""
        self.look()
        if group:
            os.killpg(self.pid, number)
        else:
            os.kill(self.pid, number)

    def wait_end(self) -> int:
        try:
            return self._popen.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it goes on:\n{self.log()}") from None

    def left_over(self, timeout_s: float = _GONE_TIMEOUT_S) -> list[str]:
        """Processes, files, shared memory and ports left after all had time to end."""
        end_s = time.monotonic() + timeout_s
        while (left := self._left()) and time.monotonic() < end_s:
            time.sleep(0.2)  # polls other processes
        return left

    def _left(self) -> list[str]:
        self.look()
        files = [str(path) for path in self.folder.glob("ultraserve*") if path != self._runtime]
        files += [str(path) for path in self._runtime.glob("*.key")]
        files += [str(path) for path in self._runtime.glob("*.console")]
        files += [str(path) for path in self._left_memory()]
        ports = [
            f"port {port}"
            for port in (self.port, self.control_port, self.control_port and self.control_port + 1)
            if port and is_open(port)
        ]
        return [*self.running().values(), *files, *ports]

    def _left_memory(self) -> set[Path]:
        """Named shared memory newer than the server, that no other process has open.

        The system does not record its maker, which need not keep it mapped.
        """
        new = set(_SHARED.glob("*")) - self._shared_before
        found = {path for path in new if _is_own(path)}
        if not found:
            return found
        ours = {pid for pid, _ in self.running()}
        for process in Path("/proc").glob("[0-9]*"):
            if int(process.name) not in ours:
                found -= _opened(process)
        return found


def _is_own(path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_uid == os.getuid()
    return False


def _opened(process: Path) -> set[Path]:
    """Files mapped or opened by a process, a directory of /proc; none where not permitted."""
    found: set[Path] = set()
    with contextlib.suppress(OSError):
        lines = (process / "maps").read_text().splitlines()
        found.update(Path(fields[5]) for line in lines if len(fields := line.split(None, 5)) == 6)
    with contextlib.suppress(OSError):
        for file in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                found.add(file.readlink())
    return found


@contextlib.contextmanager
def started(
    command: Sequence[str],
    *arguments: str,
    environment: Mapping[str, str] = MappingProxyType({}),
    cwd: Path = ROOT,
) -> Iterator[ServerProcess]:
    """Start `command serve` with `arguments` on free ports; stock vLLM has no control service.

    `environment` comes on top of this process's own.
    """
    port, control_port = free_port(), 0
    ports = ["--port", str(port)]
    if command in (ULTRASERVE, ULTRASERVE_SCRIPT):
        control_port = free_port()
        ports += ["--control-port", str(control_port)]
    with ServerProcess(
        *command,
        "serve",
        *arguments,
        *ports,
        port=port,
        control_port=control_port,
        environment=environment,
        cwd=cwd,
    ) as server:
        yield server

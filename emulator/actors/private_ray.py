"""Keeps our own Ray private: ports on loopback, and its own token.

A process with a Ray's token and ports can run code. Ray's one token per user has the usual file
permissions; here each Ray gets a new one, in a private directory. Ray opens ports on every
interface even when given 127.0.0.1, unless it is declared a single node, as here.

Its daemons are watched, and ended with it. Without the node's daemon or Ray's server no chip can
start; Ray notices the loss of its server after a minute, and then ends its client process.

Daemons start with SIGTERM blocked: a service manager signals all processes of a server, and the
owner of this Ray decides when it ends. SIGKILL ends them; Ray's workers end with their daemon.
"""

import contextlib
import os
import secrets
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from ray._private import ray_constants, worker
from ray._private.authentication.authentication_token_setup import AUTH_MODE_ENV_VAR
from ray._private.ray_constants import PROCESS_TYPE_GCS_SERVER, PROCESS_TYPE_RAYLET
from ray._raylet import AuthenticationTokenLoader  # type: ignore[attr-defined]  # compiled

from emulator.actors import tokenless_call
from emulator.errors import ConfigError
from startup.import_path import child_environment, variables

_TOKEN: Final = "RAY_AUTH_TOKEN"
_TOKEN_PATH: Final = "RAY_AUTH_TOKEN_PATH"
_AUTHENTICATION: Final = (_TOKEN, _TOKEN_PATH, AUTH_MODE_ENV_VAR)

_ASKED_WALL_S: Final = 60.0
"""Python's start and one call, on a busy host (assumed)."""


def refuse_open_ray() -> None:
    """Raise ConfigError when the environment switches Ray's token authentication off."""
    mode = os.environ.get(AUTH_MODE_ENV_VAR, "token")
    if mode.lower() != "token":
        raise ConfigError(
            AUTH_MODE_ENV_VAR, mode, "unset, or token: whoever reaches Ray's ports could run code"
        )


@contextlib.contextmanager
def own_token(directory: Path) -> Iterator[None]:
    """Give a Ray started meanwhile a new token, in a file of `directory`."""
    path = directory / "token"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode=0o600), "w") as file:
        file.write(secrets.token_hex(32))
    with variables({_TOKEN: None, _TOKEN_PATH: str(path)}):
        forget_token()
        yield


def wants_token(ray_address: str) -> bool:
    """Whether the cluster at "host:port" refuses a client without a token.

    Tested in another process: an open cluster takes this one's token too. Raises OSError when no
    cluster answers.
    """
    environment = child_environment()
    without = {name: value for name, value in environment.items() if name not in _AUTHENTICATION}
    try:
        asked = subprocess.run(
            [sys.executable, "-P", "-m", tokenless_call.__name__, ray_address],
            env={**without, AUTH_MODE_ENV_VAR: "disabled"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ASKED_WALL_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"no answer in {_ASKED_WALL_S:g} s") from None
    if asked.returncode not in (tokenless_call.ANSWERED, tokenless_call.TOKEN_WANTED):
        lines = asked.stderr.strip().splitlines() or [f"exit code {asked.returncode}"]
        raise OSError(lines[-1])
    return asked.returncode == tokenless_call.TOKEN_WANTED


def forget_token() -> None:
    """Let Ray look for its token again: each cluster has its own."""
    AuthenticationTokenLoader.instance().reset_cache()


@contextlib.contextmanager
def loopback_only() -> Iterator[None]:
    """Put the ports of a Ray started meanwhile on 127.0.0.1; it then has one node."""
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        with variables({ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR: "0"}):
            yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


VITAL: Final = (PROCESS_TYPE_RAYLET, PROCESS_TYPE_GCS_SERVER)


@contextlib.contextmanager
def without_sigterm() -> Iterator[None]:
    """Block SIGTERM in this thread and in processes that it starts meanwhile."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def own_daemons() -> dict[str, "subprocess.Popen[bytes]"]:
    """Daemons started by this process, by Ray's names; Ray will end them by SIGKILL."""
    node = worker._global_node
    assert node is not None, "Ray is not started"
    daemons = {}
    for name, (info, *_) in node.all_processes.items():
        info.process.terminate = info.process.kill
        daemons[name] = info.process
    return daemons


class DaemonWatch:
    """Calls `lost` once, from its own thread, with the first of `processes` (ids by name) to end.

    Until `stop`; inert where the system has no pidfds.
    """

    def __init__(self, processes: Mapping[str, int], lost: Callable[[str], None]) -> None:
        self._lost = lost
        self._selector = selectors.DefaultSelector()
        end, self._pipe = os.pipe()
        self._selector.register(end, selectors.EVENT_READ, None)
        self._gone: list[str] = []
        if hasattr(os, "pidfd_open"):
            for name, pid in processes.items():
                try:
                    self._selector.register(os.pidfd_open(pid), selectors.EVENT_READ, name)
                except ProcessLookupError:  # it has ended, and somebody has taken note of that
                    self._gone.append(name)
        self._thread = threading.Thread(target=self._wait, name="ray-daemons", daemon=True)
        self._thread.start()

    def _wait(self) -> None:
        at_once = 0 if self._gone else None
        ended = {key.data for key, _ in self._selector.select(at_once)} | set(self._gone)
        for key in list(self._selector.get_map().values()):
            os.close(key.fd)
        self._selector.close()
        if None not in ended:
            self._lost(sorted(ended)[0])

    def stop(self) -> None:
        """Stop watching; idempotent."""
        pipe, self._pipe = self._pipe, -1
        if pipe >= 0:
            # A process that was forked meanwhile may hold this end too: closing says nothing then.
            with contextlib.suppress(BrokenPipeError):  # it has ended by itself
                os.write(pipe, b"\0")
            os.close(pipe)
            if threading.current_thread() is not self._thread:
                self._thread.join()

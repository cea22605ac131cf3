"""Forks Ray's worker processes from one that has imported everything.

`import ray` takes 0.4 s of a core and 38 MB in every process: for 144 a minute on two cores and 5
GB. Ray's node daemon starts workers with the `sys.executable` of Ray's start. If that is
`ForkServer.executable`, a process imports Ray and the chip at the first request, in its
environment, and forks; the copies share those pages. A forked worker runs Ray's script with Ray's
arguments and environment, in its own process group. Anything else (another script or job, no fork
server) starts a plain interpreter.

This file is the script of both processes; before a fork it imports only the standard library.
"""

import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

WORKER_SCRIPT: Final = "default_worker.py"
"""The script that Ray's daemon runs as a worker."""

_PRELOAD: Final = (
    "ray",
    "ray._private.workers.default_worker",
    "ray._private.runtime_env.setup_hook",
    "ray.util.scheduling_strategies",
    "emulator.actors.chip_worker",
    # What Ray imports for its serializers when a worker gets its first call.
    "ray._common.usage.usage_lib",
    "ray._common.pydantic_compat",
    "pydantic.v1.fields",
    "starlette.datastructures",
    "ray._private.arrow_serialization",
)
_FIXED: Final = ("RAY_JOB_ID", "RAY_RAYLET_PID")
"""Settings that Ray reads once, at import, and forks share: a fleet has one job and daemon."""

_BACKLOG: Final = 1_024
_ORDER_BYTES_MAX: Final = 4_000_000
"""Linux takes at most 2 MB of arguments and environment by default."""


class ForkServer:
    """A process that forks Ray workers; `directory` is private to its user.

    `executable` replaces the Python interpreter. The process ends with `stop` or with its maker.
    """

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        path = directory / "fork_server"
        self.executable = str(directory / "python")
        launcher = shlex.join([sys.executable, "-I", "-S", __file__, sys.executable, str(path)])
        Path(self.executable).write_text(f'#!/bin/sh\nexec {launcher} "$@"\n', encoding="utf-8")
        Path(self.executable).chmod(0o700)
        end, pipe = os.pipe()  # neither end is inherited by other children
        self._pipe: int | None = pipe
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen(_BACKLOG)
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", __file__, "--listen", str(listener.fileno())],
                    stdin=end,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[listener.fileno()],
                    env=environment,
                    start_new_session=True,
                )
            finally:
                os.close(end)

    def stop(self) -> None:
        """End the fork server; idempotent."""
        pipe, self._pipe = self._pipe, None
        if pipe is None:
            return
        os.close(pipe)
        self._process.wait()


class _Order:
    def __init__(self, text: bytes, files: list[int]) -> None:
        fields = json.loads(text)
        self.arguments: list[str] = fields["arguments"]
        self.environment: dict[str, str] = fields["environment"]
        self.directory: str = fields["directory"]
        self.files = files

    def close(self) -> None:
        for file in self.files:
            os.close(file)


def _request(python: str, path: str, arguments: list[str]) -> None:
    """Request a worker from the fork server at `path`; becomes a plain `python` without one."""
    if any(Path(argument).name == WORKER_SCRIPT for argument in arguments):
        order = {
            "arguments": arguments,
            "environment": dict(os.environ),
            "directory": str(Path.cwd()),
        }
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as fork_server:
            fork_server.connect(path)
            socket.send_fds(fork_server, [b"\x01"], [0, 1, 2])
            fork_server.sendall(json.dumps(order).encode())
            fork_server.shutdown(socket.SHUT_WR)
            if fork_server.recv(1):
                return
    os.execv(python, [python, *arguments])


def _tend(listener: socket.socket) -> _Order:
    """Fork a worker for each order until the owner is gone; returns in the worker alone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries the children
    born: dict[str, str] | None = None
    selector = selectors.DefaultSelector()
    selector.register(0, selectors.EVENT_READ)
    selector.register(listener, selectors.EVENT_READ)
    while all(key.fileobj is listener for key, _ in selector.select()):
        customer, _ = listener.accept()
        with customer, contextlib.suppress(OSError, ValueError, KeyError):
            order = _read_order(customer)
            if born is None:
                born = order.environment
                _import_all(born)
            if all(order.environment.get(name) == born.get(name) for name in _FIXED):
                if not os.fork():
                    selector.close()
                    listener.close()
                    return order
                customer.send(b"\x01")
            order.close()
    sys.exit()


def _read_order(customer: socket.socket) -> _Order:
    _, files, _, _ = socket.recv_fds(customer, 1, 3)
    text = bytearray()
    while more := customer.recv(65_536):
        text += more
        if len(text) > _ORDER_BYTES_MAX:
            raise ValueError("an order is too long")
    return _Order(bytes(text), files)


def _import_all(environment: dict[str, str]) -> None:
    os.environ.update(environment)
    for name in _PRELOAD:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # the collector would touch, and so copy, every page in every worker


def _become_worker(order: _Order) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setpgid(0, 0)
    for target, file in enumerate(order.files):
        os.dup2(file, target)
    order.close()
    os.chdir(order.directory)
    os.environ.clear()
    os.environ.update(order.environment)
    scripts = [Path(argument).name for argument in order.arguments]
    sys.argv = order.arguments[scripts.index(WORKER_SCRIPT) :]
    runpy.run_path(sys.argv[0], run_name="__main__")


def _main(arguments: list[str]) -> None:
    if arguments[0] == "--listen":
        # A worker imports us wherever it was started; installed packages come first.
        sys.path.append(str(Path(__file__).resolve().parents[2]))
        _become_worker(_tend(socket.socket(fileno=int(arguments[1]))))
    else:
        _request(arguments[0], arguments[1], arguments[2:])


if __name__ == "__main__":
    _main(sys.argv[1:])

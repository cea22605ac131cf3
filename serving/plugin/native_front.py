"""A front in another process at the engine's own sockets: `serve --front smg`.

The front, a program that is not in Python, takes part as vLLM's further API processes do: the
engine's process connects to its sockets too, and sends it the outputs of its requests. The server's
API process stays, for control calls, metrics, probes and clients of its own port.

The front is started first and awaits an engine. This process answers in the engine's place, gives
the addresses that it learns to the engine, and says that the engine is ready when it is launched.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import zmq
from vllm.v1.engine import core_client
from vllm.v1.engine.core_client import EngineCoreClient

from serving.errors import ServerFailed
from serving.plugin.replaced_attribute import replaced
from serving.process.child_launcher import launched
from serving.process.front_program import (
    API_CLIENT,
    CLOSE_FRONT,
    FRONT_CLIENT,
    FrontProgram,
    handshake_port,
)

_ENGINE: Final = (0).to_bytes(2, "little")
"""The engine's name at sockets: vLLM's of its first one."""

_START_WALL_S: Final = 60.0
"""For the front to answer: it takes a second or two."""

_LOOK_MS: Final = 100

_started: Final[list["NativeFront"]] = []


class NativeFront:
    """The front's process."""

    def __init__(self, program: FrontProgram, process: "subprocess.Popen[bytes]") -> None:
        self.program = program
        self._process = process

    @property
    def has_ended(self) -> bool:
        """Whether its process is gone."""
        return self._process.poll() is not None

    def drain(self) -> None:
        """Have it take no more requests, and end after those that it has; idempotent."""
        if not self.has_ended:
            self._process.terminate()

    def end(self) -> None:
        """End it now; idempotent."""
        self._process.kill()
        self._process.wait()


def native_front() -> NativeFront | None:
    """This server's front, once it is started; None without one."""
    return _started[0] if _started else None


async def close_front(engine: Any, *, closed: bool) -> None:
    """Have `engine`, vLLM's AsyncLLM, refuse the front's new requests, or take them again."""
    await engine.engine_core.call_utility_async(CLOSE_FRONT, closed)


@contextlib.contextmanager
def with_front(program: FrontProgram) -> Iterator[None]:
    """Run a front before the engine that vLLM starts meanwhile. Raises ServerFailed."""
    launch, make = core_client.launch_core_engines, EngineCoreClient.make_async_mp_client
    program.prepare()
    command = launched(program.command(), at_end=signal.SIGKILL)
    environment = program.environment(os.environ)
    process = subprocess.Popen(
        command, env=environment, cwd=program.directory, stdin=subprocess.DEVNULL
    )
    front = NativeFront(program, process)
    _started.append(front)

    @contextlib.contextmanager
    def launch_for_both(*given: Any) -> Iterator[Any]:
        *_, addresses = given
        with introduced(front) as (to_engine, back):
            addresses.inputs.insert(FRONT_CLIENT, to_engine)
            addresses.outputs.insert(FRONT_CLIENT, back)
            with launch(*given) as launched_engines:
                yield launched_engines

    def make_second(*given: Any, **named: Any) -> Any:
        return make(*given, **named | {"client_index": API_CLIENT})

    with (
        replaced(core_client, "launch_core_engines", launch_for_both),
        replaced(EngineCoreClient, "make_async_mp_client", staticmethod(make_second)),
    ):
        try:
            yield
        finally:
            _started.clear()
            front.end()


@contextlib.contextmanager
def introduced(front: NativeFront) -> Iterator[tuple[str, str]]:
    """The front's addresses, from it to the engine and back; at the end the engine is ready."""
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.identity = _ENGINE
    socket.linger = 5_000
    try:
        socket.connect(_handshake(front))
        socket.send(_message("HELLO"))
        yield _addresses(front, socket)
        socket.send(_message("READY"))
    except BaseException:
        socket.linger = 0  # the front may not be there to take what was sent
        raise
    finally:
        socket.close()
        context.term()


def _addresses(front: NativeFront, socket: Any) -> tuple[str, str]:
    end_s = time.monotonic() + _START_WALL_S
    while not socket.poll(_LOOK_MS):
        if front.has_ended:
            raise ServerFailed("its front smg ended before it was ready")
        if time.monotonic() > end_s:
            raise ServerFailed(f"its front smg awaits no engine after {_START_WALL_S:.0f} s")
    told = msgspec.msgpack.decode(socket.recv())["addresses"]
    addresses = [*told["inputs"], *told["outputs"]]
    # Other users may listen at a port of loopback; the front's directory is this user's alone.
    ours = [f"ipc://{front.program.worker}-{end}.sock" for end in ("in", "out")]
    if addresses != ours:
        raise ServerFailed(f"another program than its front listens at {_handshake(front)}")
    return ours[0], ours[1]


def _handshake(front: NativeFront) -> str:
    return f"tcp://127.0.0.1:{handshake_port(front.program.worker)}"


def _message(status: str) -> bytes:
    return msgspec.msgpack.encode({"status": status, "local": True, "headless": False})

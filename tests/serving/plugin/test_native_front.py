"""A front is introduced to the engine by its own addresses, and by no other's."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from serving.errors import ServerFailed
from serving.plugin.native_front import NativeFront, introduced
from serving.process.front_program import handshake_port
from tests.serving.process.test_front_program import program


class Process:
    """Stands for the front's process, which ends when it is told."""

    def __init__(self, *, has_ended: bool = False) -> None:
        self.has_ended = has_ended

    def poll(self) -> int | None:
        return 1 if self.has_ended else None


@contextmanager
def listening(front: NativeFront, directory: Path) -> Iterator[list[Any]]:
    """Something at the front's port that gives addresses in `directory`; what it is told."""
    told: list[Any] = []
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.bind(f"tcp://127.0.0.1:{handshake_port(front.program.worker)}")

    def answer() -> None:
        for _ in range(2):
            if not socket.poll(500):
                return
            engine, message = socket.recv_multipart()
            told.append((engine, msgspec.msgpack.decode(message)["status"]))
            ends = {"inputs": "in", "outputs": "out"}
            addresses = {at: [f"ipc://{directory}/engine-{ends[at]}.sock"] for at in ends}
            socket.send_multipart([engine, msgspec.msgpack.encode({"addresses": addresses})])

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield told
    finally:
        thread.join()
        socket.close(0)
        context.term()


def front_in(directory: Path, *, has_ended: bool = False) -> NativeFront:
    return NativeFront(program(directory), Process(has_ended=has_ended))  # type: ignore[arg-type]


@pytest.mark.long
def test_it_gives_its_addresses_and_is_told_when_the_engine_is_ready(tmp_path: Path) -> None:
    front = front_in(tmp_path)

    with listening(front, tmp_path) as told, introduced(front) as addresses:
        assert [status for _, status in told] == ["HELLO"]

    assert addresses == tuple(f"ipc://{tmp_path}/engine-{end}.sock" for end in ("in", "out"))
    assert told == [(bytes(2), "HELLO"), (bytes(2), "READY")]


@pytest.mark.long
def test_another_program_at_its_port_is_no_client_of_the_engine(tmp_path: Path) -> None:
    front = front_in(tmp_path)

    with (
        listening(front, Path("/elsewhere")),
        pytest.raises(ServerFailed, match="another program than its front listens"),
        introduced(front),
    ):
        pass


def test_a_front_that_ends_before_it_answers_stops_the_start(tmp_path: Path) -> None:
    front = front_in(tmp_path, has_ended=True)

    with pytest.raises(ServerFailed, match="its front smg ended"), introduced(front):
        pass

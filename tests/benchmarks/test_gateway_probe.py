"""What a probe counts as the server's own, and what becomes of one that cannot ask."""

import asyncio
import hashlib
import os
import threading
import time

import pytest

from tests.benchmarks.api_load import Loaded, probed
from tests.e2e.server_process import HOST, free_port

pytestmark = pytest.mark.process

STALL_S = 0.2


def own_s(*, busy_threads: int) -> list[float]:
    """Of each answer of a server whose event loop sleeps before it."""
    ends = threading.Event()
    block = bytes(2**20)

    def work() -> None:
        while not ends.is_set():
            hashlib.sha256(block)  # without the interpreter's lock

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readuntil(b"\r\n\r\n"):
            time.sleep(STALL_S)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async def ask() -> list[float]:
        server = await asyncio.start_server(answer, HOST, 0)
        port = server.sockets[0].getsockname()[1]
        at = Loaded(
            url=f"http://{HOST}:{port}", probe="/", processes=[], engine=[], loop_pid=os.getpid()
        )
        began_s = time.monotonic()
        async with probed(at) as answers:
            await asyncio.sleep(2.0)
        server.close()
        assert all(began_s < each.began_s < time.monotonic() for each in answers)
        return [each.own_s for each in answers]

    threads = [threading.Thread(target=work) for _ in range(busy_threads)]
    for each in threads:
        each.start()
    try:
        return asyncio.run(ask())
    finally:
        ends.set()
        for each in threads:
            each.join()


@pytest.mark.parametrize("busy_threads", [0, 8])
def test_a_stall_of_the_event_loop_shows_whatever_other_threads_wait_for(busy_threads: int) -> None:
    stalls_s = own_s(busy_threads=busy_threads)
    assert stalls_s
    assert min(stalls_s) > 0.9 * STALL_S


def test_a_probe_that_cannot_ask_is_an_error() -> None:
    async def ask() -> None:
        url = f"http://{HOST}:{free_port()}"
        async with probed(Loaded(url=url, probe="/", processes=[], engine=[])):
            await asyncio.sleep(3.0)

    with pytest.raises(RuntimeError, match="ended with code 1"):
        asyncio.run(ask())

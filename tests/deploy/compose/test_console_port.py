"""deploy/compose/console_port.py, run as compose.yaml runs it, before a real server's two ports."""

import asyncio
import contextlib
import runpy
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from serving.server.control.control_address import ControlAddress
from serving.server.control.control_client import ControlClient
from serving.wire import control_call
from tests.deploy.compose.test_compose import FILE, FOLDER, interpolated
from tests.deploy.served_command import served
from tests.e2e.server_process import free_port
from tests.serving.server.control.http_calls import SERVICE, browser, key_of
from tests.serving.server.control.small_engine import SmallEngine, control_server

SERVICES: dict[str, Any] = yaml.safe_load(interpolated(FILE.read_text()))["services"]
WAIT_S = 30.0


@contextlib.contextmanager
def leading(target: ControlAddress) -> Iterator[ControlAddress]:
    """A port that leads to `target`, and the one after it to its console, once they are open."""
    here = ControlAddress.parse(f"127.0.0.1:{free_port()}")
    pairs = (here.console(), target.console(), here, target)
    command = [sys.executable, str(FOLDER / "console_port.py"), *map(str, pairs)]
    with subprocess.Popen(command) as process:
        try:
            end_s = time.monotonic() + WAIT_S
            while True:
                with contextlib.suppress(ConnectionRefusedError):
                    socket.create_connection((here.host, here.port)).close()
                    break
                assert process.poll() is None
                assert time.monotonic() < end_s
                time.sleep(0.05)  # polls another process
            yield here
        finally:
            process.kill()


def test_the_console_and_grpc_are_reached_through_it_with_the_key_alone() -> None:
    with control_server(SmallEngine()) as address, leading(address) as here:
        key = key_of(address)
        with browser(here) as client:
            page = client.get("/")
            unknown = client.post(f"{SERVICE}/GetState", json={})
            begun = client.post("/session", json={"key": key})
            known = client.post(f"{SERVICE}/GetState", json={})
        with ControlClient(here, WAIT_S, key=key) as client:
            chips = client.call(control_call.GET_STATE).chips

    assert page.status_code == 200
    assert "<title>" in page.text
    assert unknown.status_code == 401
    assert (begun.status_code, known.status_code) == (204, 200)
    assert chips


def test_a_port_that_leads_nowhere_ends_the_connection_and_not_itself() -> None:
    nowhere = ControlAddress.parse(f"127.0.0.1:{free_port()}")

    with leading(nowhere) as here:
        for _ in range(2):
            with socket.create_connection((here.host, here.port), timeout=WAIT_S) as connection:
                assert connection.recv(1) == b""


def test_a_client_that_never_ends_is_let_go_soon_after_the_target_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = runpy.run_path(str(FOLDER / "console_port.py"))
    monkeypatch.setitem(script["lead"].__globals__, "LAST_WALL_S", 0.1)

    async def bye(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"bye")
        writer.close()

    async def ended() -> None:
        async with await asyncio.start_server(bye, "127.0.0.1", 0) as target:
            ports = [free_port(), target.sockets[0].getsockname()[1]]
            addresses = [f"127.0.0.1:{port}" for port in ports]
            leads = asyncio.create_task(script["lead"](*addresses))
            before = asyncio.all_tasks()
            async with asyncio.timeout(WAIT_S):
                client = None
                while client is None:
                    with contextlib.suppress(ConnectionRefusedError):
                        client = await asyncio.open_connection("127.0.0.1", ports[0])
                    await asyncio.sleep(0.01)
                assert await client[0].read() == b"bye"
                while asyncio.all_tasks() - before:  # which carry it
                    await asyncio.sleep(0.01)
                with pytest.raises(ConnectionError):  # noqa: PT012  the second one is refused
                    while True:
                        client[1].write(b"still here")
                        await client[1].drain()
                        await asyncio.sleep(0.01)
            leads.cancel()

    asyncio.run(ended())


def test_compose_publishes_the_ports_of_the_engine_whose_network_it_shares() -> None:
    engine, console = SERVICES["engine"], SERVICES["console"]
    addresses = [ControlAddress.parse(each) for each in console["command"]]
    args = served(engine["command"])

    assert console["network_mode"] == "service:engine"
    assert console["image"] == engine["image"]
    assert "secrets" not in console
    control = ControlAddress(port=args.control_port)
    assert addresses[1::2] == [control, control.console()]
    # The page's address names the port that is published: what `console` prints can be opened.
    for listen, target in zip(addresses[::2], addresses[1::2], strict=True):
        assert listen.host == "0.0.0.0"
        assert f"127.0.0.1:{target.port}:{listen.port}" in engine["ports"]
    (mount,) = console["volumes"]
    source, inside, mode = mount.split(":")
    assert (FOLDER / source).is_file()
    assert console["entrypoint"] == ["tini", "--", "python", inside]
    assert mode == "ro"

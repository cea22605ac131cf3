"""A Ray of our own: its chips are forked, can be killed one by one, and nothing is left of it."""

import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from ray._private.node import Node

from emulator.actors.channel import Channel
from emulator.actors.ray_session import RaySession
from emulator.chip.chip_share import ChipShare
from emulator.chip.effects import ChipReady
from emulator.data import SMALL_MOE_DIR
from emulator.errors import ChipLost, ConfigError

pytestmark = pytest.mark.fleet

WAIT_S = 60.0
SHARE = ChipShare(
    weights_dir=str(SMALL_MOE_DIR), experts=[[0], [1], [2], [3]], kv_blocks=4, block_tokens=32
)


@pytest.fixture
def hub() -> Iterator[Channel]:
    hub = Channel()
    yield hub
    hub.close()


def chip_processes() -> set[psutil.Process]:
    """Our descendants that hold a chip, forked or not, and have not ended meanwhile."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.name().startswith("ray::ChipWorker"):
                found.add(process)
    return found


def listeners(processes: set[psutil.Process]) -> set[str]:
    """Addresses on which they listen, IPv4 ones as such."""
    return {
        connection.laddr.ip.removeprefix("::ffff:")
        for process in processes
        for connection in process.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    }


def token_files(processes: set[psutil.Process]) -> set[Path]:
    """Where they read Ray's token."""
    paths = {process.environ().get("RAY_AUTH_TOKEN_PATH") for process in processes}
    return {Path(path) for path in paths if path is not None}


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def comes_true(condition: Callable[[], bool]) -> bool:
    end_s = time.monotonic() + WAIT_S
    while not condition() and time.monotonic() < end_s:
        time.sleep(0.05)
    return condition()


def test_its_chips_are_forked_end_one_by_one_and_all_ends_with_it(hub: Channel) -> None:
    environment, interpreter = dict(os.environ), sys.executable
    lost: list[str] = []
    before = set(psutil.Process().children(recursive=True))
    session = RaySession()
    try:
        session.start()
        (node,) = session.nodes()
        assert node.is_here
        assert session.channel_host() is None
        handles = [
            session.start_chip(
                node=session.place_chips(2)[chip],
                chip=chip,
                address=hub.address,
                key=hub.key,
                share=SHARE,
            )
            for chip in range(2)
        ]
        hub.accept(range(2), WAIT_S)
        assert dict(hub.receive(range(2), WAIT_S)) == {0: ChipReady(chip=0), 1: ChipReady(chip=1)}

        # Both come from one process that is neither Ray's daemon nor this one: the fork_server.
        (parent,) = {process.parent() for process in chip_processes()}
        assert parent is not None
        assert any(word.endswith("fork_server.py") for word in parent.cmdline())

        started = set(psutil.Process().children(recursive=True)) - before
        assert listeners(started) == {"127.0.0.1"}
        (token,) = token_files(chip_processes())
        assert stat.S_IMODE(token.stat().st_mode) == 0o600
        assert stat.S_IMODE(token.parent.stat().st_mode) == 0o700

        session.kill(handles[1])
        session.kill(handles[1])
        with pytest.raises(ChipLost) as caught:
            list(hub.receive([1], WAIT_S))
        assert caught.value.chips == (1,)
        assert comes_true(lambda: len(chip_processes()) == 1)
        assert hub.connected == {0}

        session.watch(lost.append)
        family = psutil.Process().children(recursive=True)
        (server,) = (each for each in family if each.name() == "gcs_server")
        server.kill()
        assert comes_true(lambda: lost == ["gcs_server"])
    finally:
        session.stop()
        session.stop()

    assert comes_true(lambda: set(psutil.Process().children(recursive=True)) <= before)
    added = {name for name in os.environ if name not in environment}
    assert {name for name in added if name.startswith("RAY_")} <= {"RAY_AUTH_MODE"}
    assert sys.executable == interpreter


def test_stopping_what_was_not_started_does_nothing() -> None:
    RaySession().stop()


def test_a_ray_without_tokens_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    session = RaySession()
    with pytest.raises(ConfigError, match=r"^RAY_AUTH_MODE=disabled: expected unset, or token"):
        session.start()
    session.stop()


@pytest.mark.slow
def test_a_ray_that_does_not_start_is_cleared_and_started_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = set(psutil.Process().children(recursive=True))
    start_server = Node.start_gcs_server
    started: list[Path] = []

    def dies_once(node: Node) -> None:
        started.append(Path(node.get_session_dir_path()))
        if len(started) > 1:
            start_server(node)
            return
        monkeypatch.setenv("RAY_gcs_server_port_wait_time_s", "0")  # it is there, and not heard
        try:
            start_server(node)
        finally:
            monkeypatch.delenv("RAY_gcs_server_port_wait_time_s")

    monkeypatch.setattr(Node, "start_gcs_server", dies_once)
    session = RaySession()
    try:
        session.start()
        assert len(session.nodes()) == 1
        first, second = started
        assert second.exists()
        assert comes_true(lambda: not first.exists())
    finally:
        session.stop()
    left = set(psutil.Process().children(recursive=True)) - before
    assert comes_true(lambda: not any(map(is_alive, left)))

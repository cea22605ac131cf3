import os
import socket
from pathlib import Path

import pytest

from emulator.errors import ConfigError
from serving.server.connections.private_socket import private_socket


def listen_at(path: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()
    return listening


def test_the_socket_lies_where_nobody_else_enters_and_goes_at_the_end(tmp_path: Path) -> None:
    with private_socket({"XDG_RUNTIME_DIR": str(tmp_path)}) as path:
        with listen_at(path):
            assert path.is_socket()
        assert path.parent.stat().st_mode & 0o077 == 0
    assert list(path.parent.iterdir()) == []


def test_no_two_servers_have_the_same(tmp_path: Path) -> None:
    environment = {"XDG_RUNTIME_DIR": str(tmp_path)}
    with private_socket(environment) as one, private_socket(environment) as other:
        assert one != other


def test_what_a_killed_server_left_is_removed_and_nothing_else_is(tmp_path: Path) -> None:
    environment = {"XDG_RUNTIME_DIR": str(tmp_path)}
    with private_socket(environment) as path:
        directory = path.parent
    dead, new, live = (directory / f"grpc-{name}.sock" for name in ("dead", "new", "live"))
    listen_at(dead).close()
    listen_at(new).close()  # somebody may be about to listen there
    with listen_at(live):
        for old in (dead, live):
            os.utime(old, (1.0, 1.0))
        (directory / "control-1.key").touch()
        with private_socket(environment):
            assert not dead.exists()
            assert new.exists()
            assert live.exists()
            assert (directory / "control-1.key").exists()


def test_a_directory_that_others_enter_or_with_too_long_a_name_is_named(tmp_path: Path) -> None:
    (tmp_path / "ultraserve").mkdir(mode=0o755)
    with (
        pytest.raises(ConfigError, match=r"^runtime directory="),
        private_socket({"XDG_RUNTIME_DIR": str(tmp_path)}),
    ):
        pass
    deep = tmp_path / ("d" * 100)
    with (
        pytest.raises(ConfigError, match=r"a path of at most \d+ bytes"),
        private_socket({"XDG_RUNTIME_DIR": str(deep)}),
    ):
        pass

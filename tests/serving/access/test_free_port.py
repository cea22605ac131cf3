"""Where a server can listen, and which flag is named where it cannot."""

import socket
from collections.abc import Iterator

import pytest

from emulator.errors import ConfigError
from serving.access.listen_address import check_port
from serving.errors import PortInUse


@pytest.fixture
def listening() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_port_that_another_program_listens_on_is_named(listening: int) -> None:
    with pytest.raises(PortInUse, match=rf"^port={listening}: expected a free port on 127\.0\.0"):
        check_port("127.0.0.1", listening)
    with pytest.raises(PortInUse, match=rf"^grpc_port={listening}: expected a free port"):
        check_port("127.0.0.1", listening, field="grpc_port")


def test_a_free_port_is_left_free() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    check_port("127.0.0.1", port)
    check_port("127.0.0.1", port)


@pytest.mark.parametrize("port", [-1, 65_536])
def test_a_port_that_does_not_exist_is_a_wrong_setting(port: int) -> None:
    with pytest.raises(ConfigError, match=rf"^port={port}: expected 0 to 65535"):
        check_port("127.0.0.1", port)


@pytest.mark.parametrize("host", ["203.0.113.1", "2001:db8::1", "no-such-host.invalid"])
def test_an_address_that_is_not_this_machine_s_is_no_port_in_use(host: str) -> None:
    with pytest.raises(ConfigError, match=rf"^control_host={host}, port 1: expected an address to"):
        check_port(host, 1, host_field="control_host")

import pytest

from emulator.errors import ConfigError
from serving.server.control.control_address import ControlAddress


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:50051", "127.0.0.1", 50051),
        ("127.9.9.9:1", "127.9.9.9", 1),
        ("localhost:65535", "localhost", 65535),
        ("[::1]:8443", "::1", 8443),
        ("0.0.0.0:50051", "0.0.0.0", 50051),
        ("chips.example.com:443", "chips.example.com", 443),
    ],
)
def test_an_address_is_read_and_written_the_same(text: str, host: str, port: int) -> None:
    address = ControlAddress.parse(text)

    assert (address.host, address.port) == (host, port)
    assert str(address) == text


def test_the_default_is_this_machine_alone() -> None:
    assert str(ControlAddress()) == "127.0.0.1:50051"
    assert ControlAddress().is_loopback


@pytest.mark.parametrize(
    ("host", "alone"),
    [("127.9.9.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False)],
)
def test_what_only_this_machine_reaches_is_loopback(host: str, alone: bool) -> None:
    assert ControlAddress(host=host).is_loopback is alone


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "control_address=: expected HOST:PORT"),
        ("50051", "control_address=50051: expected HOST:PORT"),
        ("localhost:", "control_address=localhost:: expected HOST:PORT"),
        ("localhost:-1", "control_address=localhost:-1: expected HOST:PORT"),
        (":50051", "control_address=: expected HOST:PORT"),
        ("a host:50051", "control_address=a host: expected HOST:PORT"),
        ("http://there:50051", "control_address=http://there: expected HOST:PORT"),
        ("localhost:0", "control_port=0: expected 1 to 65535"),
        ("localhost:65536", "control_port=65536: expected 1 to 65535"),
    ],
)
def test_an_address_that_cannot_be_meant_is_one_line(text: str, line: str) -> None:
    with pytest.raises(ConfigError) as raised:
        ControlAddress.parse(text)

    assert str(raised.value).startswith(line)

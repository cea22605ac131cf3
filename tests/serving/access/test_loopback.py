"""Which addresses only this machine reaches."""

import pytest

from serving.access.listen_address import is_loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_is(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "10.0.0.1", "localhost.example", "127.1"])
def test_everything_else_is_not(host: str) -> None:
    assert not is_loopback(host)

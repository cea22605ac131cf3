"""The console's port as used by a browser, or a program without gRPC."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import httpx

from serving.access.control_key import find_control_key
from serving.server.control.control_address import ControlAddress

SERVICE = "/ultraserve.v1.ControlService"


def key_of(address: ControlAddress) -> str:
    key = find_control_key(address.port, os.environ)
    assert key is not None
    return key


@contextlib.contextmanager
def browser(address: ControlAddress, **given: Any) -> Iterator[httpx.Client]:
    """A client without a key; it keeps cookies."""
    url = f"http://{address.console()}"
    with httpx.Client(base_url=url, timeout=10, trust_env=False, **given) as client:
        yield client


@contextlib.contextmanager
def looking(address: ControlAddress) -> Iterator[httpx.Client]:
    """A client with a session."""
    with browser(address) as client:
        assert client.post("/session", json={"key": key_of(address)}).status_code == 204
        yield client


def with_key(address: ControlAddress) -> dict[str, str]:
    return {"Authorization": f"Bearer {key_of(address)}"}

"""Who a request is from: keys in both headers, paths for everybody, one answer for strangers."""

from typing import Any

import pytest

from serving.access.key_ring import KeyRing
from serving.access.secret import hash_of
from serving.server.gateway.http.http_access import OPEN_PATHS, client_of
from serving.server.gateway.http.http_errors import HttpRefused

SECRET = "us-0123456789012345678901234567890123456789"
CONTROL = "us-control-0123456789012345678901234567890"
KEYS = KeyRing(key_hashes=(hash_of(SECRET),), control_secret=CONTROL)


def request(*headers: tuple[bytes, bytes], method: str = "POST") -> dict[str, Any]:
    return {"type": "http", "method": method, "headers": list(headers)}


def status_of(keys: KeyRing, scope: dict[str, Any], path: str) -> int:
    try:
        client_of(keys, scope, path)
    except HttpRefused as refused:
        return refused.error.status
    return 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([], 401),
        ([(b"authorization", f"Bearer {SECRET}".encode())], 200),
        ([(b"authorization", f"bearer  {SECRET} ".encode())], 200),
        ([(b"x-api-key", SECRET.encode())], 200),
        ([(b"authorization", SECRET.encode())], 401),
        ([(b"authorization", f"Basic {SECRET}".encode())], 401),
        ([(b"authorization", f"Bearer {SECRET}x".encode())], 401),
        ([(b"authorization", b"Bearer ")], 401),
        ([(b"x-api-key", b"")], 401),
        ([(b"x-api-key", b"\xff\xfe")], 401),
        ([(b"authorization", f"Bearer {CONTROL}".encode())], 403),
        ([(b"authorization", f"Bearer {SECRET}".encode())] * 2, 401),
        ([(b"x-api-key", SECRET.encode())] * 2, 401),
    ],
)
def test_a_key_opens_and_what_is_none_does_not(
    headers: list[tuple[bytes, bytes]], status: int
) -> None:
    assert status_of(KEYS, request(*headers), "/v1/models") == status


@pytest.mark.parametrize("path", sorted(OPEN_PATHS))
def test_probes_ask_for_nobody(path: str) -> None:
    assert status_of(KEYS, request(method="GET"), path) == 200


@pytest.mark.parametrize("path", ["/metrics", "/openapi.json", "/docs", "/v1/models", "/livez/x"])
def test_with_keys_everything_else_asks(path: str) -> None:
    assert status_of(KEYS, request(method="GET"), path) == 401
    assert status_of(KEYS, request(method="OPTIONS"), path) == 200  # browsers ask without a key


def test_without_keys_everybody_is_anonymous_whatever_they_bring() -> None:
    scope = request((b"authorization", b"Bearer anything"))
    assert client_of(KeyRing(), scope, "/v1/models").name == "anonymous"

"""How many values a body may have: by hand, and counted as Python's own reader finds them."""

import asyncio
import json
from http import HTTPStatus
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.server.gateway.http import json_body
from serving.server.gateway.http.http_errors import HttpRefused
from serving.server.gateway.http.json_body import (
    CONTAINERS_MAX,
    STRINGS_MAX,
    VALUES_MAX,
    refuse_values,
)

TEXTS = st.text(st.sampled_from('[{",\\\\]}: aé\u2028'), max_size=12)
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(TEXTS, inner, max_size=6),
    max_leaves=30,
)


def refused(body: bytes) -> str:
    """What is said of it; nothing of one that may come in."""
    try:
        asyncio.run(refuse_values(body))
    except HttpRefused as refusal:
        error = refusal.error
    else:
        return ""
    assert (error.status, error.code) == (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_many_values")
    return error.message


@pytest.mark.parametrize(
    ("value", "most", "what"),
    [
        (b"0,", VALUES_MAX - 2, "commas and brackets"),
        (b"[],", CONTAINERS_MAX - 1, "arrays and objects"),
        (b"{},", CONTAINERS_MAX - 1, "arrays and objects"),
        (b'"",', STRINGS_MAX, "strings"),
    ],
)
def test_a_body_has_so_many_values_and_no_more(value: bytes, most: int, what: str) -> None:
    assert refused(b"[" + value * most + b"0]") == ""
    assert refused(b"[" + value * (most + 2) + b"0]").endswith(what)


@pytest.mark.long
def test_text_has_what_it_likes() -> None:
    for text in ("words " * 2_500_000, "{[" * 300_000, '"' * 300_000, "\\" * 3_000_001):
        assert refused(json.dumps({"prompt": text}).encode()) == ""


def numbers_of(value: Any) -> tuple[int, int]:
    """Its arrays and objects, and its strings."""
    if isinstance(value, str):
        return 0, 1
    if not isinstance(value, list | dict):
        return 0, 0
    inner = [numbers_of(each) for each in (value.values() if isinstance(value, dict) else value)]
    names = len(value) if isinstance(value, dict) else 0
    return 1 + sum(each[0] for each in inner), names + sum(each[1] for each in inner)


@pytest.mark.long
@given(value=VALUES, escapes=st.booleans(), slice_bytes=st.integers(1, 12))
def test_they_are_counted_where_they_are_values(
    value: Any, slice_bytes: int, *, escapes: bool
) -> None:
    value = [value]
    body = json.dumps(value, ensure_ascii=escapes).encode()
    containers, strings = numbers_of(value)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(json_body, "_SLICE_BYTES", slice_bytes)
        for more in (0, 1):
            patched.setattr(json_body, "CONTAINERS_MAX", containers - more)
            patched.setattr(json_body, "STRINGS_MAX", strings)
            assert refused(body).endswith("arrays and objects" if more else "")
        patched.setattr(json_body, "CONTAINERS_MAX", containers)
        patched.setattr(json_body, "STRINGS_MAX", strings - 1)
        is_more = strings > 0  # which are in an array or object, as a body is
        assert refused(body).endswith("strings" if is_more else "")


@pytest.mark.long
@pytest.mark.parametrize("text", ["words " * 800_000, "{[" * 300_000 + "words " * 700_000])
def test_others_are_served_while_a_long_body_is_counted(text: str) -> None:
    body = json.dumps({"prompt": text}).encode()

    async def counted() -> int:
        turns = 0
        counting = asyncio.create_task(refuse_values(body))
        while not counting.done():
            await asyncio.sleep(0)
            turns += 1
        await counting
        return turns

    assert asyncio.run(counted()) >= len(body) // 2**18

"""The one reading of the header with a key: by hand."""

import pytest

from serving.access.secret import request_credential

Headers = list[tuple[str, str | bytes]]


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ([], None),
        ([("authorization", "Bearer abc")], "abc"),
        ([("Authorization", " bearer  abc ")], "abc"),
        ([("other", "Bearer abc"), ("authorization", "BEARER d e")], "d e"),
        ([("x-api-key", " abc ")], "abc"),
        ([("X-API-Key", "abc"), ("authorization", "Bearer d")], "d"),
        ([("x-api-key", "abc"), ("authorization", "Basic d")], "abc"),
        ([("x-api-key", "abc"), ("authorization", "Bearer ")], "abc"),
        ([("authorization", "abc")], None),
        ([("authorization", "Bearerabc")], None),
        ([("authorization", "")], None),
        ([("x-api-key", " ")], None),
        ([("authorization", b"Bearer abc")], None),
        ([("x-api-key", b"abc")], None),
    ],
)
def test_a_key_is_the_bearer_s_or_the_other_header_s(headers: Headers, key: str | None) -> None:
    assert request_credential(headers) == key


@pytest.mark.parametrize("first", ["Bearer abc", "Bearer d", "", "Basic d"])
@pytest.mark.parametrize("name", ["authorization", "Authorization"])
def test_a_header_that_is_there_twice_shows_no_key(first: str, name: str) -> None:
    twice: Headers = [(name, first), ("authorization", "Bearer abc")]
    assert request_credential(twice) is None
    assert request_credential([("x-api-key", "d"), ("x-api-key", "d")]) is None
    assert request_credential([*twice, ("x-api-key", "d")]) is None

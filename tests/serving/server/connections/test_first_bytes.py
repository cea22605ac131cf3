from hypothesis import given
from hypothesis import strategies as st

from serving.server.connections.first_bytes import PREFACE, Speech, speech_of

# https://www.rfc-editor.org/rfc/rfc9113#section-3.4, letter by letter.
CLIENT_PREFACE = bytes.fromhex("505249202a20485454502f322e300d0a0d0a534d0d0a0d0a")

METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "PROPFIND", "PROPPATCH")


def test_what_a_client_of_http_2_begins_with_is_the_standard_s() -> None:
    assert CLIENT_PREFACE.startswith(PREFACE)
    assert speech_of(CLIENT_PREFACE) is Speech.HTTP_2


@given(st.integers(0, len(CLIENT_PREFACE)))
def test_a_beginning_of_it_is_never_taken_for_http_1(length: int) -> None:
    expected = Speech.HTTP_2 if length >= len(PREFACE) else None
    assert speech_of(CLIENT_PREFACE[:length]) is expected


@given(st.sampled_from(METHODS), st.integers(3, 30))
def test_a_request_of_http_1_is_known_by_its_third_byte_at_the_latest(
    method: str, length: int
) -> None:
    assert speech_of(f"{method} / HTTP/1.1\r\nHost: here\r\n".encode()[:length]) is Speech.HTTP_1


@given(st.binary(min_size=1, max_size=40), st.integers(0, 40))
def test_what_is_decided_stays_so_whatever_comes_after(data: bytes, length: int) -> None:
    before = speech_of(data[:length])
    assert before is None or speech_of(data) is before

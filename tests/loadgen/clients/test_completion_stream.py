import json
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.clients.completion_stream import (
    LINE_BYTES_MAX,
    CompletionStream,
    error_message,
)


def chunk(text: str, finish_reason: str | None = None) -> str:
    return json.dumps(
        {"id": "x", "choices": [{"index": 0, "text": text, "finish_reason": finish_reason}]}
    )


def usage(prompt_tokens: int, completion_tokens: int) -> str:
    counts = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    return json.dumps({"choices": [], "usage": counts})


def events(*payloads: str, end: str = "\n\n") -> bytes:
    return "".join(f"data: {payload}{end}" for payload in payloads).encode()


REPLY = events(chunk("Über"), chunk("data: \n\n"), chunk("", "length"), usage(7, 3), "[DONE]")


def read(*pieces: bytes) -> CompletionStream:
    """Feed piece i at time i, and finish."""
    stream = CompletionStream()
    for at_ns, piece in enumerate(pieces):
        stream.feed(piece, at_ns)
    stream.finish()
    return stream


def facts(stream: CompletionStream) -> tuple[object, ...]:
    return (
        len(stream.chunk_ns),
        stream.input_tokens,
        stream.output_tokens,
        stream.complete,
        stream.error,
    )


def test_a_chunk_is_stamped_with_the_time_at_which_its_end_arrived() -> None:
    stream = read(
        events(chunk("a"))[:20],  # 0: not yet a chunk
        events(chunk("a"))[20:] + events(chunk("b")),  # 1: two at once
        b": a comment\n\n",  # 2: nothing
        events(chunk("c", "length"), usage(5, 3), "[DONE]"),  # 3
    )

    assert stream.chunk_ns == [1, 1, 3]
    assert facts(stream) == (3, 5, 3, True, None)


def test_however_the_bytes_are_cut_the_reply_is_the_same() -> None:
    for cut in range(len(REPLY) + 1):
        assert facts(read(REPLY[:cut], REPLY[cut:])) == (3, 7, 3, True, None)


@given(cuts=st.lists(st.integers(0, len(REPLY)), max_size=8))
def test_cut_into_many_pieces_the_reply_is_the_same(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(REPLY)]
    pieces = [REPLY[a:b] for a, b in pairwise(edges)]

    assert facts(read(*pieces)) == (3, 7, 3, True, None)


@pytest.mark.parametrize("end", ["\n\n", "\r\n\r\n", "\n"])
def test_line_ends_of_every_server_are_understood(end: str) -> None:
    stream = read(events(chunk("a"), usage(1, 1), "[DONE]", end=end))

    assert facts(stream) == (1, 1, 1, True, None)


def test_the_space_after_data_may_be_missing() -> None:
    assert facts(read(events(chunk("a"), "[DONE]").replace(b"data: ", b"data:")))[0] == 1


@pytest.mark.parametrize(
    ("payloads", "chunks"),
    [
        # a last event without text, and the count has room for it: a token whose text is held back
        ((chunk("a"), chunk("", "length"), usage(1, 2)), 2),
        # the same, and the count has none: a full stop, no token
        ((chunk("a"), chunk("", "length"), usage(1, 1)), 1),
        # the same without a count: taken for a full stop
        ((chunk("a"), chunk("", "stop")), 1),
        # an empty text in the middle is a token in any case
        ((chunk(""), chunk("a", "stop"), usage(1, 2)), 2),
        # several tokens in a chunk: chunks are counted here, not tokens
        ((chunk("a b c"), chunk("d", "stop"), usage(1, 4)), 2),
    ],
)
def test_an_empty_last_event_is_a_token_only_if_the_server_counts_it(
    payloads: tuple[str, ...], chunks: int
) -> None:
    stream = read(events(*payloads, "[DONE]"))

    assert (len(stream.chunk_ns), stream.error) == (chunks, None)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (events(chunk("a")), r"ended before its \[DONE\]"),
        (b"", r"ended before its \[DONE\]"),
        (b'{"choices": [{"text": "not a stream"}]}', r"ended before its \[DONE\]"),
        (events("[DONE]"), "without any generated text"),
        (events(usage(1, 0), "[DONE]"), "without any generated text"),
        (events(chunk("a"), '{"choices": [', "[DONE]"), "cannot be read"),
        (events('{"choices": 3}', "[DONE]"), "cannot be read"),
        (events(chunk("a"), '{"error": {"message": "engine died", "code": 500}}'), "engine died"),
        (b"data: " + b"x" * LINE_BYTES_MAX, "a line of more than"),
    ],
)
def test_a_reply_that_fails_says_how(data: bytes, error: str) -> None:
    stream = read(data)

    assert stream.error is not None
    assert re.search(error, stream.error)


def test_what_follows_an_error_or_the_end_is_ignored() -> None:
    after_error = read(events('{"error": "no"}', chunk("a"), "[DONE]"))
    after_end = read(events(chunk("a"), "[DONE]", chunk("b"), "nonsense"))

    assert (after_error.error, after_error.chunk_ns) == ("no", [])
    assert (after_end.error, len(after_end.chunk_ns)) == (None, 1)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error": {"message": "too\\nlong", "code": 400}}', "too long"),
        (b'{"message": "no model"}', "no model"),
        (b'{"error": "busy"}', "busy"),
        (b"<html>bad gateway</html>", "<html>bad gateway</html>"),
        (b"\xff" * 3, "\ufffd" * 3),
        (b"x" * 1000, "x" * 200),
        (b"", ""),
    ],
)
def test_an_error_body_of_any_form_becomes_one_short_line(body: bytes, words: str) -> None:
    assert error_message(body) == words

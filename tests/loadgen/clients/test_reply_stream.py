import json
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.clients.reply_stream import (
    CHUNKS_BEYOND_MAX,
    LINE_BYTES_MAX,
    MEAN_EVENT_BYTES_MAX,
    ReplyStream,
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


def read(*pieces: bytes) -> ReplyStream:
    """Feed piece i at time i, and finish."""
    stream = ReplyStream(asked_tokens=8)
    for at_ns, piece in enumerate(pieces):
        stream.feed(piece, at_ns)
    stream.finish()
    return stream


def facts(stream: ReplyStream) -> tuple[object, ...]:
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
        (b'data: {"choices": [{"text": "\xff"}]}\n\n', "cannot be read"),
        (b'data: {"x": ' + b"[" * 100_000 + b"\n\n", "cannot be read"),
        (b'data: {"error": ' + b"[" * 100_000 + b"\n\n", "cannot be read"),
        (events(usage(10**30, 1), "[DONE]"), "cannot be read"),
        (events(usage(1, -5), "[DONE]"), "cannot be read"),
        (events('{"choices": [{"text": "a", "token_ids": [-1]}]}'), "cannot be read"),
    ],
)
def test_a_reply_that_fails_says_how(data: bytes, error: str) -> None:
    stream = read(data)

    assert stream.error is not None
    assert re.search(error, stream.error)


def test_a_reply_may_be_longer_than_asked_but_not_by_far() -> None:
    stream = ReplyStream(asked_tokens=3)
    one = events(chunk("a"))

    assert stream.feed(one * (CHUNKS_BEYOND_MAX + 3), 0) == CHUNKS_BEYOND_MAX + 3
    assert stream.error is None
    assert stream.feed(one, 1) == 1
    assert "far more than was asked for" in str(stream.error)
    assert stream.feed(one, 2) == 0


@pytest.mark.long
def test_a_reply_of_comments_that_never_ends_is_given_up() -> None:
    stream = ReplyStream(asked_tokens=0)
    comment = b": " + b"x" * (LINE_BYTES_MAX // 2) + b"\n"
    pieces = CHUNKS_BEYOND_MAX * MEAN_EVENT_BYTES_MAX // len(comment)
    for _ in range(pieces):
        stream.feed(comment, 0)
    assert stream.error is None
    stream.feed(comment, 0)

    assert "far more than was asked for" in str(stream.error)


def test_what_follows_an_error_or_the_end_is_ignored() -> None:
    after_error = read(events('{"error": "no"}', chunk("a"), "[DONE]"))
    after_end = read(events(chunk("a"), "[DONE]", chunk("b"), "nonsense"))

    assert (after_error.error, after_error.chunk_ns) == ("no", [])
    assert (after_end.error, len(after_end.chunk_ns)) == (None, 1)


def delta(finish_reason: str | None = None, **said: object) -> str:
    return json.dumps({"choices": [{"index": 0, "delta": said, "finish_reason": finish_reason}]})


def test_a_chat_begins_with_its_first_token_and_not_with_its_role() -> None:
    stream = ReplyStream(asked_tokens=8, keep=True)
    for at_ns, payload in enumerate(
        (
            delta(role="assistant", content=""),
            delta(content="Hel"),
            delta(content=""),  # a token whose bytes are held back
            delta("length", content="lo"),
            usage(9, 3),
            "[DONE]",
        )
    ):
        stream.feed(events(payload), at_ns)
    stream.finish()

    assert (stream.chunk_ns, stream.text, stream.error) == ([1, 2, 3], "Hello", None)


@pytest.mark.parametrize(
    ("said", "chunks"),
    [
        ({"role": "assistant", "content": "a"}, 1),  # some servers say the role every time
        ({"reasoning": "a"}, 1),
        ({"reasoning_content": "a", "content": None}, 1),
        ({"tool_calls": [{"function": {"arguments": "{"}}]}, 1),
        ({"role": "assistant", "content": "", "tool_calls": None}, 0),
        ({"role": "assistant", "tool_calls": []}, 0),
    ],
)
def test_everything_that_a_chat_generates_is_a_chunk(said: dict[str, object], chunks: int) -> None:
    stream = ReplyStream(asked_tokens=8)

    assert stream.feed(events(delta(**said)), 5) == chunks
    assert stream.chunk_ns == [5] * chunks


def test_what_is_kept_is_the_text_and_the_ids_and_else_nothing() -> None:
    first = {"choices": [{"index": 0, "text": "a", "token_ids": [5, 6]}]}
    second = {"choices": [{"index": 0, "text": "b", "token_ids": [7]}]}
    data = events(json.dumps(first), json.dumps(second))
    kept, other = ReplyStream(asked_tokens=8, keep=True), ReplyStream(asked_tokens=8)
    kept.feed(data, 0)
    other.feed(data, 0)

    assert (kept.text, kept.token_ids) == ("ab", (5, 6, 7))
    assert (other.text, other.token_ids) == (None, None)


def test_cached_tokens_are_those_of_the_usage() -> None:
    details = {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}
    none = {"prompt_tokens": 9, "prompt_tokens_details": None}
    with_them = read(events(chunk("a"), json.dumps({"choices": [], "usage": details}), "[DONE]"))
    without = read(events(chunk("a"), json.dumps({"choices": [], "usage": none}), "[DONE]"))

    assert (with_them.cached_tokens, without.cached_tokens) == (4, None)


def test_an_error_that_is_null_is_none() -> None:
    data = events(json.dumps({"error": None, "choices": [{"text": "a"}]}), "[DONE]")

    assert facts(read(data)) == (1, None, None, True, None)

"""What of a repeated stream a client has not had, however either is cut."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.server.replicas.sent_stream import SentChoices, StreamDiverged


def texts(events: list[list[dict[str, Any]]]) -> str:
    return "".join(choice.get("text", "") for event in events for choice in event)


def pieces(text: str, cuts: list[int]) -> list[str]:
    ends = sorted({min(cut, len(text)) for cut in cuts} | {len(text)})
    return [text[a:b] for a, b in zip([0, *ends], ends, strict=False)]


@pytest.mark.long
@given(
    text=st.text(max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=8),
    others=st.lists(st.integers(0, 40), max_size=8),
    had=st.integers(0, 9),
)
def test_what_was_sent_and_the_rest_of_any_repetition_are_the_text(
    text: str, cuts: list[int], others: list[int], had: int
) -> None:
    sent = SentChoices()
    first = [sent.take([{"index": 0, "text": piece}]) for piece in pieces(text, cuts)[:had]]
    sent.again()
    rest = [sent.take([{"index": 0, "text": piece}]) for piece in pieces(text, others)]

    assert texts(first) + texts(rest) == text


@given(
    tokens=st.lists(st.integers(0, 9), max_size=12),
    had=st.integers(0, 12),
    chunk=st.integers(1, 5),
)
def test_lists_go_on_where_they_were_left(tokens: list[int], had: int, chunk: int) -> None:
    sent = SentChoices()
    had = min(had, len(tokens))
    got = [one for each in tokens[:had] for one in taken(sent, [each])]
    sent.again()
    for begin in range(0, len(tokens), chunk):
        got += taken(sent, tokens[begin : begin + chunk])

    assert got == tokens


def taken(sent: SentChoices, tokens: list[int]) -> list[int]:
    choices = sent.take([{"index": 0, "logprobs": {"tokens": tokens}}])
    return [each for choice in choices for each in choice["logprobs"]["tokens"]]


def test_a_repetition_with_another_text_is_refused() -> None:
    sent = SentChoices()
    sent.take([{"index": 0, "delta": {"content": "abc"}}])
    sent.again()
    sent.take([{"index": 0, "delta": {"content": "ab"}}])

    with pytest.raises(StreamDiverged):
        sent.take([{"index": 0, "delta": {"content": "x"}}])


def test_choices_and_calls_of_tools_are_told_apart() -> None:
    sent = SentChoices()
    call = {"index": 0, "id": "call-1", "type": "function", "function": {"name": "f"}}
    sent.take([{"index": 0, "delta": {"role": "assistant", "content": ""}}])
    sent.take([{"index": 0, "delta": {"tool_calls": [call]}}])
    sent.take([{"index": 1, "delta": {"content": "b"}, "finish_reason": None}])
    sent.again()

    assert sent.take([{"index": 0, "delta": {"role": "assistant", "content": ""}}]) == []
    assert sent.take([{"index": 0, "delta": {"tool_calls": [{**call, "id": "call-2"}]}}]) == []
    arguments = {"index": 0, "function": {"arguments": "{}"}}
    (choice,) = sent.take([{"index": 0, "delta": {"tool_calls": [arguments]}}])
    assert choice["delta"]["tool_calls"] == [arguments]
    (choice,) = sent.take([{"index": 1, "delta": {"content": "bc"}, "finish_reason": "length"}])
    assert choice == {"index": 1, "delta": {"content": "c"}, "finish_reason": "length"}

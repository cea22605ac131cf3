"""One client's stream from more than one replica."""

import json
from typing import Any

import pytest

from serving.server.replicas.completion_stream import CompletionStream, ReplicaFailed


def event(text: str | None = None, finish: str | None = None, **more: Any) -> bytes:
    choices = [] if text is None else [{"index": 0, "text": text, "finish_reason": finish}]
    return b"data: " + json.dumps({"id": "a", "created": 1, "choices": choices, **more}).encode()


def said(parts: list[bytes]) -> list[Any]:
    return [json.loads(part.removeprefix(b"data: ")) for part in parts]


USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
DONE = b"data: [DONE]"


def test_a_first_stream_passes_byte_for_byte_but_for_its_usage() -> None:
    stream = CompletionStream(shows_usage=False)

    assert stream.take(event("ab")) == [event("ab") + b"\n\n"]
    assert stream.take(event("c", "stop")) == []
    (last,) = said(stream.take(event(usage=USAGE, system_fingerprint="v2")))
    assert last["choices"][0] == {"index": 0, "text": "c", "finish_reason": "stop"}
    assert last["system_fingerprint"] == "v2"
    assert "usage" not in last
    assert stream.take(DONE) == [b"data: [DONE]\n\n"]
    assert stream.usage == USAGE
    assert stream.done


def test_who_asks_for_the_usage_gets_it_once() -> None:
    stream = CompletionStream(shows_usage=True)
    stream.take(event("a", "stop"))
    assert [each.get("usage") for each in said(stream.take(event(usage=USAGE)))] == [None, USAGE]
    stream.again()

    assert stream.take(event("a", "stop")) == []
    assert stream.take(event(usage=USAGE)) == []
    assert stream.take(DONE) == [b"data: [DONE]\n\n"]


def test_a_repetition_brings_what_is_missing_in_the_first_ones_name() -> None:
    stream = CompletionStream(shows_usage=False)
    stream.take(event("a"))
    stream.take(event("b"))
    stream.again()

    assert stream.take(event("a", id="z", created=9)) == []
    (new,) = said(stream.take(event("bcd", id="z", created=9)))
    assert (new["id"], new["created"], new["choices"][0]["text"]) == ("a", 1, "cd")


def test_a_last_event_that_was_held_is_sent_by_the_repetition() -> None:
    stream = CompletionStream(shows_usage=False)
    assert stream.take(event("a", "length")) == []
    stream.again()

    assert stream.take(event("a", "length")) == []
    (last,) = said(stream.take(event(usage=USAGE, system_fingerprint="v1")))
    assert (last["choices"][0]["finish_reason"], last["system_fingerprint"]) == ("length", "v1")


@pytest.mark.parametrize(
    "error",
    [
        {"message": "EngineCore encountered an issue", "type": "InternalServerError", "code": 500},
        {"message": "gone", "type": "service_unavailable", "code": "engine_gone"},
    ],
)
def test_an_error_of_the_replica_is_no_answer(error: dict[str, Any]) -> None:
    with pytest.raises(ReplicaFailed):
        CompletionStream(shows_usage=False).take(b"data: " + json.dumps({"error": error}).encode())


def test_a_request_that_its_server_cut_off_is_no_answer() -> None:
    with pytest.raises(ReplicaFailed):
        CompletionStream(shows_usage=False).take(event("", "abort"))


def test_an_error_of_the_request_is_an_answer() -> None:
    wrong = b'data: {"error": {"message": "too long", "type": "BadRequestError", "code": 400}}'

    assert CompletionStream(shows_usage=False).take(wrong) == [wrong + b"\n\n"]

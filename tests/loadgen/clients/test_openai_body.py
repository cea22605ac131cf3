import json
from dataclasses import replace
from typing import Any

import pytest

from loadgen.clients.client import ClientSpec
from loadgen.clients.openai_body import body_maker
from loadgen.records.request import Message, Request

SCHEMA = {"type": "object"}
REQUEST = Request(
    request_id=0,
    traffic_class="a",
    session_id=0,
    turn=0,
    messages=(
        Message(role="system", content="one "),
        Message(role="user", content="two"),
    ),
    input_tokens=2,
    output_tokens=7,
)
SPEC = ClientSpec(api="completions", url="http://a", model="m", timeout_s=1, temperature=0.5)
COMMON = {
    "model": "m",
    "temperature": 0.5,
    "stream": True,
    "stream_options": {"include_usage": True},
    "max_tokens": 7,
}


def body(spec: ClientSpec, request: Request) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(body_maker(spec)(request))
    return decoded


def test_a_completion_has_its_pieces_one_after_another() -> None:
    assert body(SPEC, REQUEST) == {**COMMON, "prompt": "one two", "ignore_eos": True}


def test_a_completion_of_token_ids_has_them_in_one_list() -> None:
    pieces = (Message(role="system", content=(5, 6)), Message(role="user", content=(7,)))

    assert body(SPEC, replace(REQUEST, messages=pieces))["prompt"] == [5, 6, 7]


def test_a_chat_has_its_messages_with_who_said_them() -> None:
    assert body(replace(SPEC, api="chat"), REQUEST) == {
        **COMMON,
        "messages": [{"role": "system", "content": "one "}, {"role": "user", "content": "two"}],
        "ignore_eos": True,
    }


def test_a_server_that_is_not_to_ignore_the_end_is_not_told_of_it() -> None:
    assert "ignore_eos" not in body(replace(SPEC, ignore_eos=False), REQUEST)


@pytest.mark.parametrize(
    ("api", "field"),
    [
        ("completions", {"structured_outputs": {"json": SCHEMA}}),
        (
            "chat",
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "reply", "schema": SCHEMA, "strict": True},
                }
            },
        ),
    ],
)
def test_a_schema_is_asked_for_and_ends_the_reply(api: Any, field: dict[str, Any]) -> None:
    said = body(replace(SPEC, api=api), replace(REQUEST, output_schema=SCHEMA))

    assert field.items() <= said.items()
    assert "ignore_eos" not in said


def test_ids_are_asked_for_where_the_reply_is_kept() -> None:
    assert body(SPEC, replace(REQUEST, keep_reply=True))["return_token_ids"] is True
    assert "return_token_ids" not in body(SPEC, REQUEST)


def test_a_priority_is_sent_where_there_is_one() -> None:
    assert "priority" not in body(SPEC, REQUEST)
    assert body(replace(SPEC, priority=3), REQUEST)["priority"] == 3


def test_what_the_user_adds_wins_and_does_not_stay_behind() -> None:
    make = body_maker(replace(SPEC, extra_body={"top_k": 3, "temperature": 1.0}))

    for _ in range(2):
        said = json.loads(make(REQUEST))
        assert (said["top_k"], said["temperature"], said["max_tokens"]) == (3, 1.0, 7)

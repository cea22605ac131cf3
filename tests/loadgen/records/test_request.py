from dataclasses import replace
from typing import Any

import pytest

from loadgen.records.request import Call, Message, Request, Session

ASKED = Request(
    request_id=0,
    traffic_class="c",
    session_id=0,
    turn=0,
    messages=(Message(role="system", content="be short"), Message(role="user", content=" why?")),
    input_tokens=4,
    output_tokens=1,
)


def test_a_prompt_is_all_contents_one_after_another() -> None:
    ids = (Message(role="system", content=(1, 2)), Message(role="user", content=(3,)))

    assert ASKED.prompt == "be short why?"
    assert replace(ASKED, messages=ids).prompt == (1, 2, 3)
    assert replace(ASKED, messages=ids[:1]).prompt == (1, 2)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"input_tokens": 0}, "a request has tokens: 0, 1"),
        ({"output_tokens": 0}, "a request has tokens: 4, 0"),
        ({"messages": ()}, "a request has a message"),
        (
            {"messages": (Message(role="user", content="a"), Message(role="user", content=(1,)))},
            "all texts or all token ids",
        ),
    ],
)
def test_a_request_that_cannot_be_sent_cannot_be_made(changed: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        replace(ASKED, **changed)


def test_a_session_s_calls_stand_behind_all_that_they_wait_for() -> None:
    first, second = Call(request=ASKED), Call(request=ASKED, after=(0,))

    assert Session(session_id=0, calls=(first, second)).calls == (first, second)
    with pytest.raises(ValueError, match=r"call 0 waits for \(0,\)"):
        Session(session_id=0, calls=(second, first))
    with pytest.raises(ValueError, match="a session has a call"):
        Session(session_id=0, calls=())

"""What a replica is sent in place of a client's body."""

import json
from typing import Any

import pytest

from serving.server.replicas.forwarded_body import ForwardedBody, forwarded_body

COMPLETIONS = "/v1/completions"


def forwarded(path: str = COMPLETIONS, **asked: Any) -> ForwardedBody:
    return forwarded_body(path, json.dumps(asked).encode(), lambda: 77)


def test_a_stream_without_a_seed_gets_one() -> None:
    sent = forwarded(prompt="a", stream=True)

    assert json.loads(sent.body) == {
        "prompt": "a",
        "stream": True,
        "seed": 77,
        "stream_options": {"include_usage": True},
    }
    assert sent.repeatable


@pytest.mark.parametrize("asked", [{"seed": 5}, {"seed": 0}, {"temperature": 0}])
def test_a_text_that_is_decided_keeps_its_seed(asked: dict[str, Any]) -> None:
    sent = forwarded(prompt=["a", "b"], stream=True, **asked)

    assert json.loads(sent.body).get("seed") == asked.get("seed")
    assert sent.repeatable


def test_several_prompts_are_not_given_one_seed() -> None:
    sent = forwarded(prompt=["a", "a"], stream=True)

    assert "seed" not in json.loads(sent.body)
    assert not sent.repeatable
    assert forwarded(prompt=[1, 2], stream=True).repeatable  # the tokens of one prompt


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, b'{"prompt": "a"}'),
        (COMPLETIONS, b'{"prompt": "a", "stream": "yes"}'),
        (COMPLETIONS, b'{"stream": true, "stream_options": 3}'),
        (COMPLETIONS, b"{"),
        ("/v1/responses", b'{"input": "a", "stream": true}'),
    ],
)
def test_other_bodies_stay_as_they_are(path: str, body: bytes) -> None:
    assert forwarded_body(path, body, lambda: 77) == ForwardedBody(body=body)

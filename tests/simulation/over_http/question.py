"""A chaos run's questions over HTTP, and its clients' answers.

Every question has one right answer, greedy or seeded, so a quiet server's answers are the reference
for a troubled one's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

MODEL: Final = "small-moe"
FIRST_TOKEN, VOCABULARY = 300, 1024
"""Prompts are ordinary tokens of the bundled model."""
CONTEXT_TOKENS: Final = 256
PREFIX_TOKENS: Final = 48
COMPLETIONS: Final = "/v1/completions"
CHAT: Final = "/v1/chat/completions"
_SCHEMA: Final = {
    "type": "object",
    "properties": {"free": {"type": "boolean"}, "kind": {"enum": ["small", "large"]}},
    "required": ["free", "kind"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One request by path and body; the body says whether it streams."""

    name: str
    path: str
    body: Mapping[str, Any]

    @property
    def is_streamed(self) -> bool:
        return bool(self.body.get("stream"))


def make_questions(seed: int) -> tuple[Question, ...]:
    """Short and long ones, with and without common prefixes; mostly greedy."""
    rng = np.random.default_rng(seed)
    prefixes = rng.integers(FIRST_TOKEN, VOCABULARY, (2, PREFIX_TOKENS)).tolist()

    def prompt(tokens: int, prefix: list[int] | None = None) -> list[int]:
        return [*(prefix or []), *rng.integers(FIRST_TOKEN, VOCABULARY, tokens).tolist()]

    lengths = (1, 15, 17, 40, 63, 90)
    drawn = {"temperature": 1.0, "top_p": 0.9}
    chat = [{"role": "user", "content": "Where does the old bridge stand?"}]
    made = [
        *(_completion(f"greedy-{n}", prompt(n), 6 + n % 17, stream=n % 2 == 1) for n in lengths),
        *(
            _completion(f"shared-{n}", prompt(n, prefixes[n % 2]), 20, stream=n > 5)
            for n in (3, 8, 9)
        ),
        _completion("drawn", prompt(33), 16, stream=True, seed=7, **drawn),
        _completion("drawn-shared", prompt(5, prefixes[0]), 12, stream=False, seed=5, **drawn),
        _completion("punished", prompt(22), 16, stream=True, repetition_penalty=1.3),
        _question("chat", CHAT, 16, stream=True, messages=chat, ignore_eos=True),
        _question("chat-schema", CHAT, 40, stream=False, messages=chat, response_format=_schema()),
    ]
    return tuple(made)


def _schema() -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": _SCHEMA}}


def _completion(
    name: str, prompt: list[int], max_tokens: int, *, stream: bool, **more: Any
) -> Question:
    assert len(prompt) + max_tokens < CONTEXT_TOKENS
    more = {"prompt": prompt, "ignore_eos": True} | more
    return _question(name, COMPLETIONS, max_tokens, stream=stream, **more)


def _question(name: str, path: str, max_tokens: int, *, stream: bool, **more: Any) -> Question:
    body = {
        "model": MODEL,
        "max_tokens": max_tokens,
        "temperature": 0.0,
        "stream": stream,
        "return_token_ids": True,
    }
    if stream:
        body["stream_options"] = {"include_usage": True}
    return Question(name=name, path=path, body=body | more)


@dataclass(slots=True)
class Answer:
    """One text so far."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    end: str | None = None
    counted_tokens: int | None = None

    def take(self, payload: Mapping[str, Any]) -> None:
        """Append a whole answer, or one event of a stream."""
        if usage := payload.get("usage"):
            self.counted_tokens = usage["completion_tokens"]
        for choice in payload["choices"]:
            assert self.end is None, "a text went on after its end"
            said = choice.get("delta") or choice.get("message") or choice
            self.text += said.get("text") or said.get("content") or ""
            self.tokens += choice.get("token_ids") or ()
            self.end = choice.get("finish_reason")

    def differs(self, expected: "Answer", *, whole: bool) -> str | None:
        """Describe a difference; of one that is not `whole`, from the beginning."""
        if whole and self != expected:
            return f"{self} is not {expected}"
        if not whole and self.tokens != expected.tokens[: len(self.tokens)]:
            return f"{self} is not the beginning of {expected}"
        return None

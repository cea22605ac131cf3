"""A chaos run's requests, and its clients' answers.

Every request is of one of a few dozen kinds with one right answer, greedy or seeded. So a quiet
engine's answers are the reference for a troubled one's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from vllm import RequestOutput, SamplingParams
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

FIRST_TOKEN, VOCABULARY = 300, 1024
"""Prompts are ordinary tokens of the bundled model."""

CONTEXT_TOKENS = 192
"""Bound of prompt and answer together."""

PREFIX_TOKENS = 70

_SCHEMA = {
    "type": "object",
    "properties": {"free": {"type": "boolean"}, "kind": {"enum": ["small", "large"]}},
    "required": ["free", "kind"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    name: str
    prompt: tuple[int, ...]
    params: SamplingParams


def make_asks(seed: int) -> tuple[Ask, ...]:
    """Short and long ones, with and without common prefixes; mostly greedy."""
    rng = np.random.default_rng(seed)
    prefixes = rng.integers(FIRST_TOKEN, VOCABULARY, (2, PREFIX_TOKENS)).tolist()

    def prompt(tokens: int, prefix: Sequence[int] = ()) -> tuple[int, ...]:
        return (*prefix, *rng.integers(FIRST_TOKEN, VOCABULARY, tokens).tolist())

    def free(max_tokens: int, **more: Any) -> SamplingParams:
        return _params(max_tokens=max_tokens, ignore_eos=True, **more)

    def held(**grammar: Any) -> SamplingParams:
        return _params(max_tokens=40, structured_outputs=StructuredOutputsParams(**grammar))

    asks = [
        *((f"greedy-{n}", prompt(n), free(8 + n % 23)) for n in (1, 15, 17, 40, 63, 90, 128)),
        *((f"shared-{n}", prompt(n, prefixes[n % 2]), free(24)) for n in (3, 8, 9, 20, 31)),
        *((f"drawn-{n}", prompt(n), free(20, temperature=1.0, seed=n)) for n in (12, 33, 80)),
        ("drawn-shared", prompt(5, prefixes[0]), free(20, temperature=0.8, seed=5)),
        ("three-drawn", prompt(25), free(12, temperature=1.0, seed=9, n=3)),
        ("two-shared", prompt(11, prefixes[1]), free(16, temperature=0.7, seed=2, n=2)),
        ("choice", prompt(21), held(choice=["positive", "negative"])),
        ("schema", prompt(18, prefixes[1]), held(json=_SCHEMA)),
        ("scored", prompt(30), free(10, logprobs=2, prompt_logprobs=1)),
        ("punished", prompt(22), free(24, repetition_penalty=1.3, frequency_penalty=0.5)),
    ]
    assert all(len(prompt) + params.max_tokens < CONTEXT_TOKENS for _, prompt, params in asks)
    return tuple(Ask(name=name, prompt=prompt, params=params) for name, prompt, params in asks)


def _params(**settings: Any) -> SamplingParams:
    """Greedy by default, and streamed as increments: duplicates and losses would show."""
    return SamplingParams(
        **({"temperature": 0.0, "output_kind": RequestOutputKind.DELTA} | settings)
    )


@dataclass(slots=True)
class Text:
    """One of the `n` texts of a request, so far."""

    tokens: list[int] = field(default_factory=list)
    scores: list[dict[int, float]] = field(default_factory=list)
    end: str | None = None

    def begins(self, whole: "Text") -> bool:
        count = len(self.tokens)
        return (
            self.tokens == whole.tokens[:count]
            and self.scores == whole.scores[:count]
            and count <= len(whole.tokens)
        )


class Answer:
    """A client's output for one request."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.texts = [Text() for _ in range(ask.params.n)]
        self.prompt_scores: list[dict[int, float] | None] = []

    def take(self, output: RequestOutput) -> None:
        if self.ask.params.n == 1:
            self.prompt_scores += map(_scores, output.prompt_logprobs or ())
        for part in output.outputs:
            text = self.texts[part.index]
            assert text.end is None, f"{self.ask.name} went on after its end"
            text.tokens += part.token_ids
            text.scores += [_scores(row) or {} for row in part.logprobs or ()]
            text.end = part.finish_reason

    @property
    def is_finished(self) -> bool:
        return all(text.end is not None for text in self.texts)

    @property
    def has_failed(self) -> bool:
        return any(text.end == "error" for text in self.texts)

    def check(self, expected: "Answer") -> None:
        """Assert that this is `expected`, or its beginning if unfinished."""
        for number, (text, whole) in enumerate(zip(self.texts, expected.texts, strict=True)):
            where = f"{self.ask.name}, text {number}: {text} is not {whole}"
            if text.end in (None, "error"):
                assert text.begins(whole), where
            else:
                assert text == whole, where
        if all(text.end not in (None, "error") for text in self.texts):
            assert self.prompt_scores == expected.prompt_scores, self.ask.name


def _scores(row: Any) -> dict[int, float] | None:
    return None if row is None else {token: entry.logprob for token, entry in row.items()}

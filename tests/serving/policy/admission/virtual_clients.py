"""Clients of a `VirtualEngine`: an open loop and a closed one."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from tests.serving.policy.admission.virtual_engine import Call, Refusal

APART_S = 0.001
"""Two clients do not come at one moment: about a server's time per request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Lengths of requests: medians and spreads (sigma) of lognormal prompts and answers.

    `asked_tokens` is every `max_tokens`; None: the answer's length.
    """

    name: str
    prompt_tokens: int
    answer_tokens: int
    prompt_spread: float = 0.0
    answer_spread: float = 0.0
    prompt_tokens_max: int = 16_000
    asked_tokens: int | None = None

    def call(self, rng: np.random.Generator, *, client: int, at_s: float) -> Call:
        prompt = self.prompt_tokens * float(np.exp(self.prompt_spread * rng.standard_normal()))
        answer = self.answer_tokens * float(np.exp(self.answer_spread * rng.standard_normal()))
        answer_tokens = int(min(max(answer, 1.0), 4_000))
        return Call(
            client=client,
            prompt_tokens=int(min(max(prompt, 8.0), self.prompt_tokens_max)),
            answer_tokens=answer_tokens,
            asked_tokens=max(answer_tokens, self.asked_tokens or 0),
            at_s=at_s,
        )


@dataclass(slots=True, kw_only=True)
class OpenLoop:
    """Poisson arrivals at `per_s` from `from_s` to `until_s`; a refused one retries after its
    delay, at most `comes_back` times.
    """

    mix: Mix
    per_s: float
    until_s: float
    seed: int
    from_s: float = 0.0
    comes_back: int = 0
    _tries: dict[int, int] = field(default_factory=dict)

    def first(self) -> Iterator[Call]:
        """All of them; the lengths do not depend on the rate."""
        gaps, lengths = (
            np.random.default_rng(part) for part in np.random.SeedSequence(self.seed).spawn(2)
        )
        at_s, number = self.from_s, 0
        while (at_s := at_s + float(gaps.exponential(1.0 / self.per_s))) < self.until_s:
            yield self.mix.call(lengths, client=number, at_s=at_s)
            number += 1

    def ended(self, call: Call, now_s: float) -> Call | None:
        """An open loop sends nothing in return."""

    def refused(self, call: Call, refusal: Refusal) -> Call | None:
        tries = self._tries.get(call.client, 0)
        if tries >= self.comes_back:
            return None
        self._tries[call.client] = tries + 1
        return replace(call, at_s=call.at_s + refusal.retry_after_s, refused=None)


@dataclass(slots=True, kw_only=True)
class ClosedLoop:
    """`clients` each send a request, `APART_S` apart from `from_s` on, and the next `think_s` after
    its end; refused, after the given delay, or at once with `at_once_after_refusal`. `requests` in
    all, None: without end.
    """

    mix: Mix
    clients: int
    seed: int
    think_s: float = 0.0
    from_s: float = 0.0
    requests: int | None = None
    at_once_after_refusal: bool = False
    _sent: int = 0
    _rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)

    def first(self) -> Iterable[Call]:
        calls = [
            self._next(client, self.from_s + APART_S * client) for client in range(self.clients)
        ]
        return [call for call in calls if call is not None]

    def ended(self, call: Call, now_s: float) -> Call | None:
        return self._next(call.client, now_s + self.think_s)

    def refused(self, call: Call, refusal: Refusal) -> Call | None:
        """The next one, at least a moment later."""
        wait_s = self.think_s if self.at_once_after_refusal else refusal.retry_after_s
        return self._next(call.client, call.at_s + max(wait_s, APART_S))

    def _next(self, client: int, at_s: float) -> Call | None:
        if self.requests is not None and self._sent >= self.requests:
            return None
        self._sent += 1
        return self.mix.call(self._rng, client=client, at_s=at_s)


@dataclass(slots=True)
class Together:
    """Several groups of clients at once; a call belongs to the group that sent it."""

    groups: list[OpenLoop | ClosedLoop]
    _group: dict[int, OpenLoop | ClosedLoop] = field(default_factory=dict)

    def first(self) -> Iterator[Call]:
        for group in self.groups:
            for call in group.first():
                yield self._of(group, call)

    def ended(self, call: Call, now_s: float) -> Call | None:
        group = self._group.pop(id(call))
        following = group.ended(call, now_s)
        return None if following is None else self._of(group, following)

    def refused(self, call: Call, refusal: Refusal) -> Call | None:
        group = self._group.pop(id(call))
        following = group.refused(call, refusal)
        return None if following is None else self._of(group, following)

    def _of(self, group: OpenLoop | ClosedLoop, call: Call) -> Call:
        self._group[id(call)] = group
        return call

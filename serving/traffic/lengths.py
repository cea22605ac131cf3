"""How long the prompts and the replies of made-up requests are.

A distribution draws whole tokens, at least 1, from the generator that it is given and from nothing
else. It must not know when requests arrive.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ConfigError

Int64s = NDArray[np.int64]
Float64s = NDArray[np.float64]

TOKENS_MAX = 10_000_000
"""Longer than any context that exists: a slip of a column or a unit, not a request."""


class Lengths(Protocol):
    """A distribution of token counts."""

    def draw(self, rng: np.random.Generator, requests: int) -> Int64s:
        """Draw int64[requests], each in 1 to `TOKENS_MAX`."""
        ...


class LengthPairs(Protocol):
    """A joint distribution of a request's prompt and reply."""

    def draw_pairs(self, rng: np.random.Generator, requests: int) -> tuple[Int64s, Int64s]:
        """Draw prompt tokens and output tokens, each int64[requests]."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedLength:
    """The same number of tokens always. Raises ConfigError for less than 1 or a wild number."""

    tokens: int

    def __post_init__(self) -> None:
        _check_tokens("tokens", self.tokens)

    def draw(self, rng: np.random.Generator, requests: int) -> Int64s:
        """All alike; nothing is drawn."""
        del rng
        return np.full(requests, self.tokens, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class LognormalLength:
    """exp(N(ln median_tokens, sigma)), rounded down and kept in `least_tokens` to `most_tokens`.

    Its mean before the bounds is median_tokens * exp(sigma^2 / 2). Raises ConfigError for bounds
    that are out of order or a median outside them.
    """

    median_tokens: int
    sigma: float
    least_tokens: int = 1
    most_tokens: int = TOKENS_MAX

    def __post_init__(self) -> None:
        for name in ("least_tokens", "median_tokens", "most_tokens"):
            _check_tokens(name, getattr(self, name))
        if not 0.0 <= self.sigma < math.inf:
            raise ConfigError(field="sigma", value=self.sigma, expected="a finite number from 0 on")
        if not self.least_tokens <= self.median_tokens <= self.most_tokens:
            raise ConfigError(
                field="median_tokens",
                value=self.median_tokens,
                expected=f"within its bounds {self.least_tokens} to {self.most_tokens}",
            )

    def draw(self, rng: np.random.Generator, requests: int) -> Int64s:
        """Draw int64[requests]."""
        drawn = rng.lognormal(math.log(self.median_tokens), self.sigma, requests)
        bounded = drawn.clip(self.least_tokens, self.most_tokens).astype(np.int64)
        # Without spread exp(ln median) may come out a hair below the median.
        return bounded if self.sigma else np.full(requests, self.median_tokens, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndependentLengths:
    """Prompts and replies whose lengths have nothing to do with each other."""

    prompt: Lengths
    output: Lengths

    def draw_pairs(self, rng: np.random.Generator, requests: int) -> tuple[Int64s, Int64s]:
        """Draw the prompts, then the outputs: each int64[requests]."""
        return self.prompt.draw(rng, requests), self.output.draw(rng, requests)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ObservedLengths:
    """Pairs drawn with replacement from those that were seen, so that they stay together.

    Raises ConfigError for arrays that do not match, or without a pair, or tokens outside 1 to
    `TOKENS_MAX`.
    """

    prompt_tokens: Int64s  # [seen]
    output_tokens: Int64s  # [seen]

    def __post_init__(self) -> None:
        if self.prompt_tokens.shape != self.output_tokens.shape or not self.prompt_tokens.size:
            raise ConfigError(
                field="output_tokens",
                value=f"shape {self.output_tokens.shape}",
                expected=f"one for each prompt, of shape {self.prompt_tokens.shape}, and some",
            )
        for name in ("prompt_tokens", "output_tokens"):
            array = getattr(self, name)
            for tokens in (array.min(), array.max()):
                _check_tokens(name, int(tokens))

    def draw_pairs(self, rng: np.random.Generator, requests: int) -> tuple[Int64s, Int64s]:
        """Draw pairs: each int64[requests]."""
        which = rng.integers(len(self.prompt_tokens), size=requests)
        return self.prompt_tokens[which], self.output_tokens[which]


def _check_tokens(field: str, tokens: int) -> None:
    if not 1 <= tokens <= TOKENS_MAX:
        raise ConfigError(field=field, value=tokens, expected=f"1 to {TOKENS_MAX:,} tokens")

"""Sampling parameters of one request: plain values that travel to its chip.

Fields and meaning are vLLM's, after its defaults and the tokenizer were applied: no strings, no
optional seed for a random request.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from emulator.errors import ConfigError

# Below this temperature the most likely token is taken (vllm.sampling_params._SAMPLING_EPS).
GREEDY_BELOW_TEMPERATURE = 1e-5

_CLOSED_RANGES = (
    ("temperature", 0.0, 2.0),
    ("min_p", 0.0, 1.0),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSpec:
    """The choices of one request, as vLLM's; ConfigError for a value outside vLLM's ranges.

    Attributes:
        top_k: most likely tokens to choose from; 0 for all.
        seed: fixes the request's draws. Required unless greedy.
        min_tokens: least tokens before one of `stop_token_ids`.
        stop_token_ids: every id that ends the request, the end-of-sequence ids included.
        logit_bias: (token id, addend to its logit), each id once.
        bad_words: token sequences whose last token cannot follow the others.
        allowed_token_ids: the only tokens to choose from; None for all.
        logprobs: most likely tokens to report; -1 for the whole vocabulary, None for no report.
        logprob_token_ids: tokens to report instead of the most likely ones.
        prompt_logprobs: as `logprobs`, for each token of the prompt but the first.
        uses_grammar: a grammar's bitmask comes with some of its steps.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    logit_bias: tuple[tuple[int, float], ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] | None = None
    prompt_logprobs: int | None = None
    uses_grammar: bool = False

    def __post_init__(self) -> None:
        for field, low, high in _CLOSED_RANGES:
            value = getattr(self, field)
            _require(low <= value <= high, field, value, f"a number in [{low:g}, {high:g}]")
        _require(0.0 < self.top_p <= 1.0, "top_p", self.top_p, "a number in (0, 1]")
        penalty = self.repetition_penalty
        _require(
            math.isfinite(penalty) and penalty > 0,
            "repetition_penalty",
            penalty,
            "a finite number greater than 0",
        )
        self._check_counts()
        self._check_token_ids()

    def _check_counts(self) -> None:
        for field in ("top_k", "min_tokens"):
            value = getattr(self, field)
            _require(value >= 0, field, value, "a whole number, 0 or greater")
        for field in ("logprobs", "prompt_logprobs"):
            value = getattr(self, field)
            _require(value is None or value >= -1, field, value, "-1, 0 or greater, or nothing")
        # The range of PyTorch's generators, so that every seed vLLM takes is taken.
        _require(
            self.seed is None or -(2**63) <= self.seed < 2**64,
            "seed",
            self.seed,
            "a whole number in [-2^63, 2^64)",
        )
        _require(
            self.is_greedy or self.seed is not None,
            "seed",
            self.seed,
            f"a whole number, since temperature={self.temperature:g} draws at random",
        )

    def _check_token_ids(self) -> None:
        biased = [token_id for token_id, _ in self.logit_bias]
        _require_token_ids("stop_token_ids", self.stop_token_ids)
        _require_token_ids("logit_bias", biased)
        _require(len(set(biased)) == len(biased), "logit_bias", biased, "each token id once")
        for _, bias in self.logit_bias:
            _require(math.isfinite(bias), "logit_bias", bias, "finite numbers")
        for word in self.bad_words:
            _require(len(word) > 0, "bad_words", word, "at least one token in each word")
            _require_token_ids("bad_words", word)
        for field in ("allowed_token_ids", "logprob_token_ids"):
            token_ids = getattr(self, field)
            if token_ids is not None:
                _require(len(token_ids) > 0, field, token_ids, "at least one token id")
                _require_token_ids(field, token_ids)

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is taken."""
        return self.temperature < GREEDY_BELOW_TEMPERATURE

    @property
    def has_penalties(self) -> bool:
        """Whether earlier tokens are less, or more, likely."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    @property
    def wants_logprobs(self) -> bool:
        """Whether log-probabilities of the chosen token are reported."""
        return self.logprobs is not None or self.logprob_token_ids is not None

    @property
    def reads_scores(self) -> bool:
        """Whether log-probabilities are reported, of what is chosen or of the prompt."""
        return self.wants_logprobs or self.prompt_logprobs is not None

    @property
    def changes_logits(self) -> bool:
        """Whether something beside a grammar or a minimum length may change the largest logit."""
        return bool(
            self.has_penalties
            or self.logit_bias
            or self.bad_words
            or self.allowed_token_ids is not None
        )

    @property
    def is_plain_greedy(self) -> bool:
        """Whether only the first of the largest logits is needed."""
        return (
            self.is_greedy
            and not self.wants_logprobs
            and not self.min_tokens
            and not self.changes_logits
        )


def _require_token_ids(field: str, token_ids: Iterable[int]) -> None:
    for token_id in token_ids:
        _require(token_id >= 0, field, token_id, "token ids, 0 or greater")


def _require(holds: bool, field: str, value: object, expected: str) -> None:
    if not holds:
        raise ConfigError(field, value, expected)

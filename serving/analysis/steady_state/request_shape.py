"""Mean request lengths of a steady state, in which as many requests begin as end."""

from dataclasses import dataclass
from math import ceil
from typing import Final

from emulator.errors import ConfigError
from serving.traffic.engine_limits import PLANNED_LIMITS

BATCHED_TOKENS_MAX: Final = PLANNED_LIMITS["max_num_batched_tokens"]
"""New tokens of one rank in one step, for which HbmTerms reserves activations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestShape:
    """Requests of `prompt_tokens` that generate `output_tokens` each.

    `prefill_chunk_tokens`: of a rank in a step with prompts, beside its decodes; None spreads them
    evenly over all steps, as a throttled prefill does. `batched_tokens_max`: a rank's new tokens in
    a step. `cached_tokens` begin a prompt and are found in a prefix cache; a rank holds the
    `common_tokens` of them once for all its requests. Raises ConfigError for a number below one, a
    chunk above the limit, and cached tokens that are none or leave nothing to compute.
    """

    prompt_tokens: int
    output_tokens: int
    prefill_chunk_tokens: int | None = None
    batched_tokens_max: int = BATCHED_TOKENS_MAX
    cached_tokens: int = 0
    common_tokens: int = 0

    def __post_init__(self) -> None:
        for name, flag in (("prompt_tokens", "input"), ("output_tokens", "output")):
            value = getattr(self, name)
            if value < 1:
                raise ConfigError(flag, value, "at least 1")
        if self.batched_tokens_max < 1:
            raise ConfigError("max-num-batched-tokens", self.batched_tokens_max, "at least 1")
        chunk = self.prefill_chunk_tokens
        if chunk is not None and not 1 <= chunk <= self.batched_tokens_max:
            raise ConfigError("prefill-tokens", chunk, f"1 to {self.batched_tokens_max}")
        for name, most in (
            ("cached_tokens", self.prompt_tokens - 1),
            ("common_tokens", self.cached_tokens),
        ):
            value = getattr(self, name)
            if not 0 <= value <= most:
                raise ConfigError(name, value, f"0 to {most}")

    @property
    def tokens(self) -> int:
        """Of one request."""
        return self.prompt_tokens + self.output_tokens

    @property
    def computed_tokens(self) -> int:
        """Of one prompt."""
        return self.prompt_tokens - self.cached_tokens

    @property
    def decode_context_tokens(self) -> int:
        """Cached by a decoding request, averaged over its output."""
        return self.prompt_tokens + self.output_tokens // 2

    def prefill_per_step(self, batch: float) -> float:
        """Mean prompt tokens to compute a step: one of `output_tokens` requests ends, another
        begins.
        """
        return batch * self.computed_tokens / self.output_tokens

    def prefill_turns(self, batch: float) -> tuple[int, float]:
        """Prompt tokens of a rank in a step with prompts beside `batch` decodes, and the share of
        such steps.
        """
        per_step = self.prefill_per_step(batch)
        chunk = max(ceil(per_step), self.prefill_chunk_tokens or 1)
        chunk = min(chunk, max(ceil(per_step), self.batched_tokens_max - ceil(batch)))
        return chunk, per_step / chunk

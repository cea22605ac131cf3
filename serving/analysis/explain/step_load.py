"""What the explained steps carry: declared, in steady state, or one prompt."""

from dataclasses import dataclass, replace
from math import ceil
from typing import Protocol

from emulator.specs.batch import StepBatch
from serving.analysis.steady_state.request_shape import RequestShape
from serving.analysis.steady_state.step_batches import prompt_chunks, spread_batch

WeightedSteps = list[tuple[float, StepBatch]]
"""How often each step comes, and its batch."""


class StepLoad(Protocol):
    """The work of an engine's step, for any number of its ranks."""

    def steps(self, ranks: int, requests: int) -> WeightedSteps:
        """The steps of an engine of `ranks` that decodes `requests`, weighted."""
        ...

    def tokens(self, requests: int) -> float:
        """Tokens that the weighted steps give, before drafts."""
        ...

    def rank_tokens(self, ranks: int, requests: int) -> int:
        """KV of the fullest rank."""
        ...

    def shared(self, engines: int) -> "StepLoad | None":
        """What each of several engines has of it, beside the requests; None if it has no parts."""
        ...

    def in_words(self) -> str:
        """A line."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredLoad:
    """One step: decodes of `context_tokens`, and `prefill_tokens` of prompts over all ranks."""

    context_tokens: int
    prefill_tokens: int = 0
    prompt_tokens: int = 1

    def steps(self, ranks: int, requests: int) -> WeightedSteps:
        """One step."""
        batch = spread_batch(
            ranks,
            decodes=requests,
            context_tokens=self.context_tokens,
            prompt_tokens=self.prompt_tokens,
            prefill_tokens=ceil(self.prefill_tokens / ranks),
        )
        return [(1.0, batch)]

    def tokens(self, requests: int) -> float:
        """One of each request; of prompts alone, theirs."""
        return requests or self.prefill_tokens

    def rank_tokens(self, ranks: int, requests: int) -> int:
        """Contexts, and prompts as a whole."""
        prompts = ceil(ceil(self.prefill_tokens / ranks) / self.prompt_tokens)
        return ceil(requests / ranks) * (self.context_tokens + 1) + prompts * self.prompt_tokens

    def shared(self, engines: int) -> "DeclaredLoad":
        """An even part of the prompts."""
        return replace(self, prefill_tokens=ceil(self.prefill_tokens / engines))

    def in_words(self) -> str:
        """A line."""
        words = f"context {self.context_tokens:,}"
        if self.prefill_tokens:
            words += (
                f", and {self.prefill_tokens:,} tokens of prompts of {self.prompt_tokens:,} tokens"
            )
        return words


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyLoad:
    """The mean step of a steady state, in which as many requests begin as end."""

    shape: RequestShape

    def steps(self, ranks: int, requests: int) -> WeightedSteps:
        """Steps with prompts, and those without."""
        chunk, share = self.shape.prefill_turns(requests / ranks)
        found = [(share, self._batch(ranks, requests, chunk))]
        if share < 1:
            found.append((1 - share, self._batch(ranks, requests, 0)))
        return found

    def _batch(self, ranks: int, requests: int, prefill_tokens: int) -> StepBatch:
        return spread_batch(
            ranks,
            decodes=requests,
            context_tokens=self.shape.decode_context_tokens,
            prompt_tokens=self.shape.prompt_tokens,
            cached_tokens=self.shape.cached_tokens,
            prefill_tokens=prefill_tokens,
        )

    def tokens(self, requests: int) -> float:
        """One of each request."""
        return requests

    def rank_tokens(self, ranks: int, requests: int) -> int:
        """Whole requests."""
        return ceil(requests / ranks) * self.shape.tokens

    def shared(self, engines: int) -> "SteadyLoad":  # noqa: ARG002 - as others
        """Prompts come with the requests."""
        return self

    def in_words(self) -> str:
        """A line."""
        shape = self.shape
        return (
            f"{shape.prompt_tokens:,} prompt and {shape.output_tokens:,} output tokens a request; "
            "the mean step, prompts of others included"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLoad:
    """All steps of one prompt on the first rank of an idle engine."""

    shape: RequestShape

    def steps(self, ranks: int, requests: int) -> WeightedSteps:  # noqa: ARG002 - as others
        """A step for each chunk."""
        return [(1.0, batch) for batch in prompt_chunks(ranks, self.shape)]

    def tokens(self, requests: int) -> float:  # noqa: ARG002 - as others
        """The prompt's."""
        return self.shape.prompt_tokens

    def rank_tokens(self, ranks: int, requests: int) -> int:  # noqa: ARG002 - as others
        """The prompt's."""
        return self.shape.prompt_tokens

    def shared(self, engines: int) -> "PromptLoad | None":
        """One engine has it."""
        return self if engines == 1 else None

    def in_words(self) -> str:
        """A line."""
        return f"one prompt of {self.shape.prompt_tokens:,} tokens on an idle engine"

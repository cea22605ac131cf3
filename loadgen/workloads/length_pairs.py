"""Joint distributions of a request's prompt and reply, in whole tokens."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from loadgen.errors import OptionError
from loadgen.records.arrays import Int64s
from loadgen.workloads.trace_lines import TOKENS_MAX
from loadgen.workloads.workload_spec import Lengths


class LengthPairs(Protocol):
    """A joint distribution of a request's prompt and reply."""

    def draw_pairs(self, chance: np.random.Generator, requests: int) -> tuple[Int64s, Int64s]:
        """Draw prompt tokens and output tokens, each int64[requests]."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class IndependentLengths:
    """Prompts and replies of independent lengths."""

    prompt: Lengths
    output: Lengths

    def draw_pairs(self, chance: np.random.Generator, requests: int) -> tuple[Int64s, Int64s]:
        """Draw each from its own stream, so that more requests leave the first unchanged."""
        prompts, outputs = chance.spawn(2)
        return self.prompt.draw(prompts, requests), self.output.draw(outputs, requests)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ObservedLengths:
    """Observed pairs, drawn with replacement as pairs.

    Raises OptionError for arrays that do not match or are empty, and for tokens outside 1 to
    `TOKENS_MAX`.
    """

    prompt_tokens: Int64s  # [seen]
    output_tokens: Int64s  # [seen]

    def __post_init__(self) -> None:
        if self.prompt_tokens.shape != self.output_tokens.shape or not self.prompt_tokens.size:
            raise OptionError(
                "output_tokens",
                f"shape {self.output_tokens.shape}",
                f"one for each prompt, of shape {self.prompt_tokens.shape}, and some",
            )
        for name in ("prompt_tokens", "output_tokens"):
            array = getattr(self, name)
            for tokens in (int(array.min()), int(array.max())):
                if not 1 <= tokens <= TOKENS_MAX:
                    raise OptionError(name, tokens, f"1 to {TOKENS_MAX:,} tokens")

    def draw_pairs(self, chance: np.random.Generator, requests: int) -> tuple[Int64s, Int64s]:
        """Draw pairs: each int64[requests]."""
        which = chance.integers(len(self.prompt_tokens), size=requests)
        return self.prompt_tokens[which], self.output_tokens[which]

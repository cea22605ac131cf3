"""A training job's use of its chips: batch, precision, kept, recomputed and sharded state.

A step is some micro-batches, each a forward and a backward pass that accumulate gradients, and then
one update. Data parallel over all chips, expert parallel over groups of them.
"""

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

from emulator.errors import ConfigError
from emulator.specs.overlap import Overlap

PRECISIONS: Final = ("bf16", "fp8")


class Recompute(StrEnum):
    """NONE: all activations for the backward pass are kept. LAYERS: only each layer's input; the
    rest, token exchanges included, is recomputed.
    """

    NONE = "none"
    LAYERS = "layers"


class Sharding(IntEnum):
    """Dense state that is divided over all chips instead of repeated on each.

    Each stage includes those before it, as in ZeRO (arXiv 1910.02054): the optimizer's state,
    gradients, weights. Experts' state is divided over the groups with copies.
    """

    OPTIMIZER = 1
    GRADIENTS = 2
    WEIGHTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRecipe:
    """A job's settings; raises ConfigError for values that make no step.

    By default no recomputing, which costs a forward pass and its exchanges more per step; kept
    activations usually fit: of gpt-oss-120b, a sequence of 4,096 tokens keeps 26 GB.

    Attributes:
        sequence_tokens: DeepSeek-V3 was pre-trained at 4,096 (arXiv 2412.19437).
        sequences_per_chip: in each micro-batch.
        micro_batches: of a step. Assumed: 8, with which 144 chips train 4.7 million tokens a step
            (DeepSeek-V3's steps grew from 12.6 to 62.9 million, Llama 3's from 4 to 16 million).
        precision: of layers' matrix products, "bf16" or "fp8"; embedding, LM head and routers are
            always BF16, sums FP32.
        ep: chips that together hold all experts once; by default all of the job's.
        overlap: of token exchanges and gradient collectives with computing. NONE waits for all;
            otherwise gradients hide behind the backward pass. Two half batches need two sequences
            per chip.
        lnc: physical cores of a logical core; by default the chip's.
    """

    sequence_tokens: int = 4_096
    sequences_per_chip: int = 1
    micro_batches: int = 8
    precision: str = "bf16"
    recompute: Recompute = Recompute.NONE
    sharding: Sharding = Sharding.OPTIMIZER
    ep: int | None = None
    overlap: Overlap = Overlap.NONE
    lnc: int | None = None

    def __post_init__(self) -> None:
        for name in ("sequence_tokens", "sequences_per_chip", "micro_batches", "ep", "lnc"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(name, value, "at least 1")
        if self.precision not in PRECISIONS:
            raise ConfigError("precision", self.precision, " or ".join(PRECISIONS))

    @property
    def micro_batch_tokens_per_chip(self) -> int:
        """Tokens of one chip in one micro-batch."""
        return self.sequences_per_chip * self.sequence_tokens

    @property
    def step_tokens_per_chip(self) -> int:
        """Tokens of one chip in one step."""
        return self.micro_batches * self.micro_batch_tokens_per_chip

    def expert_group(self, chips: int) -> int:
        """Chips of an expert-parallel group of a job of `chips`; raises ConfigError."""
        if self.ep is None:
            return chips
        if chips % self.ep:
            raise ConfigError("ep", self.ep, f"a divisor of the {chips} chips")
        return self.ep

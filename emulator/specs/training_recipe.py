"""A training job's use of its chips: batch, precision, kept, recomputed and sharded state.

A step is some micro-batches, each a forward and a backward pass whose gradients are added up, and
then one update of the parameters. The job is data parallel over all of its chips, and expert
parallel over groups of them.
"""

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

from emulator.errors import ConfigError
from emulator.specs.overlap import Overlap

PRECISIONS: Final = ("bf16", "fp8")


class Recompute(StrEnum):
    """NONE: all that the backward pass needs is kept. LAYERS: of each layer its input alone, and
    the rest is computed again before the layer's backward pass, exchanges of tokens included.
    """

    NONE = "none"
    LAYERS = "layers"


class Sharding(IntEnum):
    """State of the dense parameters that is divided over all chips instead of repeated on each.

    Each stage includes those before it, as in ZeRO (arXiv 1910.02054): the optimizer's state, then
    the gradients, then the weights themselves. Experts are on their owners alone; their state is
    divided over the groups with copies of the same expert.
    """

    OPTIMIZER = 1
    GRADIENTS = 2
    WEIGHTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRecipe:
    """A job's settings; raises ConfigError for one that makes no step.

    Nothing is recomputed unless asked for: recomputing costs a forward pass and its exchanges more
    in every step, and what is kept otherwise fits: of gpt-oss-120b, a sequence of 4,096
    tokens keeps 26 GB.

    Attributes:
        sequence_tokens: of each sequence. DeepSeek-V3 was pre-trained at 4,096 (arXiv 2412.19437).
        sequences_per_chip: in each micro-batch.
        micro_batches: of a step. Assumed: 8, with which 144 chips train 4.7 million tokens a step
            (DeepSeek-V3's steps grew from 12.6 to 62.9 million, Llama 3's from 4 to 16 million).
        precision: of the matrix products of layers, "bf16" or "fp8"; embedding, LM head and
            routers are multiplied in BF16, and sums are FP32, in both.
        ep: chips that together hold all experts once; all of the job's without it.
        overlap: how far exchanges of tokens and collectives of gradients hide behind computing.
            Under NONE all is waited for; under the others, gradients hide behind the backward pass.
            Two half batches need two sequences on each chip; one sequence is exchanged as a whole.
        lnc: physical cores of a logical core; the chip's default without it.
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

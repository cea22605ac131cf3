"""A training job's use of its chips: batch, precision, kept, recomputed and sharded state.

A step is some micro-batches, each a forward and a backward pass that accumulate gradients, and then
one update. Chips are numbered by pipeline stage, then replica, then place in a tensor-parallel rank
(as Megatron's, arXiv 2104.04473); experts are spread over groups of neighbours in a stage.
"""

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

from emulator.errors import ConfigError
from emulator.specs.overlap import Overlap

PRECISIONS: Final = ("bf16", "fp8")
SEQUENCE_TOKENS: Final = 4_096
BATCH_TOKENS: Final = 16_777_216
"""Of a step: Llama 3 405B was trained with so many (16M, arXiv 2407.21783, table 4) for most of its
run.
"""


class Recompute(StrEnum):
    """NONE: all activations for the backward pass are kept. SELECTIVE: norms, gated products and a
    latent's queries, keys and values are recomputed, as by DeepSeek-V3 (arXiv 2412.19437, 3.2.3).
    FULL: only each layer's input is kept; the rest, token exchanges included, is recomputed.
    """

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class PipelineSchedule(StrEnum):
    """Order of micro-batches in a pipeline.

    1F1B (arXiv 2104.04473): a stage alternates forward and backward passes, in turns of its virtual
    stages if it has several. DUALPIPE (arXiv 2412.19437, 3.2.1): micro-batches enter from both
    ends, and each chip has the weights of two stages.
    """

    ONE_F_ONE_B = "1f1b"
    DUALPIPE = "dualpipe"


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
        sequences_per_chip: in each micro-batch of a replica: a rank of `tp` chips in each stage.
        micro_batches: of a step. Assumed: 8, with which 144 chips train 4.7 million tokens a step
            (DeepSeek-V3's steps grew from 12.6 to 62.9 million, Llama 3's from 4 to 16 million).
        precision: of layers' matrix products, "bf16" or "fp8"; embedding, LM head and routers are
            always BF16, sums FP32.
        tp: chips that divide heads and columns of a layer; between its products each has a part of
            the tokens (sequence parallelism, arXiv 2205.05198).
        pp: stages of the pipeline, each with a part of the layers.
        virtual_stages: parts of each stage's layers that take turns (interleaved 1F1B).
        ep: chips that together hold all experts of a layer once; by default all of a stage.
        overlap: of token exchanges and gradient collectives with computing. NONE waits for all;
            otherwise gradients hide behind the backward pass. Two half batches need two sequences
            per chip.
        lnc: physical cores of a logical core; by default the chip's.
    """

    sequence_tokens: int = SEQUENCE_TOKENS
    sequences_per_chip: int = 1
    micro_batches: int = 8
    precision: str = "bf16"
    recompute: Recompute = Recompute.NONE
    sharding: Sharding = Sharding.OPTIMIZER
    tp: int = 1
    pp: int = 1
    virtual_stages: int = 1
    schedule: PipelineSchedule = PipelineSchedule.ONE_F_ONE_B
    ep: int | None = None
    overlap: Overlap = Overlap.NONE
    lnc: int | None = None

    def __post_init__(self) -> None:
        counts = ("sequence_tokens", "sequences_per_chip", "micro_batches", "ep", "lnc")
        for name in (*counts, "tp", "pp", "virtual_stages"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(name, value, "at least 1")
        if self.precision not in PRECISIONS:
            raise ConfigError("precision", self.precision, " or ".join(PRECISIONS))
        if self.virtual_stages > 1 and (
            self.pp == 1 or self.schedule is not PipelineSchedule.ONE_F_ONE_B
        ):
            raise ConfigError("virtual_stages", self.virtual_stages, "1 without a 1f1b pipeline")

    @property
    def described(self) -> str:
        """In short: "fp8, 4,096 tokens x 1 x 8, tp 4, pp 2, ep 72, ZeRO-1, recomputes none"."""
        size = f"{self.sequence_tokens:,} tokens x {self.sequences_per_chip} x {self.micro_batches}"
        pipeline = f"pp {self.pp}"
        if self.virtual_stages > 1:
            pipeline += f" x {self.virtual_stages}"
        if self.schedule is not PipelineSchedule.ONE_F_ONE_B:
            pipeline += f" {self.schedule}"
        group = "" if self.ep is None else f", ep {self.ep}"
        return (
            f"{self.precision}, {size}, tp {self.tp}, {pipeline}{group}, ZeRO-{self.sharding:d}, "
            f"recomputes {self.recompute}, overlap {self.overlap}"
        )

    @property
    def micro_batch_tokens_per_chip(self) -> int:
        """Tokens of one chip in one micro-batch."""
        return self.sequences_per_chip * self.sequence_tokens

    @property
    def step_tokens_per_chip(self) -> int:
        """Tokens of one chip in one step."""
        return self.micro_batches * self.micro_batch_tokens_per_chip

    def expert_group(self, chips: int) -> int:
        """Chips of an expert-parallel group of a stage of `chips`; raises ConfigError."""
        if self.ep is None:
            return chips
        if chips % self.ep:
            raise ConfigError("ep", self.ep, f"a divisor of the {chips} chips")
        return self.ep

"""Published speeds of training runs, to compare the cost of training with.

No figure is fitted to them. Each states the omissions of its prediction.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from emulator.specs.figure import Figure
from emulator.specs.overlap import Overlap
from emulator.specs.training_recipe import Sharding, TrainingRecipe

_HERD: Final = "The Llama 3 Herd of Models, arXiv 2407.21783"
_CARD: Final = "Llama 3.1 model card: 15T+ tokens"
_PARALLEL: Final = (
    "tensor, pipeline and context parallelism and their bubbles are left out; all chips are data "
    "parallel with the weights sharded, whose collectives hide behind computing"
)
_HOURS: Final = (
    f"{_PARALLEL}; the hours are all that were billed to the model, restarts and long-context "
    "stages included"
)


class Speed(StrEnum):
    """The quantity of a published figure."""

    TOKENS = "tokens/s per chip"
    MODEL_TFLOPS = "model TFLOP/s per chip"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTraining:
    """`measured` on `units` of a catalog system.

    Attributes:
        units: predicted scale-up domains; the real run may have had more.
        measured: per chip; its unit is one of `Speed`.
        conditions: of the prediction, in short.
        differs: parts of the real run that are left out or assumed.
    """

    name: str
    system: str
    units: int
    model: str
    recipe: TrainingRecipe
    measured: Figure
    conditions: str
    differs: str

    def __post_init__(self) -> None:
        assert self.measured.unit in list(Speed), self.measured
        assert self.units >= 1, self.units


def _per_chip(tokens: float, hours: float, source: str) -> Figure:
    """Tokens per second and chip of `tokens` in `hours` chip-hours."""
    return Figure(
        tokens / (hours * 3600),
        Speed.TOKENS.value,
        f"arithmetic: {tokens:.4g} tokens / ({hours:.4g} GPU hours x 3,600 s), {source}",
    )


def _llama(size: str, run: str, measured: Figure, differs: str) -> PublishedTraining:
    return PublishedTraining(
        name=f"Llama 3.1 {size}, {run}",
        system="dgx-h100",
        units=32,
        model=f"llama-3.1-{size.lower()}",
        recipe=TrainingRecipe(
            sequence_tokens=8_192, micro_batches=1, sharding=Sharding.WEIGHTS, overlap=Overlap.FULL
        ),
        measured=measured,
        conditions="BF16, 8,192 tokens, sharded weights, collectives behind computing",
        differs=differs,
    )


_TABLE: Final = f"{_HERD}, table 4"

PUBLISHED_TRAININGS: Final[tuple[PublishedTraining, ...]] = (
    PublishedTraining(
        name="DeepSeek-V3, pre-training",
        system="dgx-h800",
        units=16,
        model="deepseek-v3",
        recipe=TrainingRecipe(
            sequences_per_chip=2, micro_batches=4, precision="fp8", ep=64, overlap=Overlap.TWO_BATCH
        ),
        measured=_per_chip(
            1e12, 180e3, "arXiv 2412.19437, table 1 and section 1: 180K H800 hours a trillion"
        ),
        conditions="FP8, 4,096 tokens, EP 64, exchanges behind computing; no pipeline or MTP",
        differs="128 chips in two groups of 64 instead of 2,048; no pipeline of 16 stages, which "
        "is how the real weights fit, nor its bubbles, so that each chip's gradients are those of "
        "all layers; no multi-token prediction (one more layer "
        "and LM head); routing is not limited to four nodes; DualPipe's overlap is taken as that "
        "of two half batches",
    ),
    _llama(
        "405B",
        "pre-training at 16,384 GPUs",
        Figure(400, Speed.MODEL_TFLOPS.value, _TABLE),
        _PARALLEL,
    ),
    _llama(
        "405B",
        "pre-training at 8,192 GPUs",
        Figure(430, Speed.MODEL_TFLOPS.value, _TABLE),
        _PARALLEL,
    ),
    _llama(
        "405B", "all GPU hours", _per_chip(15.6e12, 30.84e6, f"{_CARD}; {_HERD}: 15.6T"), _HOURS
    ),
    _llama("70B", "all GPU hours", _per_chip(15e12, 7.0e6, _CARD), _HOURS),
    _llama("8B", "all GPU hours", _per_chip(15e12, 1.46e6, _CARD), _HOURS),
)

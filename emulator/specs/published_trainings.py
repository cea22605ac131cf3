"""Published speeds of training runs, with their recipes, to compare the cost of training with.

Two constants of the calibration are fitted to those with known recipes: the share of the matrix
engine's rate in training, and the launches of experts. Each run states the omissions of its
prediction, and, where the prediction is more than `CLOSE` off, the likely reasons. Of Megatron
Bridge's page all rows are here whose model and machine the catalog has, but those with context
parallelism, which no recipe has.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from emulator.specs.figure import Figure
from emulator.specs.overlap import Overlap
from emulator.specs.training_recipe import (
    PipelineSchedule,
    Recompute,
    Sharding,
    TrainingRecipe,
)

CLOSE: Final = 0.15
"""Relative error up to which a run counts as predicted."""

_HERD: Final = "The Llama 3 Herd of Models, arXiv 2407.21783"
_CARD: Final = "Llama 3.1 model card: 15T+ tokens"
_BRIDGE: Final = (
    "NVIDIA-NeMo/Megatron-Bridge, docs/performance-summary.md and its archive, 25.11 NeMo container"
)


class Speed(StrEnum):
    """The quantity of a published figure."""

    TOKENS = "tokens/s per chip"
    MODEL_TFLOPS = "model TFLOP/s per chip"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTraining:
    """`measured` on `chips` of a catalog system.

    Attributes:
        measured: per chip; its unit is one of `Speed`.
        conditions: of the prediction, in short.
        differs: parts of the real run that are left out or assumed.
        reason: why the prediction is more than `CLOSE` off, so far as is known; else empty.
    """

    name: str
    system: str
    chips: int
    model: str
    recipe: TrainingRecipe
    measured: Figure
    differs: str
    reason: str = ""

    def __post_init__(self) -> None:
        assert self.measured.unit in list(Speed), self.measured
        assert self.chips >= 1, self.chips

    @property
    def conditions(self) -> str:
        """The recipe in short."""
        return f"{self.chips:,} chips, {self.recipe.described}"


def _per_chip(tokens: float, hours: float, source: str) -> Figure:
    """Tokens per second and chip of `tokens` in `hours` chip-hours."""
    return Figure(
        tokens / (hours * 3600),
        Speed.TOKENS.value,
        f"arithmetic: {tokens:.4g} tokens / ({hours:.4g} GPU hours x 3,600 s), {source}",
    )


_HERD_405B: Final = TrainingRecipe(
    sequence_tokens=8_192,
    micro_batches=32,
    tp=8,
    pp=16,
    virtual_stages=8,
    overlap=Overlap.FULL,
)
_HERD_DIFFERS: Final = (
    "virtual stages of a layer each: the first and the last have none (section 3.3.2), and 126 "
    "layers fill the other 126 of 16 x 8; assumed: a rank's collectives hide behind its products "
    "(exposed, the prediction is 18 and 19 % too slow); weights stay gathered"
)
_HOURS: Final = (
    "the hours are all that were billed to the model, restarts and long-context stages included, "
    "on recipes that are not published: data parallel with sharded weights"
)
_BILLED: Final = "too fast: restarts, long-context stages and other recipes are in the hours"
_FSDP: Final = TrainingRecipe(
    sequence_tokens=8_192, micro_batches=1, sharding=Sharding.WEIGHTS, overlap=Overlap.FULL
)
_PAPERS: Final = (
    PublishedTraining(
        name="DeepSeek-V3, pre-training",
        system="dgx-h800",
        chips=2_048,
        model="deepseek-v3",
        recipe=TrainingRecipe(
            sequences_per_chip=1,
            micro_batches=120,
            precision="fp8",
            recompute=Recompute.SELECTIVE,
            pp=16,
            schedule=PipelineSchedule.DUALPIPE,
            ep=64,
            overlap=Overlap.TWO_BATCH,
        ),
        measured=_per_chip(14.8e12, 2.664e6, "arXiv 2412.19437, table 1 and section 4.2: 14.8T"),
        differs="no multi-token prediction (one more layer and LM head of 61, about 3 % of the "
        "flops); routing is not limited to four nodes; 15,360 sequences a step from the first",
    ),
    PublishedTraining(
        name="Llama 3.1 405B, pre-training at 16,384 GPUs",
        system="dgx-h100",
        chips=16_384,
        model="llama-3.1-405b",
        recipe=replace(_HERD_405B, micro_batches=16),
        measured=Figure(400, Speed.MODEL_TFLOPS.value, f"{_HERD}, table 4"),
        differs=_HERD_DIFFERS,
    ),
    PublishedTraining(
        name="Llama 3.1 405B, pre-training at 8,192 GPUs",
        system="dgx-h100",
        chips=8_192,
        model="llama-3.1-405b",
        recipe=_HERD_405B,
        measured=Figure(430, Speed.MODEL_TFLOPS.value, f"{_HERD}, table 4"),
        differs=_HERD_DIFFERS,
    ),
)
_ALL_HOURS: Final = tuple(
    PublishedTraining(
        name=f"Llama 3.1 {size}, all GPU hours",
        system="dgx-h100",
        chips=chips,
        model=f"llama-3.1-{size.lower()}",
        recipe=recipe,
        measured=_per_chip(tokens, hours, source),
        differs=_HOURS,
        reason=reason,
    )
    for size, chips, recipe, tokens, hours, source, reason in (
        (
            "405B",
            16_384,
            replace(_HERD_405B, micro_batches=16),
            15.6e12,
            30.84e6,
            f"{_CARD}; {_HERD}: 15.6T",
            "",
        ),
        ("70B", 256, _FSDP, 15e12, 7.0e6, _CARD, _BILLED),
        ("8B", 256, _FSDP, 15e12, 1.46e6, _CARD, _BILLED),
    )
)

_SAME_PEAK: Final = (
    "too slow: with the same BF16 peak GB300 is 23 to 25 % faster than GB200 in these two models; "
    "it may draw more watts, and how products slow down under a limit of power is not predicted"
)
_ON_H100: Final = (
    "too fast: on H100 the 30B model is twice as fast where tokens are dropped (25.09 container), "
    "so that half of its time is handling of tokens, which the prediction lacks"
)
_LONG_WINDOWS: Final = (
    "too fast, by unknown causes: sequences of 8,192 tokens, where those of 4,096 are predicted"
)


def _bridge(
    model: str,
    system: str,
    chips: int,
    tokens_per_s: float,
    recipe: TrainingRecipe,
    reason: str = "",
) -> PublishedTraining:
    """A row of Megatron Bridge's page; a step's micro-batches by its global batch."""
    overlapped = Overlap.FULL if recipe.tp > 1 else Overlap.TWO_BATCH
    return PublishedTraining(
        name=f"{model}, {recipe.precision} on {chips} of {system}",
        system=system,
        chips=chips,
        model=model,
        recipe=replace(recipe, overlap=overlapped),
        measured=Figure(tokens_per_s, Speed.TOKENS.value, _BRIDGE),
        differs="a rank's collectives hide behind its products (the recipes' tp_comm_overlap), "
        "gradients behind the backward pass, exchanges behind another micro-batch (assumed)",
        reason=reason,
    )


_8B: Final = TrainingRecipe(
    sequence_tokens=8_192, sequences_per_chip=2, micro_batches=8, precision="fp8"
)
_70B: Final = replace(_8B, micro_batches=2, sharding=Sharding.WEIGHTS)
_405B: Final = TrainingRecipe(
    sequence_tokens=8_192, micro_batches=384, precision="fp8", tp=4, pp=16, virtual_stages=4
)
_V3: Final = TrainingRecipe(recompute=Recompute.SELECTIVE)
_OSS: Final = TrainingRecipe(sequence_tokens=4_096, sequences_per_chip=4, micro_batches=2, ep=8)
_30B: Final = TrainingRecipe(sequences_per_chip=4, micro_batches=16, precision="fp8", ep=8)
_235B: Final = TrainingRecipe(pp=8, ep=32)
_BRIDGE_ROWS: Final = (
    ("llama-3.1-8b", "gb300-nvl72", 8, 37_556, _8B),
    ("llama-3.1-70b", "gb300-nvl72", 64, 4_520, _70B),
    (
        *("deepseek-v3", "gb300-nvl72", 256, 3_848),
        replace(_V3, micro_batches=32, pp=2, virtual_stages=4, ep=32),
        _SAME_PEAK,
    ),
    (
        *("deepseek-v3", "gb300-nvl72", 256, 4_357),
        replace(_V3, micro_batches=32, pp=2, virtual_stages=4, ep=32, precision="fp8"),
    ),
    (
        *("gpt-oss-120b", "gb300-nvl72", 64, 18_347),
        replace(_OSS, sequence_tokens=8_192, sequences_per_chip=2, micro_batches=10, ep=64),
        _LONG_WINDOWS,
    ),
    ("qwen3-30b-a3b", "gb300-nvl72", 8, 28_934, _30B),
    (
        *("qwen3-235b-a22b", "gb300-nvl72", 256, 6_131),
        replace(_235B, sequences_per_chip=2, micro_batches=64, pp=4, virtual_stages=12, ep=16),
        _SAME_PEAK,
    ),
    ("llama-3.1-8b", "gb200-nvl72", 8, 31_508, _8B),
    ("llama-3.1-70b", "gb200-nvl72", 64, 4_312, _70B),
    ("llama-3.1-405b", "gb200-nvl72", 256, 813, _405B),
    (
        *("deepseek-v3", "gb200-nvl72", 256, 3_139),
        replace(_V3, micro_batches=64, pp=4, virtual_stages=4, ep=64),
    ),
    (
        *("deepseek-v3", "gb200-nvl72", 256, 4_018),
        replace(_V3, micro_batches=128, precision="fp8", pp=8, virtual_stages=4, ep=32),
    ),
    (
        *("gpt-oss-120b", "gb200-nvl72", 64, 15_876),
        replace(_OSS, sequence_tokens=8_192, sequences_per_chip=1, micro_batches=20, ep=64),
        _LONG_WINDOWS,
    ),
    ("qwen3-30b-a3b", "gb200-nvl72", 8, 23_766, _30B),
    (
        *("qwen3-235b-a22b", "gb200-nvl72", 256, 4_916),
        replace(_235B, micro_batches=256, virtual_stages=3),
    ),
    ("llama-3.1-8b", "dgx-b200", 8, 30_624, _8B),
    (
        *("deepseek-v3", "dgx-b200", 256, 2_139),
        replace(_V3, micro_batches=128, precision="fp8", pp=16, ep=8),
    ),
    ("gpt-oss-120b", "dgx-b200", 64, 8_213, _OSS),
    (
        *("qwen3-30b-a3b", "dgx-b200", 8, 9_299),
        replace(_30B, sequences_per_chip=1, micro_batches=64),
    ),
    (
        *("qwen3-235b-a22b", "dgx-b200", 64, 3_269),
        replace(_235B, micro_batches=128, precision="fp8", virtual_stages=2, ep=8),
    ),
    (
        *("llama-3.1-8b", "dgx-h100", 8, 14_451),
        replace(_8B, sequences_per_chip=1, micro_batches=16, sharding=Sharding.WEIGHTS),
    ),
    (
        *("llama-3.1-70b", "dgx-h100", 64, 1_602),
        replace(_8B, sequences_per_chip=1, micro_batches=64, tp=4, pp=8, virtual_stages=5),
    ),
    ("gpt-oss-120b", "dgx-h100", 64, 5_630, replace(_OSS, micro_batches=8, pp=4)),
    (
        *("qwen3-30b-a3b", "dgx-h100", 16, 5_275),
        replace(_30B, sequences_per_chip=2, micro_batches=32, pp=2, virtual_stages=24),
        _ON_H100,
    ),
    (
        *("qwen3-235b-a22b", "dgx-h100", 256, 1_575),
        replace(_235B, micro_batches=128, precision="fp8", tp=2, virtual_stages=4),
        _ON_H100,
    ),
)

PUBLISHED_TRAININGS: Final[tuple[PublishedTraining, ...]] = (
    *_PAPERS,
    *_ALL_HOURS,
    *(_bridge(*row) for row in _BRIDGE_ROWS),
)

"""The host memory that chips need, checked before they start: a host that swaps is of no use.

KV pools come beside it: they take memory as they are written, and their owner sizes them by what is
left.
"""

import math
from dataclasses import dataclass
from pathlib import Path

from emulator.compute.checkpoint import read_architecture
from emulator.compute.exchange_sizes import ExchangeSizes
from emulator.compute.families.registry import FAMILIES
from emulator.compute.stored_weights import maps_weights
from emulator.compute.tensors import stored_bytes
from emulator.errors import CheckpointError
from emulator.formats.model_formats import FP32_MODEL, ModelFormats
from emulator.specs.model import ModelSpec

PROCESS_BYTES = 45_000_000
"""A chip's process beyond shared pages: 38 MB were measured on 144 (`tests.benchmarks`,
big_checkpoint)."""

STEP_ROWS = 64
"""Assumed: tokens of a rank in a step, which are sampled; their logits are a chip's largest array
in most steps. Longer prompts take more, while their step lasts."""

_FP32_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class HostNeed:
    """Memory of `chips` on one host: pages of the checkpoint once, and what each has of its own.

    `draft_bytes`: of a drafting model on the ranks' leading chips together; `exchange_bytes`: of a
    step's rows in the memory that all chips share.
    """

    weights_dir: Path
    chips: int
    mapped_bytes: int
    weights_bytes: int
    process_bytes: int
    draft_bytes: int = 0
    exchange_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """Of all chips together."""
        own_bytes = self.chips * (self.weights_bytes + self.process_bytes)
        return self.mapped_bytes + own_bytes + self.draft_bytes + self.exchange_bytes

    def check(self, available_bytes: int) -> None:
        """Raise CheckpointError, with the figures, when it is more than is available."""
        if self.total_bytes > available_bytes:
            raise CheckpointError(
                f"{self.weights_dir}: {available_bytes / 1e9:.2f} GB of this host's memory are"
                f" available, and {self}"
            )

    def __str__(self) -> str:
        drafting = f", {self.draft_bytes / 1e9:.3f} GB of a drafting model" * bool(self.draft_bytes)
        shared = f", {self.exchange_bytes / 1e9:.3f} GB of rows that they exchange"
        return (
            f"{self.chips} chips need {self.total_bytes / 1e9:.2f} GB:"
            f" {self.mapped_bytes / 1e9:.2f} GB of weights in pages that they share, and each"
            f" {self.weights_bytes / 1e9:.3f} GB of weights and"
            f" {self.process_bytes / 1e9:.3f} GB of process{drafting}"
            f"{shared * bool(self.exchange_bytes)}, without KV"
        )


def host_need(
    weights_dir: Path,
    *,
    chips: int,
    tp: int,
    slots: int,
    formats: ModelFormats = FP32_MODEL,
    drafts: bool = False,
    draft_dir: Path | None = None,
    one_host: bool = True,
) -> HostNeed:
    """The need of `chips` with `slots` experts each in a layer, `tp` chips a rank.

    With `drafts`, chips have the layer that drafts; with `draft_dir`, leading ones a drafting
    model. Chips that are all on `one_host` exchange rows in memory, but for that layer's. Raises
    CheckpointError for weights that are not computed.
    """
    arch, mapped = read_architecture(weights_dir), maps_weights(weights_dir, formats)
    tensors = FAMILIES[arch.family].layer_tensors
    copied = 0
    if not mapped:
        of_layers = sum(
            math.prod(shape)
            for layer in range(arch.layers + drafts)
            for _, shape in tensors(arch, layer)
        )
        experts = 3 * arch.hidden * arch.expert_intermediate + arch.expert_bias_width
        ends = (3 + 2 * drafts) * arch.vocab * arch.hidden  # the head twice, once in panels
        own = of_layers // arch.attending_chips(tp)
        copied = ends + own + (len(arch.expert_layers) + drafts) * slots * experts
    sizes = ExchangeSizes.of(
        arch, chips=chips, tp=tp, slots=slots, tokens=STEP_ROWS * -(-chips // tp)
    )
    return HostNeed(
        weights_dir=weights_dir,
        chips=chips,
        mapped_bytes=stored_bytes(weights_dir) if mapped else 0,
        weights_bytes=_FP32_BYTES * copied,
        process_bytes=_process_bytes(arch.vocab),
        draft_bytes=0 if draft_dir is None else _draft_bytes(draft_dir, -(-chips // tp)),
        exchange_bytes=sizes.used_bytes() if one_host and not drafts else 0,
    )


def mapped_need(model: ModelSpec, chips: int) -> HostNeed:
    """The need of `chips`, each a rank, that map a checkpoint of `model` as stored, by its
    dimensions alone.
    """
    sizes = ExchangeSizes(
        chips=chips,
        layers=model.moe_layers,
        experts=model.experts,
        experts_per_token=model.experts_per_token,
        slots=-(-model.experts // chips),
        hidden=model.hidden,
        groups=0,
        tokens=STEP_ROWS * chips,
    )
    return HostNeed(
        weights_dir=Path(model.name),
        chips=chips,
        mapped_bytes=model.weight_bytes,
        weights_bytes=0,
        process_bytes=_process_bytes(model.vocab),
        exchange_bytes=sizes.used_bytes(),
    )


def _process_bytes(vocab: int) -> int:
    return PROCESS_BYTES + _FP32_BYTES * STEP_ROWS * vocab


def _draft_bytes(draft_dir: Path, ranks: int) -> int:
    """Weights of a drafting model, whole on each leading chip, or in pages that they share."""
    need = host_need(draft_dir, chips=ranks, tp=1, slots=read_architecture(draft_dir).experts)
    return need.mapped_bytes + ranks * need.weights_bytes

"""A chip's share of the model, and its loading from a checkpoint."""

from dataclasses import dataclass, replace
from pathlib import Path

from emulator.chip.chip import Chip
from emulator.chip.commands import LoadExperts, LoadWeights
from emulator.chip.draft_model import DraftModel
from emulator.chip.effects import CommandDone, NotLoaded
from emulator.compute.architecture import Architecture
from emulator.compute.checkpoint import load_experts, load_shard, read_architecture
from emulator.compute.paged_kv import PagedKv
from emulator.compute.stored_weights import maps_weights, store_experts, store_shard
from emulator.compute.weights import ModelShard
from emulator.errors import CheckpointError
from emulator.formats.model_formats import FP32_MODEL, ModelFormats


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipShare:
    """A chip's part of the model in `weights_dir`; `tp` and `tp_index` are those of `Chip`.

    `experts`: the expert of each slot, or EMPTY, for each layer with experts. Matrices, keys and
    values are rounded to `formats`. `draft_tokens` are guessed after each text that got a token: by
    the model in `draft_dir` on leading chips, or without one by the layer that drafts.
    """

    weights_dir: str
    experts: list[list[int]]
    kv_blocks: int
    block_tokens: int
    tp: int = 1
    tp_index: int = 0
    formats: ModelFormats = FP32_MODEL
    draft_tokens: int = 0
    draft_dir: str = ""

    @property
    def drafts_by_layer(self) -> bool:
        """Whether the checkpoint's own layer drafts."""
        return self.draft_tokens > 0 and not self.draft_dir


def load_chip(share: ChipShare) -> Chip:
    """Load the share; raises CheckpointError when it cannot be read or computed."""
    directory = Path(share.weights_dir)
    arch = read_architecture(directory)
    shard = _load_shard(share, arch)
    kv = PagedKv.of(
        arch,
        groups=shard.groups,
        blocks=share.kv_blocks,
        block_tokens=share.block_tokens,
        drafts=share.drafts_by_layer,
        formats=share.formats,
    )
    draft_model = None
    if share.draft_dir and share.tp_index == 0:
        draft_model = DraftModel.load(
            Path(share.draft_dir),
            count=share.draft_tokens,
            kv_blocks=share.kv_blocks,
            block_tokens=share.block_tokens,
        )
    return Chip(
        shard,
        kv,
        tp=share.tp,
        tp_index=share.tp_index,
        draft_tokens=share.draft_tokens,
        draft_model=draft_model,
    )


def _load_shard(share: ChipShare, arch: Architecture) -> ModelShard:
    directory = Path(share.weights_dir)
    shard = load_shard(
        directory,
        arch,
        share.experts,
        tp=share.tp,
        tp_index=share.tp_index,
        mapped=maps_weights(directory, share.formats),
        drafts=share.drafts_by_layer,
    )
    return store_shard(shard, share.formats)


def renew_chip(
    chip: Chip, share: ChipShare, command: LoadWeights
) -> tuple[ChipShare, CommandDone | NotLoaded]:
    """Load the weights of `command` into `chip`; returns its new share and its answer.

    Host memory briefly holds both sets, so that an unreadable set costs nothing.
    """
    wanted = replace(share, weights_dir=command.weights_dir, experts=command.experts)
    directory = Path(command.weights_dir)
    try:
        arch = read_architecture(directory)
        if arch != chip.architecture:
            return share, NotLoaded(reason=f"{directory}: another architecture")
        shard = _load_shard(wanted, arch)
    except CheckpointError as error:
        return share, NotLoaded(reason=str(error))
    chip.renew(shard)
    return wanted, CommandDone()


def load_slots(chip: Chip, share: ChipShare, command: LoadExperts) -> CommandDone:
    """Load the experts of `command`; raises CheckpointError for a missing or misshapen tensor."""
    directory, mapped = Path(share.weights_dir), chip.maps_experts(command.layer)
    for place in chip.expert_places(command.layer):
        read = load_experts(directory, chip.architecture, place, command.experts, mapped=mapped)
        store_experts(read, share.formats, chip.architecture)
        chip.take_experts(place, command.slots, read)
    return CommandDone()

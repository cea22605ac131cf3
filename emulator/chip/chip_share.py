"""A chip's share of the model, and its loading from a checkpoint."""

from dataclasses import dataclass, replace
from pathlib import Path

from emulator.chip.chip import Chip
from emulator.chip.commands import LoadExperts, LoadWeights
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
    values are rounded to `formats`.
    """

    weights_dir: str
    experts: list[list[int]]
    kv_blocks: int
    block_tokens: int
    tp: int = 1
    tp_index: int = 0
    formats: ModelFormats = FP32_MODEL


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
        formats=share.formats,
    )
    return Chip(shard, kv, tp=share.tp, tp_index=share.tp_index)


def _load_shard(share: ChipShare, arch: Architecture) -> ModelShard:
    directory = Path(share.weights_dir)
    shard = load_shard(
        directory,
        arch,
        share.experts,
        tp=share.tp,
        tp_index=share.tp_index,
        mapped=maps_weights(directory, share.formats),
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
    read = load_experts(directory, chip.architecture, command.layer, command.experts, mapped=mapped)
    store_experts(read, share.formats, chip.architecture)
    return chip.take_experts(command.layer, command.slots, read)

"""A chip's share of the model, and its loading from a checkpoint."""

from dataclasses import dataclass, replace
from pathlib import Path

from emulator.chip.chip import Chip
from emulator.chip.commands import LoadExperts, LoadWeights, TakeExperts
from emulator.chip.effects import CommandDone, NotLoaded
from emulator.compute.checkpoint import load_experts, load_shard, read_architecture
from emulator.compute.paged_kv import PagedKv
from emulator.errors import CheckpointError


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipShare:
    """A chip's part of the model in `weights_dir`; `tp` and `tp_index` are those of `Chip`.

    `experts`: the expert of each slot, or EMPTY, for each layer with experts.
    """

    weights_dir: str
    experts: list[list[int]]
    kv_blocks: int
    block_tokens: int
    tp: int = 1
    tp_index: int = 0


def load_chip(share: ChipShare) -> Chip:
    """Load the share; raises CheckpointError when it cannot be read or computed."""
    directory = Path(share.weights_dir)
    arch = read_architecture(directory)
    shard = load_shard(directory, arch, share.experts, tp=share.tp, tp_index=share.tp_index)
    attends = shard.groups > 0
    latent = arch.latent
    kv = PagedKv(
        layers=arch.layers,
        kv_heads=shard.groups if attends and latent is None else 1,
        key_dim=latent.cached_width if latent else arch.head_dim,
        value_dim=latent.kv_rank if latent else arch.head_dim,
        blocks=share.kv_blocks if attends else 1,
        block_tokens=share.block_tokens,
    )
    return Chip(shard, kv, tp=share.tp, tp_index=share.tp_index)


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
        shard = load_shard(directory, arch, wanted.experts, tp=share.tp, tp_index=share.tp_index)
    except CheckpointError as error:
        return share, NotLoaded(reason=str(error))
    chip.renew(shard)
    return wanted, CommandDone()


def read_experts(share: ChipShare, command: LoadExperts) -> TakeExperts:
    """Read the experts of `command`; raises CheckpointError for a missing or misshapen tensor."""
    directory = Path(share.weights_dir)
    arch = read_architecture(directory)
    experts = load_experts(directory, arch, command.layer, command.experts)
    return TakeExperts(
        layer=command.layer,
        slots=command.slots,
        gate_up=experts.gate_up,
        down=experts.down,
        biases=experts.biases,
    )

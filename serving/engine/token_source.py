"""The source of a deployment's tokens: its chips, or a generator."""

from emulator.fleet import Fleet
from emulator.ultraserver.machine import Machine
from emulator.ultraserver.synthetic_tokens import SyntheticTokens
from serving.engine.deployment import Deployment


def start_tokens(
    deployment: Deployment, machine: Machine, *, kv_blocks: int, block_tokens: int
) -> Fleet | SyntheticTokens:
    """Start the chips, or for `--weights none` a generator of synthetic tokens."""
    if not deployment.settings.computes:
        return SyntheticTokens(deployment.weights_dir, deployment.partition.ranks)
    placement = deployment.placement_of(deployment.weights)
    # A chip keeps room for what may come to it: as much as its HBM has, or, for a stand-in, all.
    slots_max = (
        int(machine.capacity().max()) if deployment.same_model else deployment.weights.experts
    )
    fleet = Fleet(
        weights_dir=deployment.weights_dir,
        placement=placement,
        tp=deployment.partition.tp,
        kv_blocks=kv_blocks,
        block_tokens=block_tokens,
        slots_max=slots_max,
        ray_address=deployment.settings.ray_address,
        ray_node=deployment.settings.ray_node,
        silence_timeout_s=deployment.settings.silence_timeout_s,
        formats=deployment.formats,
        draft_tokens=deployment.chip_drafts,
        draft_dir=deployment.draft_dir,
    )
    fleet.start()
    return fleet

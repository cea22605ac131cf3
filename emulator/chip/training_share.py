"""A training chip's share of the model, and its loading from a checkpoint."""

from dataclasses import dataclass
from pathlib import Path

from emulator.chip.training_chip import TrainingChip
from emulator.chip.training_weights import TrainingWeights
from emulator.compute.adamw import AdamWSettings
from emulator.compute.checkpoint import read_architecture
from emulator.compute.mixed_precision import Precision
from emulator.compute.parameters import read_dense, read_experts


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingShare:
    """A training chip's part of the model: all dense weights, and each layer's `experts`.

    `state_file` holds weights and moments after `steps` steps, which replace those of the
    checkpoint in `weights_dir`; empty for none.
    """

    weights_dir: str
    experts: list[list[int]]
    precision: Precision
    optimizer: AdamWSettings
    state_file: str = ""
    steps: int = 0


def load_training_chip(share: TrainingShare) -> TrainingChip:
    """Load the share from its checkpoint or a saved job; raises CheckpointError."""
    directory = Path(share.weights_dir)
    arch = read_architecture(directory)
    weights = TrainingWeights(
        read_dense(directory, arch), read_experts(directory, arch, share.experts), share.optimizer
    )
    if share.state_file:
        weights.restore(Path(share.state_file), share.experts, share.steps)
    return TrainingChip(weights, share.precision)

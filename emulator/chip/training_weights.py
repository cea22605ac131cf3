"""Trained weights of a chip, in FP32: all dense ones, its own experts, and their moments.

Dense weights stay equal on all chips, which get the same gradients.
"""

from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from emulator.chip.training_effects import TrainingStateRead
from emulator.compute.adamw import AdamW, AdamWSettings
from emulator.compute.parameters import Parameters
from emulator.errors import CheckpointError

MASTER, FIRST, SECOND = "master", "first", "second"
"""Prefixes of a parameter's name in a training state file: its three values."""


class TrainingWeights:
    """`dense` and `experts`, each with its optimizer."""

    def __init__(self, dense: Parameters, experts: Parameters, settings: AdamWSettings) -> None:
        self.dense = dense
        self.experts = experts
        self._dense_optimizer = AdamW(dense.layout, settings)
        self._expert_optimizer = AdamW(experts.layout, settings)

    def apply(
        self, dense: Parameters, experts: Parameters, learning_rate: float, clip_factor: float
    ) -> None:
        """Take the optimizer's step with the gradients `dense` and `experts`."""
        self._dense_optimizer.step(self.dense, dense, learning_rate, clip_factor)
        self._expert_optimizer.step(self.experts, experts, learning_rate, clip_factor)

    def read(self, *, dense: bool) -> TrainingStateRead:
        """Weights and moments, flat; dense ones only on request."""
        none = np.zeros(0, np.float32)
        return TrainingStateRead(
            dense=self.dense.flat if dense else none,
            dense_first=self._dense_optimizer.first if dense else none,
            dense_second=self._dense_optimizer.second if dense else none,
            experts=self.experts.flat,
            experts_first=self._expert_optimizer.first,
            experts_second=self._expert_optimizer.second,
        )

    def restore(self, path: Path, experts_by_layer: list[list[int]], steps: int) -> None:
        """Restore the state saved in `path` after `steps` steps; see `emulator.training_fleet`.

        Raises CheckpointError for an unreadable file, or a missing or misshapen value.
        """
        slices = {
            name: experts_by_layer[int(name.split(".")[1])] for name in self.experts.layout.slots
        }
        try:
            with safe_open(path, framework="np") as file:
                for parameters, optimizer in (
                    (self.dense, self._dense_optimizer),
                    (self.experts, self._expert_optimizer),
                ):
                    for kind, flat in (
                        (MASTER, parameters.flat),
                        (FIRST, optimizer.first),
                        (SECOND, optimizer.second),
                    ):
                        views = Parameters(parameters.layout, flat)
                        for name in views:
                            found = file.get_tensor(f"{kind}.{name}")
                            views[name][:] = found[slices[name]] if name in slices else found
                    optimizer.steps = steps
                    parameters.changed()
        except (SafetensorError, OSError, ValueError, IndexError) as error:
            raise CheckpointError(f"{path}: cannot be read as training state ({error})") from error

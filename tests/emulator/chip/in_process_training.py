"""Training chips without processes: the fleet's own protocol, moved by calls."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from emulator.chip.training_chip import TrainingChip
from emulator.chip.training_share import load_training_chip
from emulator.compute.adamw import AdamWSettings
from emulator.compute.mixed_precision import Precision
from emulator.errors import ChipLost
from emulator.training_fleet import TrainingFleet


class InProcessTraining(TrainingFleet):
    """A fleet whose chips live in this process; `kill` loses one at its next command."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.live: dict[int, TrainingChip] = {}
        self.rounds = 0

    def start(self) -> None:
        self.live = {chip: load_training_chip(self._share(chip)) for chip in range(self.chips)}

    def _ask(self, commands: Mapping[int, Any]) -> dict[int, Any]:
        self.rounds += 1
        lost = tuple(chip for chip in commands if chip not in self.live)
        if lost:
            raise ChipLost(lost)
        # Answered in another order than asked: no outcome may depend on it.
        return {chip: self.live[chip].handle(commands[chip]) for chip in reversed(list(commands))}

    def kill(self, chip: int) -> None:
        del self.live[chip]

    def stop(self) -> None:
        self.live = {}


def started(
    directory: Path,
    *,
    chips: int,
    precision: Precision = Precision.FP32,
    weight_decay: float = 0.0,
    **more: Any,
) -> InProcessTraining:
    fleet = InProcessTraining(
        weights_dir=directory,
        chips=chips,
        precision=precision,
        optimizer=AdamWSettings(weight_decay=weight_decay),
        **more,
    )
    fleet.start()
    return fleet

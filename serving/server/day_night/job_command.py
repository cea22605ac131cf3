"""The command line of a server's training job on leased chips."""

import sys
from collections.abc import Callable, Sequence
from typing import Final

from serving.server.day_night.day_night_settings import DayNightSettings, TrainingSettings

SEQUENCE_TOKENS: Final = 256
BATCH_SEQUENCES: Final = 16
STEPS: Final = 1_000_000
"""More than any night takes."""

SAVE_EVERY_STEPS: Final = 50
"""The most that a killed job loses."""

LEARNING_RATE: Final = 5e-4
"""*Assumed*: a quarter of fresh weights' rate, since training continues every night."""


def job_command(
    training: TrainingSettings, chips: Sequence[int], *, chips_max: int, dilation: float
) -> list[str]:
    """The job on `chips` of the partition, at the engine's pace.

    A batch has a sequence for each of the most lendable chips, so that it stays the same on fewer.
    """
    sequences = max(BATCH_SEQUENCES, chips_max)
    rate = LEARNING_RATE if training.learning_rate is None else training.learning_rate
    command = [sys.executable, "-P", "-m", "serving.main", "train"]
    command += ["--weights", str(training.weights_dir), "--output", str(training.directory)]
    command += ["--system", training.system, "--chips", str(len(chips))]
    command += ["--first-chip", str(training.first_chip + min(chips))]
    command += ["--batch-tokens", str(sequences * SEQUENCE_TOKENS)]
    command += ["--sequence-tokens", str(SEQUENCE_TOKENS), "--steps", str(STEPS)]
    command += ["--learning-rate", f"{rate:g}", "--schedule", "constant"]
    command += ["--save-every", str(SAVE_EVERY_STEPS)]
    if dilation:
        command += ["--dilation", f"{dilation!r}"]
    if training.model is not None:
        command += ["--model", training.model]
    if training.corpus_dir is not None:
        command += ["--corpus", str(training.corpus_dir)]
    if training.ray_address is not None:
        command += ["--ray-address", training.ray_address]
    return command


def job_commands(settings: DayNightSettings) -> Callable[[Sequence[int], float], list[str]]:
    """A server's job commands, by chips of the partition and the engine's dilation."""
    chips_max = settings.lend_groups * settings.group_chips

    def command(chips: Sequence[int], dilation: float) -> list[str]:
        return job_command(settings.training, chips, chips_max=chips_max, dilation=dilation)

    return command

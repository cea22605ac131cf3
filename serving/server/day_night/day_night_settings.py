"""Day and night settings, read from flags once and passed to the server's process as JSON.

vLLM starts that process without arguments of ours, so they travel in the environment.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from emulator.errors import ConfigError
from emulator.specs.shipped_fits import FITTED
from serving.policy.day_night.handover_settings import HandoverSettings, check_above_0
from serving.policy.day_night.night_work import NightOrder
from serving.process.json_settings import read_settings, settings_text
from serving.server.training.job_spec import TrainingPace

ENVIRONMENT: Final = "ULTRASERVE_DAY_NIGHT"
IF_BETTER: Final = "if-better"
PUBLISH: Final = ("never", IF_BETTER)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """The training job's model, data and chips.

    Attributes:
        directory: the job's; it outlives the server.
        weights_dir: initial weights of the server and of the first night.
        corpus_dir, learning_rate: None for the job's default.
        system, model: set the job's time, HBM and energy; None times the weights themselves.
        assumptions: of the system, its changed figures among them.
        first_chip: the partition's first chip in the system.
        ray_address: a running Ray cluster; None for the job's own.
        pace: how the job passes emulated time.
        calibration, lnc: the server's.
    """

    directory: Path
    weights_dir: Path
    corpus_dir: Path | None
    learning_rate: float | None
    system: str
    model: str | None
    first_chip: int
    ray_address: str | None
    assumptions: tuple[str, ...] = ()
    pace: TrainingPace = TrainingPace.REAL
    calibration: str = FITTED
    lnc: int | None = None

    def __post_init__(self) -> None:
        if self.learning_rate is not None:
            check_above_0("learning_rate", self.learning_rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class DayNightSettings(HandoverSettings):
    """How chips of a server change hands, and what they do meanwhile.

    `publish`: whether a night's weights are served: `never`, or `if-better`. `night_order`: who has
    free groups first, where the server has batches.
    """

    publish: str
    training: TrainingSettings
    night_order: NightOrder = NightOrder.BATCH_FIRST

    def __post_init__(self) -> None:
        HandoverSettings.__post_init__(self)
        if self.publish not in PUBLISH:
            raise ConfigError("publish", self.publish, " or ".join(PUBLISH))

    def to_environment(self) -> dict[str, str]:
        """The variable that `from_environment` reads."""
        return {ENVIRONMENT: settings_text(self)}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self | None:
        """The process's settings, or None. Raises ConfigError, or msgspec.ValidationError for JSON
        that `to_environment` never writes.
        """
        text = environment.get(ENVIRONMENT)
        if text is None:
            return None
        return read_settings(text, cls)

"""A training job's settings, from flags; kept in its directory, the same when it resumes."""

import math
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from emulator.data import BUNDLED_WEIGHTS
from emulator.errors import ConfigError
from emulator.specs.shipped_fits import CALIBRATIONS, FITTED
from loadgen.workloads.drawn_defaults import SEED
from startup.typed_options import REQUIRED, option


class TrainingPace(StrEnum):
    """How emulated time passes; see `job_pace`."""

    REAL = "real"
    FAST_FORWARD = "fast-forward"


class Decay(StrEnum):
    """The schedule after the warm-up."""

    CONSTANT = "constant"
    COSINE = "cosine"
    STABLE = "wsd"  # warm-up, stable, decay: constant, and linear to the end over its last part


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRate:
    """Linear warm-up over `warmup_steps` to `peak`, then `decay` until step `steps`.

    `final_share` of the peak remains at the end; a STABLE schedule falls linearly in its last
    `decay_share` of all steps. Raises ConfigError for a share outside 0 to 1, a peak not above 0,
    too long a warm-up.
    """

    peak: float
    steps: int
    warmup_steps: int = 0
    decay: Decay = Decay.COSINE
    final_share: float = 0.1
    decay_share: float = 0.2

    def __post_init__(self) -> None:
        if not (math.isfinite(self.peak) and self.peak > 0):
            raise ConfigError("learning_rate", self.peak, "a number above 0")
        if not 0 <= self.warmup_steps <= self.steps:
            raise ConfigError("warmup", self.warmup_steps, f"0 to the job's {self.steps} steps")
        for field in ("final_share", "decay_share"):
            if not 0 <= getattr(self, field) <= 1:
                raise ConfigError(field, getattr(self, field), "a share from 0 to 1")

    def at(self, step: int) -> float:
        """The rate of step `step`, from 0; after the last step, the last rate."""
        if step < self.warmup_steps:
            return self.peak * ((step + 1) / self.warmup_steps)
        floor = self.peak * self.final_share
        if self.decay is Decay.CONSTANT:
            return self.peak
        if self.decay is Decay.COSINE:
            done = _share(step, self.warmup_steps, self.steps)
            falling = floor + (self.peak - floor) * (1 + math.cos(math.pi * done)) / 2
            return min(falling, self.peak)  # a rounding may lift the first one above it
        first = max(self.warmup_steps, round(self.steps * (1 - self.decay_share)))
        return self.peak - (self.peak - floor) * _share(step, first, self.steps)


def _share(step: int, first: int, end: int) -> float:
    """Progress from step `first` to the last before `end`: 0 to 1."""
    last = end - 1
    if last <= first:
        return 0.0 if step <= first else 1.0
    return min(max((step - first) / (last - first), 0.0), 1.0)


_WHOLE_NUMBERS: Final = {
    "chips": 1,
    "steps": 1,
    "batch_tokens": 1,
    "sequence_tokens": 2,
    "micro_batch_tokens": 1,
    "warmup_steps": 0,
    "seed": 0,
    "first_save_steps": 1,
    "save_every_steps": 1,
    "eval_every_steps": 0,
    "eval_sequences": 1,
    "keep_checkpoints": 1,
    "first_chip": 0,
    "restarts_max": 0,
}
"""The minimum of each."""

_PRECISIONS: Final = ("bf16", "fp32")

FIRST_SAVE_STEPS: Final = 5
"""*Assumed*: a checkpoint takes a host as long as a few steps."""

MAY_CHANGE: Final = frozenset(
    {
        "chips",
        "first_chip",
        "steps",
        "micro_batch_tokens",
        "first_save_steps",
        "save_every_steps",
        "eval_every_steps",
        "eval_sequences",
        "keep_checkpoints",
        "dilation",
        "pace",
        "model",
        "system",
        "assumptions",
        "calibration",
        "lnc",
        "ray_address",
        "learning_rate",
        "warmup_steps",
        "schedule",
        "final_share",
        "decay_share",
        "restarts_max",
    }
)
"""Settings that a restart may change; others make it another job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A training job."""

    GROUP = "job"

    weights: str = option(
        REQUIRED,
        "Hugging Face checkpoint to begin from, or bundled weights: "
        f"{', '.join(BUNDLED_WEIGHTS)} (default: the first)",
        metavar="DIR",
    )
    fresh_seed: int | None = option(
        None,
        "draw fresh weights of that architecture instead of reading its own",
        "--init",
        metavar="SEED",
    )
    corpus: str = option(
        "",
        "folder of *.py, *.md, *.rst and *.txt files; a hash of the name holds 1 in 20 out "
        "(default: the *.py files of the running Python's standard library, tests included)",
        metavar="DIR",
    )
    chips: int = option(2, "chips that it trains on")
    first_chip: int = option(0, "the first one's number in the system")
    steps: int = option(1000, "optimizer steps until it is done")
    batch_tokens: int = option(4096, "tokens of a step, on all chips together")
    sequence_tokens: int = option(256, "tokens of a sequence")
    micro_batch_tokens: int = option(4096, "tokens that a chip takes at once")
    learning_rate: float = option(2e-3, "the highest", metavar="N")
    warmup_steps: int = option(50, "steps until the highest rate", "--warmup")
    schedule: str = option(
        Decay.COSINE.value, "of the learning rate", choices=[each.value for each in Decay]
    )
    final_share: float = option(0.1, "of the highest rate at the end", metavar="N")
    decay_share: float = option(0.2, "of all steps in which wsd decays", metavar="N")
    weight_decay: float = option(0.1, "of AdamW", metavar="N")
    clip_norm: float = option(1.0, "largest norm of all gradients", metavar="N")
    balance_coefficient: float = option(
        0.01, "of the load-balancing loss, summed over layers", metavar="N"
    )
    precision: str = option(
        "bf16",
        "of products; sums, weights and moments are FP32",
        choices=_PRECISIONS,
    )
    seed: int = option(SEED, "of the order of the data")
    one_batch: bool = option(False, "learn the first batch again and again", "--overfit")
    first_save_steps: int = option(
        FIRST_SAVE_STEPS, "steps until the first checkpoint, if they are fewer", "--first-save"
    )
    save_every_steps: int = option(
        200, "steps between checkpoints: the most that a killed job loses", "--save-every"
    )
    eval_every_steps: int = option(
        50,
        "steps between held-out losses; 0 takes them with checkpoints alone",
        "--eval-every",
    )
    eval_sequences: int = option(64, "held-out windows that are taken, spread over the text")
    keep_checkpoints: int = option(2, "checkpoints kept", "--keep")
    model: str | None = option(
        None,
        "catalog model that sets time, HBM and energy (default: the weights' own)",
        metavar="NAME",
    )
    system: str = option("trn3-nl72x2", "machine of the catalog", metavar="NAME")
    assumptions: tuple[str, ...] = option(
        (),
        "another assumption or another figure of the machine (repeatable)",
        *("--assumption", "--set"),
        metavar="NAME=VALUE",
    )
    dilation: float | None = option(
        None, "wall seconds per emulated second (default: does not wait)", metavar="K"
    )
    pace: str = option(
        TrainingPace.REAL.value,
        "real: every step is computed, late where the host is slow; fast-forward: the emulated "
        "chips train by the clock as the cost model says, and what the host computes meanwhile is "
        "a sample of it",
        choices=[each.value for each in TrainingPace],
    )
    calibration: str = option(FITTED, "of the cost model", choices=CALIBRATIONS, metavar="NAME")
    lnc: int | None = option(None, "physical cores of a logical core (default: the chip's)")
    ray_address: str | None = option(None, "a Ray cluster to join", metavar="HOST:PORT")
    restarts_max: int = option(
        3, "restarts of lost chips in a row without a new checkpoint in between"
    )

    def __post_init__(self) -> None:
        for name, least in _WHOLE_NUMBERS.items():
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ConfigError(name, value, f"a whole number of at least {least}")
        for name in ("weight_decay", "balance_coefficient"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(name, value, "a number of at least 0")
        if not (math.isfinite(self.clip_norm) and self.clip_norm > 0):
            raise ConfigError("clip_norm", self.clip_norm, "a number above 0")
        if self.fresh_seed is not None and self.fresh_seed < 0:
            raise ConfigError("fresh_seed", self.fresh_seed, "a whole number of at least 0")
        if self.precision not in _PRECISIONS:
            raise ConfigError("precision", self.precision, " or ".join(_PRECISIONS))
        if self.schedule not in tuple(Decay):
            raise ConfigError("schedule", self.schedule, " or ".join(Decay))
        self._check_time()
        self._check_batch()
        self.rate  # noqa: B018  refuses a wrong schedule

    def _check_time(self) -> None:
        if self.dilation is not None and not 0 < self.dilation < math.inf:
            raise ConfigError("dilation", self.dilation, "a number above 0")
        if self.pace not in tuple(TrainingPace):
            raise ConfigError("pace", self.pace, " or ".join(TrainingPace))
        if self.pace == TrainingPace.FAST_FORWARD and self.dilation is None:
            raise ConfigError("pace", self.pace, "real without a dilation")
        if self.lnc is not None and self.lnc < 1:
            raise ConfigError("lnc", self.lnc, "a whole number of at least 1")

    def _check_batch(self) -> None:
        if self.batch_tokens % self.sequence_tokens:
            raise ConfigError(
                "batch_tokens",
                self.batch_tokens,
                f"whole sequences of {self.sequence_tokens} tokens",
            )
        if self.sequences < self.chips * self.micro_batches:
            raise ConfigError(
                "batch_tokens",
                self.batch_tokens,
                f"at least one sequence of {self.sequence_tokens} tokens for each of "
                f"{self.chips} chips in each of {self.micro_batches} micro-batches",
            )

    @property
    def sequences(self) -> int:
        """Of a step, on all chips."""
        return self.batch_tokens // self.sequence_tokens

    @property
    def system_chips(self) -> range:
        """Its chips, numbered in the system."""
        return range(self.first_chip, self.first_chip + self.chips)

    @property
    def micro_batches(self) -> int:
        """Rounds of a step."""
        at_once = max(1, self.micro_batch_tokens // self.sequence_tokens) * self.chips
        return -(-self.sequences // at_once)

    @property
    def rate(self) -> LearningRate:
        """The learning rate by step."""
        return LearningRate(
            peak=self.learning_rate,
            steps=self.steps,
            warmup_steps=min(self.warmup_steps, self.steps),
            decay=Decay(self.schedule),
            final_share=self.final_share,
            decay_share=self.decay_share,
        )

    def to_json(self) -> bytes:
        """Indented JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2)


def read_spec(path: Path) -> JobSpec:
    """Read a spec written by `to_json`; raises ConfigError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=JobSpec)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError("dir", path, f"a training job ({error})") from error


def check_same_job(before: JobSpec, now: JobSpec) -> None:
    """Raise ConfigError for the first setting changed that may not."""
    for field in fields(JobSpec):
        was, is_now = getattr(before, field.name), getattr(now, field.name)
        if was != is_now and field.name not in MAY_CHANGE:
            raise ConfigError(
                field.name,
                is_now,
                f"{was}, with which this directory's job began; or another --dir",
            )

"""A running job's state: `status.json`, replaced after every step, and `curve.jsonl`.

The curve has a line per step, independent of the wall clock: a job killed and resumed has the same.
"""

import os
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from emulator.errors import HbmExhausted
from serving.server.training.atomic_file import replace_file, sync, write_file

STATUS_FILE: Final = "status.json"
CURVE_FILE: Final = "curve.jsonl"


class TrainingPhase(StrEnum):
    """The job's activity."""

    STARTING = "starting"
    TRAINING = "training"
    EVALUATING = "evaluating"
    SAVING = "saving"
    RECOVERING = "recovering"  # chips were lost, and start again from the newest checkpoint
    STOPPED = "stopped"  # asked to, with a checkpoint
    DONE = "done"  # all steps taken
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """A job between two steps.

    `loss` is the last step's; the held-out losses are of the same windows, in nats a token: before
    the first step, and the newest, after `held_out_step`. `watts` are all chips', now.
    `checkpoint` is the newest one's directory name, or ""; a killed job loses the steps after it,
    at most those until `next_save_step`. `message` is the last error.

    `step` and `tokens` were computed here, at `tokens_per_wall_s`; `trained_steps` and
    `trained_tokens` are what the emulated chips have trained, in `emulated_ns` and beside the
    `lag_ns` in which they waited for this host. `stop_ns`: the longest emulated time from asking
    the job to stop until it has saved.
    """

    phase: TrainingPhase
    pid: int
    chips: int
    step: int
    steps: int
    tokens: int
    trained_steps: int = 0
    trained_tokens: int = 0
    loss: float | None = None
    held_out_nats: float | None = None
    held_out_step: int = 0
    held_out_bits_per_byte: float | None = None
    first_held_out_nats: float | None = None
    emulated_ns: int = 0
    joules: float = 0.0
    watts: float = 0.0
    lag_ns: int = 0
    hbm_bytes_per_chip: int = 0
    tokens_per_wall_s: float = 0.0
    checkpoint: str = ""
    checkpoint_step: int = 0
    next_save_step: int = 0
    stop_ns: int = 0
    checkpoint_held_out_nats: float | None = None
    restarts: int = 0
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """One step: losses in nats a token; `balance` is the load-balancing part, `imbalance` the
    busiest expert's tokens over the mean.
    """

    step: int
    tokens: int
    loss: float
    balance: float
    gradient_norm: float
    learning_rate: float
    imbalance: float
    emulated_ns: int
    joules: float
    held_out_nats: float | None = None


NO_STATUS: Final = JobStatus(
    phase=TrainingPhase.STARTING, pid=0, chips=0, step=0, steps=0, tokens=0
)


def write_status(directory: Path, status: JobStatus) -> None:
    """Replace the status, which a power cut may lose."""
    content = msgspec.json.format(msgspec.json.encode(status), indent=2)
    replace_file(directory / STATUS_FILE, content)


def read_status(directory: Path) -> JobStatus | None:
    """The status in a directory; None if absent or unreadable."""
    try:
        return msgspec.json.decode((directory / STATUS_FILE).read_bytes(), type=JobStatus)
    except (OSError, msgspec.DecodeError):
        return None


def write_failure(directory: Path, error: BaseException) -> None:
    """Set the status to FAILED with its cause; keeps other fields.

    For the process that holds the directory.
    """
    before = read_status(directory) or NO_STATUS
    said = _in_one_line(error)
    write_status(
        directory, replace(before, phase=TrainingPhase.FAILED, pid=os.getpid(), message=said)
    )


def _in_one_line(error: BaseException) -> str:
    first = next(iter(str(error).splitlines()), type(error).__name__)
    hint = error.hint if isinstance(error, HbmExhausted) else ""
    return f"{first}; {hint}" if hint else first


class Curve:
    """The curve in a job's directory."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / CURVE_FILE

    def append(self, point: CurvePoint) -> None:
        """Add a step."""
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(point) + b"\n")

    def sync(self) -> None:
        """Sync to disk, so that no checkpoint outlives earlier steps."""
        if self._path.exists():
            sync(self._path)

    def rewind(self, step: int) -> None:
        """Remove later steps, which will be repeated, and a truncated line."""
        points = [point for point in read_curve(self._path) if point.step <= step]
        write_file(self._path, b"".join(msgspec.json.encode(point) + b"\n" for point in points))


def read_curve(path: Path) -> list[CurvePoint]:
    """The points up to the first broken line; empty without a file."""
    if not path.is_file():
        return []
    points = []
    for line in path.read_bytes().splitlines():
        try:
            points.append(msgspec.json.decode(line, type=CurvePoint))
        except msgspec.DecodeError:
            break
    return points

"""Judges whether a night's checkpoint is worth serving, and keeps a copy of it.

The job removes its older checkpoints, but returning chips read a served version again; so it is
first linked into a directory of its own.
"""

import os
import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from emulator.errors import CheckpointError
from serving.server.training.checkpoint import read_checkpoint
from serving.server.training.job_status import JobStatus
from serving.wire.machine_state import VersionState

PUBLISHED: Final = "published"
KEPT_MAX: Final = 4
"""More than are served or rolled back to at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Weights that may be served: after `step` steps, `held_out_nats` a token."""

    directory: Path
    step: int
    held_out_nats: float


def candidate(directory: Path, status: JobStatus | None) -> Candidate | None:
    """A job's newest checkpoint with a loss, or None."""
    if status is None or not status.checkpoint or status.checkpoint_held_out_nats is None:
        return None
    return Candidate(
        directory=directory / "checkpoints" / status.checkpoint,
        step=status.checkpoint_step,
        held_out_nats=status.checkpoint_held_out_nats,
    )


def served_nats(
    directory: Path, served: Path, *, first: Path, status: JobStatus | None
) -> float | None:
    """The served weights' held-out loss: known of the job's initial weights `first` and of
    published ones.
    """
    if served == first:
        return None if status is None else status.first_held_out_nats
    if served.parent != directory / PUBLISHED:
        return None
    try:
        return read_checkpoint(served).state.held_out_nats
    except CheckpointError:
        return None


def published_in(directory: Path, versions: Sequence[VersionState]) -> tuple[Path, int]:
    """The served weights' directory, and the last step given to the engine."""
    parent = directory / PUBLISHED
    given = (Path(version.weights_dir) for version in versions)
    names = (path.name.removeprefix("step-") for path in given if path.parent == parent)
    steps = [int(name) for name in names if name.isdigit()]  # a user may have put others there
    served = next((Path(version.weights_dir) for version in versions if version.target), Path())
    return served, max(steps, default=-1)


def judge(found: Candidate | None, *, serves_nats: float | None, newest_step: int) -> str:
    """Why not to publish `found`, or empty; `newest_step` was published last."""
    if found is None:
        return "there is no checkpoint with a held-out loss"
    if found.step <= newest_step:
        return f"the checkpoint of step {found.step} has been published"
    if serves_nats is None:
        return "the held-out loss of what is served is not known"
    if found.held_out_nats >= serves_nats:
        return (
            f"step {found.step} has a held-out loss of {found.held_out_nats:.4f} nats, "
            f"what is served {serves_nats:.4f}"
        )
    return ""


def published_steps(directory: Path) -> list[int]:
    """The steps of kept published weights, ascending."""
    found = (path.name.removeprefix("step-") for path in (directory / PUBLISHED).glob("step-*"))
    return sorted(int(number) for number in found if number.isdigit())


def keep(directory: Path, found: Candidate, *, served: Collection[Path]) -> Path:
    """A copy of the checkpoint that the job does not remove; deletes the oldest unserved ones.
    Raises CheckpointError for a corrupt file, OSError when it cannot be copied.
    """
    path = directory / PUBLISHED / f"step-{found.step}"
    if not path.exists():
        read_checkpoint(found.directory)
        partial = path.with_name(f".partial-{path.name}")
        shutil.rmtree(partial, ignore_errors=True)
        partial.parent.mkdir(exist_ok=True)
        # The job writes no file twice, so a link stays what it was.
        shutil.copytree(found.directory, partial, copy_function=os.link)
        partial.rename(path)
    for step in published_steps(directory)[:-KEPT_MAX]:
        old = directory / PUBLISHED / f"step-{step}"
        if old not in served and old != path:
            shutil.rmtree(old)
    return path

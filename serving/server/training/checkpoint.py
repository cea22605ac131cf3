"""A training checkpoint: a directory that can be served, and from which the job can continue.

    checkpoints/step-120/
        model.safetensors      BF16, Hugging Face's names
        config.json ...        copied from the job's initial weights
        training.safetensors   FP32 weights and moments, see emulator.training_fleet.TrainingState
        state.json             the job's other state
        manifest.json          the SHA-256 of each file above

A directory is written atomically and durably; one with a wrong hash is never used.
"""

import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from emulator.data.bfloat16_checkpoint import safetensors_bytes
from emulator.errors import CheckpointError
from serving.server.training.atomic_file import (
    PARTIAL,
    publish_directory,
    remove_directory,
    remove_leftovers,
    write_synced,
)

F32 = NDArray[np.float32]

WEIGHTS: Final = "model.safetensors"
TRAINING: Final = "training.safetensors"
STATE: Final = "state.json"
MANIFEST: Final = "manifest.json"

COPIED: Final = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
"""A served model's other files, where the initial weights have them."""

_READ_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointState:
    """A job's state after `step` steps, besides weights and moments.

    `loss` is the last step's, nats a token; the held-out losses are of the same windows, before the
    first step and now; `emulated_ns`, `joules` and `lag_ns` count from the job's beginning.
    `tokens` were computed, `trained_steps` and `trained_tokens` are what the emulated chips have
    trained: the same at a real pace. The data's order and every draw follow from seed and step.
    """

    step: int
    tokens: int
    loss: float | None
    held_out_nats: float | None
    first_held_out_nats: float | None
    emulated_ns: int
    joules: float
    lag_ns: int
    corpus_sha256: str
    seed: int
    trained_steps: int = 0
    trained_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint with correct hashes."""

    path: Path
    state: CheckpointState

    @property
    def training_file(self) -> Path:
        """The FP32 weights and moments."""
        return self.path / TRAINING


class CheckpointDirectory:
    """A job's checkpoints, at most `keep`; created if absent."""

    def __init__(self, path: Path, *, keep: int) -> None:
        self._path = path
        self._keep = keep
        path.mkdir(parents=True, exist_ok=True)
        remove_leftovers(path)

    def write(
        self,
        state: CheckpointState,
        *,
        weights: Mapping[str, F32],
        values: Mapping[str, F32],
        copied_from: Path,
    ) -> Path:
        """Save a checkpoint and remove the oldest beyond `keep`; returns its directory.

        Replaces one of the same step, which was refused: the job would have continued from it.
        """
        partial = self._path / f"{PARTIAL}step-{state.step}"
        if partial.exists():
            shutil.rmtree(partial)
        partial.mkdir()
        files = {
            WEIGHTS: safetensors_bytes(weights),
            TRAINING: save(dict(values)),
            STATE: msgspec.json.format(msgspec.json.encode(state), indent=2),
        }
        for name in COPIED:
            if (copied_from / name).is_file():
                files[name] = (copied_from / name).read_bytes()
        hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        files[MANIFEST] = msgspec.json.format(msgspec.json.encode({"sha256": hashes}), indent=2)
        for name, content in files.items():
            write_synced(partial / name, content)
        path = self._path / f"step-{state.step}"
        if path.exists():
            remove_directory(path)
        publish_directory(partial, path)
        for old in self.paths()[self._keep :]:
            remove_directory(old)
        return path

    def paths(self) -> list[Path]:
        """All checkpoints, the newest first, unverified."""
        found = [path for path in self._path.glob("step-*") if path.name[5:].isdigit()]
        return sorted(found, key=lambda path: -int(path.name[5:]))

    def newest(self) -> tuple[Checkpoint | None, list[str]]:
        """The newest checkpoint with correct hashes, and a line for each newer one."""
        refused: list[str] = []
        for path in self.paths():
            try:
                return read_checkpoint(path), refused
            except CheckpointError as error:
                refused.append(str(error))
        return None, refused


def read_checkpoint(path: Path) -> Checkpoint:
    """Verify every file by the manifest. Raises CheckpointError, which names the first file missing
    or corrupt.
    """
    try:
        manifest = msgspec.json.decode(
            (path / MANIFEST).read_bytes(), type=dict[str, dict[str, str]]
        )
        hashes = manifest["sha256"]
    except (OSError, msgspec.DecodeError, KeyError) as error:
        raise CheckpointError(f"{path / MANIFEST}: cannot be read ({error})") from error
    missing = {WEIGHTS, TRAINING, STATE} - hashes.keys()
    if missing:
        raise CheckpointError(f"{path / MANIFEST}: has no hash of {sorted(missing)[0]}")
    for name, expected in hashes.items():
        if _sha256(path / name) != expected:
            raise CheckpointError(f"{path / name}: is not what was written; its hash differs")
    try:
        state = msgspec.json.decode((path / STATE).read_bytes(), type=CheckpointState)
    except (OSError, msgspec.DecodeError) as error:
        raise CheckpointError(f"{path / STATE}: cannot be read ({error})") from error
    return Checkpoint(path=path, state=state)


def _sha256(path: Path) -> str:
    whole = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while part := file.read(_READ_BYTES):
                whole.update(part)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    return whole.hexdigest()

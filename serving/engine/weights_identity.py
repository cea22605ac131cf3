"""Identity of a checkpoint's weights, and whether they can replace others."""

import hashlib
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from emulator.compute.checkpoint import check_weights
from emulator.errors import CheckpointError

_CHUNK_BYTES = 1 << 20
_CHUNKS_MAX = 64
"""Files of up to 64 MiB are read whole, larger ones in so many evenly spaced chunks: other weights
differ everywhere, and a hash of 60 GB would take minutes."""

_NAME_DIGITS = 8
_TOKENIZER = "tokenizer.json"
_MANIFEST = "manifest.json"


def weights_hash(directory: Path) -> str:
    """Abridged SHA-256 of the weight files' names, lengths and contents; raises CheckpointError."""
    total = hashlib.sha256()
    try:
        for path in _weight_files(directory):
            length = path.stat().st_size
            total.update(f"{path.name}\0{length}\0".encode())
            with path.open("rb") as file:
                for start in _chunk_starts(length):
                    file.seek(start)
                    total.update(file.read(_CHUNK_BYTES))
    except OSError as error:
        raise CheckpointError(f"{directory}: cannot be read ({error})") from error
    return total.hexdigest()[:_NAME_DIGITS]


def _weight_files(directory: Path) -> list[Path]:
    """The model's files, without an optimizer's beside them."""
    index = directory / "model.safetensors.index.json"
    if not index.exists():
        return sorted(directory.glob("model.safetensors"))
    names = _json_of(index).get("weight_map", {}).values()
    return [directory / name for name in sorted(set(names))]


def _chunk_starts(length: int) -> list[int]:
    chunks = -(-length // _CHUNK_BYTES)
    if chunks <= _CHUNKS_MAX:
        return [chunk * _CHUNK_BYTES for chunk in range(chunks)]
    return [(length - _CHUNK_BYTES) * at // (_CHUNKS_MAX - 1) for at in range(_CHUNKS_MAX)]


def check_successor(directory: Path, served: Path) -> None:
    """Check that the weights in `directory` can be served in place of those in `served`.

    They have the same architecture, all tensors, no other tokenizer, and their manifest's hashes.

    Raises:
        CheckpointError: one line that names the obstacle.
    """
    if not directory.is_dir():
        raise CheckpointError(f"{directory}: there is no such directory")
    _check_manifest(directory)
    ours, theirs = check_weights(served), check_weights(directory)
    if ours != theirs:
        differences = _differences(ours, theirs)
        raise CheckpointError(f"{directory}: not the served architecture: {differences}")
    brought = directory / _TOKENIZER
    if brought.exists() and _json_of(brought) != _json_of(served / _TOKENIZER):
        raise CheckpointError(f"{brought}: another tokenizer than the served one")


def _differences(ours: Any, theirs: Any) -> str:
    names = [field.name for field in fields(ours) if field.compare]
    return ", ".join(
        f"{name} {getattr(theirs, name)} instead of {getattr(ours, name)}"
        for name in names
        if getattr(ours, name) != getattr(theirs, name)
    )


def _check_manifest(directory: Path) -> None:
    path = directory / _MANIFEST
    if not path.exists():
        return
    files = _json_of(path)
    files = files.get("sha256") if isinstance(files, dict) else None
    if not isinstance(files, dict):
        raise CheckpointError(f"{path}: no table of files")
    for name, said in files.items():
        inside = directory / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise CheckpointError(f"{path}: {name} lies outside the checkpoint")
        try:
            with inside.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise CheckpointError(f"{inside}: cannot be read ({error})") from error
        if found != said:
            raise CheckpointError(f"{inside}: its hash is not the one that {_MANIFEST} gives")


def _json_of(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error})") from error

"""What a day takes of one machine, kept from run to run: a replica's curve, the training by groups.

Both follow from the question and the program alone: a file is named by a checksum of the question,
of every source and data file of the program, and of what it computes with. A file that is not whole
is none. Must not know where a user's files are (`serving.commands.day` does).
"""

import hashlib
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from time import time
from typing import Any, Final

import msgspec
import numpy as np

import emulator
import loadgen
import serving
from serving.analysis.day.partition_curve import GroupCurve, PartitionCurve
from serving.analysis.day.partition_handover import PartitionHandover
from serving.analysis.day.replica_choice import ReplicaChoice
from serving.analysis.day.replica_curve import ReplicaCurve
from serving.analysis.day.training_yield import TrainingYield

FILES_MAX: Final = 64
"""Kept; of more, those go that were not read for the longest time."""

_SUFFIX: Final = ".day"
_SOURCES: Final = (".py", ".csv", ".json")
_CHECKSUM_BYTES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MachineFigures:
    """The chosen replica's curve, or one engine's by numbers of its `serving` groups with the
    hand-overs of its parts, and one machine's training; `kept_unix_s` is when a run before computed
    them, None for this one.
    """

    choice: ReplicaChoice
    serving: tuple[int, ...]
    curves: tuple[ReplicaCurve, ...]
    trained: TrainingYield
    parts: PartitionHandover | None = None
    kept_unix_s: float | None = None

    @property
    def curve(self) -> GroupCurve:
        """Of a group."""
        if self.parts is None:
            return self.curves[0]
        return PartitionCurve(serving=self.serving, curves=self.curves)


class FigureStore:
    """Figures by question, in a folder that is made when it is needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def figures(
        self,
        question: object,
        compute: Callable[[], MachineFigures],
        unwritable: Callable[[OSError], None],
    ) -> MachineFigures:
        """Those kept for a `question`, which is made of dataclasses, arrays and plain values.

        Computes others and keeps them; where it cannot, `unwritable` gets the reason. Raises
        TypeError for a question of something else.
        """
        name = _checksum(_program(), *_parts(question)).hex()
        path = self._folder / f"{name}{_SUFFIX}"
        found = _read(path)
        if found is not None:
            return found
        made = compute()
        try:
            _write(path, made)
            self._drop_oldest()
        except OSError as error:
            unwritable(error)
        return made

    def _drop_oldest(self) -> None:
        files = [(each.stat().st_mtime_ns, each) for each in self._folder.glob(f"*{_SUFFIX}*")]
        for _, file in sorted(files)[:-FILES_MAX]:
            file.unlink(missing_ok=True)


def _read(path: Path) -> MachineFigures | None:
    """None for a file that is not there, or not whole."""
    try:
        content = path.read_bytes()
        os.utime(path)
    except OSError:
        return None
    checksum, packed = content[:_CHECKSUM_BYTES], content[_CHECKSUM_BYTES:]
    if checksum != _checksum(packed):
        return None
    return msgspec.msgpack.decode(packed, type=MachineFigures, dec_hook=_array)


def _write(path: Path, figures: MachineFigures) -> None:
    """Under another name first, so that no run reads half of it."""
    kept = replace(figures, kept_unix_s=time())
    packed = msgspec.msgpack.encode(kept, enc_hook=lambda array: array.tolist())
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_bytes(_checksum(packed) + packed)
    new.replace(path)


def _array(kind: Any, values: list[float]) -> Any:
    """The fields that are no plain values are arrays of numbers."""
    del kind
    return np.array(values, dtype=np.float64)


@cache
def _program() -> bytes:
    """A checksum of all that figures are computed by: versions, and every file of the program."""
    versions = " ".join((sys.version, np.__version__, platform.machine()))
    folders = [Path(str(package.__file__)).parent for package in (emulator, loadgen, serving)]
    sources = (part for each in folders for part in _sources(each))
    return _checksum(versions.encode(), _numba_version(), *sources)


def _numba_version() -> bytes:
    """Its file: Numba is imported only where something is computed."""
    found = find_spec("numba")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).with_name("_version.py").read_bytes()


def _sources(folder: Path) -> Iterator[bytes]:
    """Name and content of each file, in order."""
    for file in sorted(folder.rglob("*")):
        if file.suffix in _SOURCES:
            yield str(file.relative_to(folder)).encode()
            yield file.read_bytes()


def _parts(value: Any) -> Iterator[bytes]:
    """All that a value is, type by type and field by field."""
    yield type(value).__qualname__.encode()
    if is_dataclass(value):
        for each in fields(value):
            yield each.name.encode()
            yield from _parts(getattr(value, each.name))
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype} {value.shape}".encode()
        yield value.tobytes()
    elif isinstance(value, (tuple, list, Mapping)):
        yield str(len(value)).encode()
        for one in value.items() if isinstance(value, Mapping) else value:
            yield from _parts(one)
    elif value is None or isinstance(value, (str, int, float, np.generic, Enum)):
        yield repr(value).encode()
    else:
        raise TypeError(f"{type(value)}: expected a dataclass, an array or a plain value")


def _checksum(*parts: bytes) -> bytes:
    whole = hashlib.blake2b(digest_size=_CHECKSUM_BYTES)
    for part in parts:
        whole.update(len(part).to_bytes(8, "big") + part)
    return whole.digest()

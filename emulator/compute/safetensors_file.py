"""A safetensors file mapped into memory: tensors are views of its pages, read when touched.

The safetensors package reads no FP8 into numpy, and copies each tensor into the process; mapped
pages are shared by all chips of a host. (Format: 8 bytes little-endian length of a JSON header, the
header, the data; huggingface/safetensors, README.)
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

_LENGTH_BYTES = 8
_HEADER_BYTES_MAX = 100_000_000  # as the package's own reader
_DTYPES: Mapping[str, Any] = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U8": "u1",
    "BOOL": "?",
}


class FileState(NamedTuple):
    """A file as it is now; another one, or other contents, have another state."""

    path: Path
    inode: int
    size: int
    changed_ns: int

    @classmethod
    def of(cls, path: Path) -> "FileState":
        """Raises OSError where there is no file."""
        status = path.stat()
        return cls(path, status.st_ino, status.st_size, status.st_mtime_ns)


class SafetensorsFile:
    """The tensors of the file at `path`; raises ValueError for a broken one, OSError for none."""

    def __init__(self, path: Path) -> None:
        length, self._header = _header(FileState.of(path))
        self._data = np.memmap(path, dtype=np.uint8, mode="r")[_LENGTH_BYTES + length :]

    def names(self) -> tuple[str, ...]:
        """The names of all tensors."""
        return tuple(self._header)

    def tensor(self, name: str) -> NDArray[Any]:
        """A read-only view of the tensor `name`."""
        shape, dtype, (first, end) = self._entry(name)
        if dtype not in _DTYPES:
            raise ValueError(f"dtype {dtype} of {name} is not one of {', '.join(_DTYPES)}")
        kind = np.dtype(_DTYPES[dtype])
        if not 0 <= first <= end <= len(self._data) or end - first != prod(shape) * kind.itemsize:
            raise ValueError(f"bytes {first} to {end} of {len(self._data)} are not those of {name}")
        return np.ndarray(shape, kind, buffer=self._data, offset=first)

    def _entry(self, name: str) -> tuple[tuple[int, ...], str, tuple[int, int]]:
        try:
            entry = self._header[name]
            first, end = entry["data_offsets"]
            return tuple(map(int, entry["shape"])), str(entry["dtype"]), (int(first), int(end))
        except (KeyError, TypeError) as error:
            raise ValueError(f"no complete entry of {name} in its header") from error


@lru_cache(maxsize=256)  # a server asks for it several times as it starts, and for each chip
def _header(state: FileState) -> tuple[int, Mapping[str, Any]]:
    """Bytes of the file's header, and its entries by the tensor's name."""
    with state.path.open("rb") as file:
        start = file.read(_LENGTH_BYTES)
        if len(start) < _LENGTH_BYTES:
            raise ValueError(f"{state.size} bytes are no safetensors file")
        length = int.from_bytes(start, "little")
        if length > min(_HEADER_BYTES_MAX, state.size - _LENGTH_BYTES):
            raise ValueError(f"a header of {length} bytes is not in the file of {state.size}")
        header = json.loads(file.read(length))
    if not isinstance(header, dict):
        raise ValueError("its header holds no JSON object")
    header.pop("__metadata__", None)
    return length, header

"""A safetensors file mapped into memory: tensors are views of its pages, read when touched.

The safetensors package reads no FP8 into numpy, and copies each tensor into the process; mapped
pages are shared by all chips of a host. (Format: 8 bytes little-endian length of a JSON header, the
header, the data; huggingface/safetensors, README.)
"""

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import msgspec
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


class _StoredTensor(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


_HEADER = msgspec.json.Decoder(dict[str, msgspec.Raw])
"""Entries are read when asked for: a chip asks for its own experts' alone."""
_STORED_TENSOR = msgspec.json.Decoder(_StoredTensor)


class SafetensorsFile:
    """The tensors of the file at `path`; raises ValueError for a broken one, OSError for none."""

    def __init__(self, path: Path) -> None:
        data = np.memmap(path, dtype=np.uint8, mode="r")
        if len(data) < _LENGTH_BYTES:
            raise ValueError(f"{len(data)} bytes are no safetensors file")
        length = int(data[:_LENGTH_BYTES].view("<u8")[0])
        if length > min(_HEADER_BYTES_MAX, len(data) - _LENGTH_BYTES):
            raise ValueError(f"a header of {length} bytes is not in the file of {len(data)}")
        try:
            header = _HEADER.decode(data[_LENGTH_BYTES : _LENGTH_BYTES + length].tobytes())
        except msgspec.DecodeError as error:
            raise ValueError(f"its header holds no JSON object ({error})") from error
        header.pop("__metadata__", None)
        self._data = data[_LENGTH_BYTES + length :]
        self._header = header

    def names(self) -> tuple[str, ...]:
        """The names of all tensors."""
        return tuple(self._header)

    def tensor(self, name: str) -> NDArray[Any]:
        """A read-only view of the tensor `name`."""
        entry = self._entry(name)
        if entry.dtype not in _DTYPES:
            raise ValueError(f"dtype {entry.dtype} of {name} is not one of {', '.join(_DTYPES)}")
        kind, (first, end) = np.dtype(_DTYPES[entry.dtype]), entry.data_offsets
        expected_bytes = prod(entry.shape) * kind.itemsize
        if not 0 <= first <= end <= len(self._data) or end - first != expected_bytes:
            raise ValueError(f"bytes {first} to {end} of {len(self._data)} are not those of {name}")
        return np.ndarray(entry.shape, kind, buffer=self._data, offset=first)

    def _entry(self, name: str) -> _StoredTensor:
        try:
            return _STORED_TENSOR.decode(self._header[name])
        except (KeyError, msgspec.DecodeError) as error:
            raise ValueError(f"no complete entry of {name} in its header") from error

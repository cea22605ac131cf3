"""Tensors of a checkpoint by name, from safetensors files, in the formats that models ship in.

A missing or misshapen tensor is one clear line before serving starts.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from emulator.arrays import Float32s
from emulator.compute.mapped_matrix import MappedMatrix, Matrices, Matrix, mapped_matrices
from emulator.compute.safetensors_file import SafetensorsFile
from emulator.compute.scaled_rows import Fp8Rows, Mxfp4Rows, Rows
from emulator.errors import CheckpointError
from emulator.formats.mx_blocks import BLOCK

Shape = tuple[int, ...]

Cut = Any
"""A stored tensor that is cut, reshaped and turned as an array is: an array, or `Fp8Rows`."""

_ONE_FILE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_FP8_SCALES = "_scale_inv"  # after the matrix's name, as in DeepSeek-V3's checkpoints
_UNSCALED = (np.float32, np.float16, ml_dtypes.bfloat16)


MAPPED_BYTES_MIN = 64 << 20
"""Smallest checkpoint whose matrices stay in its pages: those of smaller ones are so small that one
call for many of them is faster, and hosts have room for copies."""


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
        return cls(path, status.st_ino, status.st_size, status.st_ctime_ns)


def weight_files(directory: Path) -> tuple[FileState, ...]:
    """The files with the checkpoint's tensors, after their index; raises CheckpointError."""
    try:
        file_of = _shard_index(directory)
        if file_of is None:
            return (FileState.of(directory / _ONE_FILE),)
        paths = (directory / _INDEX, *sorted(set(file_of.values())))
        return tuple(map(FileState.of, paths))
    except OSError as error:
        raise CheckpointError(f"{directory}: cannot be read ({error})") from error


def stored_bytes(directory: Path) -> int:
    """Bytes of the files that hold the checkpoint's tensors; raises CheckpointError."""
    return sum(file.size for file in weight_files(directory) if file.path.name != _INDEX)


def is_mapped(directory: Path) -> bool:
    """Whether chips map the matrices of this checkpoint; the same for all of them."""
    return stored_bytes(directory) >= MAPPED_BYTES_MIN


def has_bf16_alone(directory: Path) -> bool:
    """Whether all matrices are in BF16, or codes of four bits in bytes; raises CheckpointError."""
    tensors = Tensors(directory)
    return all(
        stored.ndim < 2 or stored.dtype in (ml_dtypes.bfloat16, np.uint8)
        for stored in map(tensors.stored, tensors)
    )


class Tensors:
    """The tensors of `directory`, mapped when first asked for; raises CheckpointError.

    `fp8_block`: rows and columns that share a scale in FP8 matrices. `mapped`: linear layers stay
    in the files' pages; otherwise they are float32 [inputs, outputs], as kernels read them best.
    """

    def __init__(
        self,
        directory: Path,
        fp8_block: tuple[int, int] | None = None,
        *,
        mapped: bool = False,
    ) -> None:
        self._directory = directory
        self._fp8_block = fp8_block
        self._mapped = mapped
        self._files: dict[Path, SafetensorsFile] = {}
        file_of = _shard_index(directory)
        self._file_of = self._names_of_one_file() if file_of is None else file_of

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def __iter__(self) -> Iterator[str]:
        return iter(self._file_of)

    def _names_of_one_file(self) -> dict[str, Path]:
        path = self._directory / _ONE_FILE
        try:
            self._files[path] = SafetensorsFile(path)
        except (ValueError, OSError) as error:
            raise CheckpointError(f"{path}: cannot be read ({error})") from error
        return dict.fromkeys(self._files[path].names(), path)

    def stored(self, name: str) -> NDArray[Any]:
        """The stored tensor `name`, unread, of any shape."""
        path = self._file_of.get(name)
        if path is None:
            raise CheckpointError(f"{self._directory}: tensor {name} is missing")
        try:
            if path not in self._files:
                self._files[path] = SafetensorsFile(path)
            return self._files[path].tensor(name)
        except (ValueError, OSError) as error:
            raise CheckpointError(f"{path}: tensor {name} cannot be read ({error})") from error

    def check(self, name: str, shape: Shape) -> NDArray[Any]:
        """The stored tensor `name`, unread, whose shape must be `shape`; FP8 must have scales."""
        stored = self.stored(name)
        if stored.shape != shape:
            raise CheckpointError(
                f"{self._file_of[name].name}: tensor {name} has shape {list(stored.shape)}, "
                f"config.json asks {list(shape)}"
            )
        if stored.dtype == ml_dtypes.float8_e4m3fn:
            self.check(name + _FP8_SCALES, self._scale_shape(name, shape))
        return stored

    def read(self, name: str, *shape: int) -> Float32s:
        """The tensor as float32, in C order."""
        stored = self.check(name, shape)
        if stored.dtype == ml_dtypes.float8_e4m3fn:
            return self._fp8(name, stored).astype(np.float32, copy=False)
        return np.array(stored, dtype=np.float32)

    def rows(self, name: str, *shape: int) -> Cut:
        """The tensor as stored, in the file's pages, of which parts are views; float32 if it is a
        vector, or has scales and is not mapped.
        """
        stored = self.check(name, shape)
        if len(shape) == 1:
            return self.read(name, *shape)
        if stored.dtype in _UNSCALED:
            return stored
        if self._mapped and stored.dtype == ml_dtypes.float8_e4m3fn:
            return self._fp8(name, stored)
        return self.read(name, *shape)

    def linear(self, *parts: Rows) -> Matrix:
        """A linear layer of rows [outputs, inputs], those of one part below the other's."""
        if self._mapped:
            return MappedMatrix(*parts)
        rows = np.concatenate([part.astype(np.float32, copy=False) for part in parts])
        return np.ascontiguousarray(rows.T)

    def embedding(self, name: str, vocab: int, hidden: int) -> NDArray[Any]:
        """Rows of tokens [vocab, hidden]: float32, or in the files' pages as stored."""
        rows = self.rows(name, vocab, hidden)
        return whole_array(rows) if self._mapped else rows.astype(np.float32, copy=True)

    def linears(self, *parts: Cut) -> Matrices:
        """Linear layers of `rows` [layers, outputs, inputs], joined layer by layer."""
        if self._mapped:
            return mapped_matrices([MappedMatrix(*layer) for layer in zip(*parts, strict=True)])
        rows = np.concatenate(parts, axis=1)
        return np.ascontiguousarray(rows.transpose(0, 2, 1), dtype=np.float32)

    def empty_linears(self, layers: int, inputs: int, outputs: int) -> Matrices:
        """Places for what `linear` returns: zeros, or None where layers are mapped."""
        if self._mapped:
            return np.empty(layers, dtype=object)
        return np.zeros((layers, inputs, outputs), dtype=np.float32)

    def _scale_shape(self, name: str, shape: Shape) -> Shape:
        if self._fp8_block is None or len(shape) != 2:
            raise CheckpointError(
                f"{self._directory}: tensor {name} is FP8, and config.json has no"
                " quantization_config.weight_block_size for it"
            )
        return tuple(-(-side // size) for side, size in zip(shape, self._fp8_block, strict=True))

    def _fp8(self, name: str, codes: NDArray[Any]) -> Fp8Rows:
        scales = self.read(name + _FP8_SCALES, *self._scale_shape(name, codes.shape))
        assert self._fp8_block is not None, name
        return Fp8Rows(codes, scales, self._fp8_block)

    def check_mxfp4(
        self, name: str, matrices: int, outputs: int, inputs: int
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """The stored blocks and scales of what `mxfp4` reads, unread, after a check of shapes."""
        if inputs % BLOCK:
            raise CheckpointError(
                f"{self._directory}: tensor {name}_blocks is MXFP4, in blocks of {BLOCK} inputs, "
                f"and config.json asks {inputs}"
            )
        parts = inputs // BLOCK
        blocks = self.check(f"{name}_blocks", (matrices, outputs, parts, BLOCK // 2))
        return blocks, self.check(f"{name}_scales", (matrices, outputs, parts))

    def refuse_mxfp4(self, name: str) -> None:
        """Raise CheckpointError for MXFP4 under `name`, which config.json does not name."""
        if f"{name}_blocks" in self:
            raise CheckpointError(
                f"{self._directory}: tensor {name}_blocks is MXFP4, and config.json has no"
                ' quantization_config with "quant_method": "mxfp4"'
            )

    def mxfp4(self, name: str, index: int, *shape: int) -> Mxfp4Rows:
        """Matrix `index` of [outputs, inputs] of those stored under `name` in MXFP4.

        `name`_blocks holds the codes and `name`_scales their scales. `shape` is [matrices, outputs,
        inputs].
        """
        blocks, scales = self.check_mxfp4(name, *shape)
        return Mxfp4Rows(blocks[index], scales[index])


def whole_array(rows: Cut) -> NDArray[Any]:
    """The stored rows as an array; float32 where they are codes."""
    array: NDArray[Any] = rows.astype(np.float32, copy=False) if isinstance(rows, Fp8Rows) else rows
    return array


def _shard_index(directory: Path) -> dict[str, Path] | None:
    """The file of each tensor, by the index of shards; None where one file has them all."""
    index = directory / _INDEX
    if not index.exists():
        if not (directory / _ONE_FILE).exists():
            raise CheckpointError(f"{directory}: no model.safetensors and no index of shards")
        return None
    try:
        names = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return {name: directory / file for name, file in names.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index}: cannot be read ({error})") from error

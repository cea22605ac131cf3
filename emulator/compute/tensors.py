"""Tensors of a checkpoint by name, from safetensors files, in the formats that models ship in.

A missing or misshapen tensor is one clear line before serving starts.
"""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from emulator.arrays import Float32s
from emulator.compute.safetensors_file import SafetensorsFile
from emulator.errors import CheckpointError
from emulator.formats.minifloat import E2M1
from emulator.formats.mx_blocks import BLOCK, decode_scales

Shape = tuple[int, ...]

_FP8_SCALES = "_scale_inv"  # after the matrix's name, as in DeepSeek-V3's checkpoints


class Tensors:
    """The tensors of `directory`, mapped when first asked for; raises CheckpointError.

    `fp8_block`: rows and columns that share a scale in FP8 matrices.
    """

    def __init__(self, directory: Path, fp8_block: tuple[int, int] | None = None) -> None:
        self._directory = directory
        self._fp8_block = fp8_block
        self._files: dict[Path, SafetensorsFile] = {}
        self._file_of = _index(directory)

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def check(self, name: str, shape: Shape) -> NDArray[Any]:
        """The stored tensor `name`, unread, whose shape must be `shape`."""
        path = self._file_of.get(name)
        if path is None:
            raise CheckpointError(f"{self._directory}: tensor {name} is missing")
        try:
            if path not in self._files:
                self._files[path] = SafetensorsFile(path)
            stored = self._files[path].tensor(name)
        except (ValueError, OSError) as error:
            raise CheckpointError(f"{path}: tensor {name} cannot be read ({error})") from error
        if stored.shape != shape:
            raise CheckpointError(
                f"{path.name}: tensor {name} has shape {list(stored.shape)}, "
                f"config.json asks {list(shape)}"
            )
        return stored

    def read(self, name: str, *shape: int) -> Float32s:
        """The tensor as float32, in C order."""
        stored = self.check(name, shape)
        if stored.dtype == ml_dtypes.float8_e4m3fn:
            return self._from_fp8(name, stored)
        return np.array(stored, dtype=np.float32)

    def matrix(self, name: str, outputs: int, inputs: int) -> Float32s:
        """A linear layer, stored [outputs, inputs], as [inputs, outputs]."""
        return self.read(name, outputs, inputs).T

    def _from_fp8(self, name: str, codes: NDArray[Any]) -> Float32s:
        if self._fp8_block is None or codes.ndim != 2:
            raise CheckpointError(
                f"{self._directory}: tensor {name} is FP8, and config.json has no"
                " quantization_config.weight_block_size for it"
            )
        rows, columns = self._fp8_block
        scales = self.read(
            name + _FP8_SCALES, -(-codes.shape[0] // rows), -(-codes.shape[1] // columns)
        )
        spread = scales.repeat(rows, axis=0)[: len(codes)]
        spread = spread.repeat(columns, axis=1)[:, : codes.shape[1]]
        values: Float32s = codes.astype(np.float32) * spread
        return values

    def check_mxfp4(
        self, name: str, matrices: int, outputs: int, inputs: int
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """The stored blocks and scales of what `mxfp4` reads, unread, after a check of shapes."""
        parts = inputs // BLOCK
        blocks = self.check(f"{name}_blocks", (matrices, outputs, parts, BLOCK // 2))
        return blocks, self.check(f"{name}_scales", (matrices, outputs, parts))

    def mxfp4(self, name: str, index: int, *shape: int) -> Float32s:
        """Matrix `index` of [outputs, inputs] of those stored under `name` in MXFP4.

        `name`_blocks holds two codes a byte, the first in the low half, for 32 elements of a row;
        `name`_scales their E8M0 scales. `shape` is [matrices, outputs, inputs].
        """
        _, outputs, inputs = shape
        parts = inputs // BLOCK
        blocks, scales = self.check_mxfp4(name, *shape)
        codes = np.asarray(blocks[index])  # [outputs, parts, 16]
        halves = np.stack([codes & 15, codes >> 4], axis=-1).reshape(outputs, parts, BLOCK)
        values = E2M1.decode(halves) * decode_scales(np.asarray(scales[index]))[:, :, None]
        return values.reshape(outputs, inputs)


def _index(directory: Path) -> dict[str, Path]:
    index, single = directory / "model.safetensors.index.json", directory / "model.safetensors"
    indexed = index.exists()
    if not indexed and not single.exists():
        raise CheckpointError(f"{directory}: no model.safetensors and no index of shards")
    try:
        if indexed:
            names = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            return {name: directory / file for name, file in names.items()}
        return dict.fromkeys(SafetensorsFile(single).names(), single)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        path = index if indexed else single
        raise CheckpointError(f"{path}: cannot be read ({error})") from error

"""Rows of matrices stored in codes with scales, converted to float32 a part at a time.

As an array's, a slice of rows is a view, and `astype` converts.
"""

from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from emulator.arrays import Float32s, Int64s
from emulator.formats.minifloat import E2M1
from emulator.formats.mx_blocks import BLOCK, decode_scales


class Rows(Protocol):
    """Rows of a stored matrix [outputs, inputs]: an array, or one of the classes below."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> Self: ...

    def astype(self, dtype: type[np.float32], /, *, copy: bool) -> Float32s:
        """The values, [outputs, inputs]."""
        ...


class Fp8Rows:
    """Codes [outputs, inputs] times the scale of their block of `block` rows and columns."""

    __slots__ = ("_block_of_row", "_codes", "_columns", "_scales")

    def __init__(self, codes: NDArray[Any], scales: Float32s, block: tuple[int, int]) -> None:
        self._codes = codes
        self._scales = scales  # [blocks of rows, blocks of columns]
        self._columns = block[1]
        self._block_of_row: Int64s = np.arange(len(codes)) // block[0]

    def __len__(self) -> int:
        return len(self._codes)

    def __getitem__(self, rows: slice, /) -> Self:
        part = object.__new__(type(self))
        part._codes, part._block_of_row = self._codes[rows], self._block_of_row[rows]
        part._scales, part._columns = self._scales, self._columns
        return part

    def astype(self, dtype: type[np.float32], /, *, copy: bool) -> Float32s:
        """See `Rows`."""
        spread = self._scales[self._block_of_row].repeat(self._columns, axis=1)
        values: Float32s = self._codes.astype(dtype, copy=copy) * spread[:, : self._codes.shape[1]]
        return values


class Mxfp4Rows:
    """Two codes a byte, the first in the low half, for 32 elements of a row, and their E8M0 scale.

    `blocks` are [outputs, inputs / 32, 16] and `scales` [outputs, inputs / 32].
    """

    __slots__ = ("_blocks", "_scales")

    def __init__(self, blocks: NDArray[Any], scales: NDArray[Any]) -> None:
        self._blocks = blocks
        self._scales = scales

    def __len__(self) -> int:
        return len(self._blocks)

    def __getitem__(self, rows: slice, /) -> Self:
        return type(self)(self._blocks[rows], self._scales[rows])

    def astype(self, dtype: type[np.float32], /, *, copy: bool) -> Float32s:
        """See `Rows`."""
        codes = np.asarray(self._blocks)
        halves = np.stack([codes & 15, codes >> 4], axis=-1).reshape(*codes.shape[:2], BLOCK)
        values = E2M1.decode(halves) * decode_scales(np.asarray(self._scales))[:, :, None]
        return values.reshape(len(codes), -1).astype(dtype, copy=copy)

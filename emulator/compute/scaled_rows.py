"""Rows of matrices stored in codes with scales, converted to float32 a part at a time.

As an array's, a slice of rows is a view, and `astype` converts.
"""

from collections.abc import Callable, Iterator
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
    """Codes of a matrix times the scale of their block of `block` rows and columns.

    Cut, reshaped and turned as an array is: what says each code's block is as large as the codes,
    and takes the memory of a row and a column.
    """

    __slots__ = ("_codes", "_column", "_row", "_scales")

    def __init__(self, codes: NDArray[Any], scales: Float32s, block: tuple[int, int]) -> None:
        sides = zip(codes.shape, block, strict=True)
        rows, columns = (np.arange(side) // size for side, size in sides)
        self._codes = codes
        self._row = np.broadcast_to(rows[:, None], codes.shape)  # of blocks, as `_column`
        self._column = np.broadcast_to(columns, codes.shape)
        self._scales = scales  # [blocks of rows, blocks of columns]

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the codes."""
        return self._codes.shape

    @property
    def T(self) -> Self:  # noqa: N802  an array's name
        """Turned."""
        return self._seen(lambda each: each.T)

    def reshape(self, *shape: int) -> Self:
        """In another shape, of axes that are divided or joined again."""
        return self._seen(lambda each: each.reshape(*shape))

    def transpose(self, *axes: int) -> Self:
        """With axes in another order."""
        return self._seen(lambda each: each.transpose(*axes))

    def __len__(self) -> int:
        return len(self._codes)

    def __getitem__(self, part: Any) -> Self:
        return self._seen(lambda each: each[part])

    def __iter__(self) -> Iterator[Self]:
        return (self[place] for place in range(len(self)))

    def _seen(self, view: Callable[[NDArray[Any]], NDArray[Any]]) -> Self:
        """What `view` makes of the codes."""
        seen = object.__new__(type(self))
        seen._codes, seen._scales = view(self._codes), self._scales
        seen._row, seen._column = view(self._row), view(self._column)
        return seen

    def astype(self, dtype: type[np.float32], /, *, copy: bool) -> Float32s:
        """See `Rows`; of two axes, in the codes' order in memory."""
        row, column, scales = self._row, self._column, self._scales
        if not (_is_even(row, 1) and _is_even(column, 0)):
            row, column, scales = column, row, scales.T
        values: Float32s = self._codes.astype(dtype, copy=copy)
        values *= scales.take(row[:, 0], axis=0).take(column[0], axis=1)
        return values


def _is_even(index: Int64s, axis: int) -> bool:
    """Whether an index is the same along an axis."""
    return index.strides[axis] == 0 or index.shape[axis] == 1


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

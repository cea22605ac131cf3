"""All layers of a shard for a kernel that runs one after the other: where their arrays are.

A kernel that is handed the arrays themselves, some hundreds, is busy with them for longer than it
computes.
"""

# mypy: no-disallow-untyped-calls
# Numba's types have none.

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numba import types
from numba.np.numpy_support import carray
from numpy.typing import NDArray

from emulator.arrays import Float32s, Int64s
from emulator.compiled import allocating
from emulator.compute.attention_kernel import HeadWeights, Scoring
from emulator.compute.feed_forward_kernel import ExpertChoice, Experts, Gate, RouterArrays
from emulator.compute.vectors import pointer


class ExpertLayer(NamedTuple):
    """A layer with experts, of which all matrices are float32 in memory."""

    heads: HeadWeights
    scoring: Scoring
    output_bias: Float32s  # [hidden], or [0]
    post_norm: Float32s  # [hidden]
    router: RouterArrays
    choice: ExpertChoice
    experts: Experts
    gate: Gate


class LayerTable(NamedTuple):
    """`table_of` layers, which must stay as long as it does.

    Attributes:
        arrays: [layers, arrays, 4] the address and lengths of each, in the order of `ExpertLayer`.
        numbers: [layers, numbers] likewise.
    """

    arrays: Int64s
    numbers: NDArray[np.float64]


TABLE: Final = types.NamedTuple([types.int64[:, :, ::1], types.float64[:, ::1]], LayerTable)


_DIMENSIONS: Final = (1, 3, 2, 2, 3, 1, 1, 1, 3, 1, 1, 3, 3, 2)
_NUMBERS: Final = 13
"""Of a layer's arrays, and how many numbers, as `layer_of` reads them."""


def table_of(layers: Sequence[ExpertLayer]) -> LayerTable:
    """The table of `layers`, whose arrays may be overwritten in place."""
    arrays, numbers = [], []
    for layer in layers:
        leaves = list(_leaves(layer))
        own = [each for each in leaves if isinstance(each, np.ndarray)]
        assert all(each.dtype == np.float32 and each.flags.c_contiguous for each in own)
        assert tuple(each.ndim for each in own) == _DIMENSIONS, "layer_of has others"
        arrays.append([_place_of(each) for each in own])
        numbers.append([float(each) for each in leaves if not isinstance(each, np.ndarray)])
        assert len(numbers[-1]) == _NUMBERS, "layer_of has others"
    return LayerTable(np.array(arrays, dtype=np.int64), np.array(numbers, dtype=np.float64))


def _leaves(value: Any) -> Iterator[Any]:
    if not isinstance(value, tuple):
        yield value
        return
    for each in value:
        yield from _leaves(each)


def _place_of(array: Float32s) -> tuple[int, ...]:
    return (array.ctypes.data, *array.shape, *(0,) * (3 - array.ndim))


@allocating
def _line(arrays: Int64s, layer: int, at: int) -> Float32s:
    place = arrays[layer, at]
    return carray(pointer(place[0]), (place[1],), np.float32)


@allocating
def _rows(arrays: Int64s, layer: int, at: int) -> Float32s:
    place = arrays[layer, at]
    return carray(pointer(place[0]), (place[1], place[2]), np.float32)


@allocating
def _matrices(arrays: Int64s, layer: int, at: int) -> Float32s:
    place = arrays[layer, at]
    return carray(pointer(place[0]), (place[1], place[2], place[3]), np.float32)


@allocating
def layer_of(table: LayerTable, index: int) -> ExpertLayer:
    """The layer at `index` of a table."""
    at, of = table.arrays, table.numbers[index]
    return ExpertLayer(
        HeadWeights(
            _line(at, index, 0),
            of[0],
            _matrices(at, index, 1),
            _rows(at, index, 2),
            _rows(at, index, 3),
            _matrices(at, index, 4),
        ),
        Scoring(of[1], int(of[2]), _line(at, index, 5)),
        _line(at, index, 6),
        _line(at, index, 7),
        RouterArrays(_matrices(at, index, 8), _line(at, index, 9), _line(at, index, 10)),
        ExpertChoice(
            of[3] != 0.0,
            int(of[4]),
            of[5] != 0.0,
            int(of[6]),
            int(of[7]),
            of[8],
            of[9],
        ),
        experts_of(table, index),
        gate_of(table, index),
    )


@allocating
def experts_of(table: LayerTable, index: int) -> Experts:
    """The experts of the layer at `index` of a table."""
    at = table.arrays
    return Experts(_matrices(at, index, 11), _matrices(at, index, 12), _rows(at, index, 13))


@allocating
def gate_of(table: LayerTable, index: int) -> Gate:
    """The gate of the experts of the layer at `index` of a table."""
    of = table.numbers[index]
    return Gate(of[10], of[11], of[12])

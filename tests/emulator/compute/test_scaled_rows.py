"""Rows of codes are cut and turned as the array of their values is, and stay in their pages."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.compute.mapped_matrix import MappedMatrix
from emulator.compute.scaled_rows import Fp8Rows
from emulator.compute.tiled_matmul import tiled_matmul

View = Callable[[Any], Any]


def fp8(rows: int, columns: int, block: tuple[int, int]) -> tuple[Fp8Rows, np.ndarray, np.ndarray]:
    """Random rows, their codes, and their values the obvious way."""
    rng = np.random.default_rng(rows + columns)
    codes = rng.standard_normal((rows, columns)).astype(ml_dtypes.float8_e4m3fn)
    shape = (-(-rows // block[0]), -(-columns // block[1]))
    scales = (rng.random(shape) + 0.5).astype(np.float32)
    values = codes.astype(np.float32)
    for row in range(rows):
        for column in range(columns):
            values[row, column] *= scales[row // block[0], column // block[1]]
    return Fp8Rows(codes, scales, block), codes, values


@st.composite
def cuts(draw: st.DrawFn, side: int) -> slice:
    first = draw(st.integers(0, side - 1))
    return slice(first, draw(st.integers(first + 1, side)), draw(st.sampled_from([1, 1, 2, 3])))


@given(data=st.data(), block=st.tuples(st.sampled_from([1, 3, 8]), st.sampled_from([1, 5, 16])))
def test_any_cut_has_the_values_of_the_arrays(data: st.DataObject, block: tuple[int, int]) -> None:
    rows, codes, values = fp8(12, 24, block)
    heads = data.draw(st.sampled_from([1, 2, 3, 4]))
    down, across = data.draw(cuts(12 // heads)), data.draw(cuts(24))
    across_heads = data.draw(cuts(24 // heads))
    head, turned = data.draw(st.integers(0, heads - 1)), data.draw(st.booleans())
    views: list[View] = [
        lambda each: each[down, across],
        lambda each: each.reshape(heads, -1, 24)[head][down, across],
        lambda each: each.reshape(heads, -1, 24)[:, down].transpose(0, 2, 1)[head],
        lambda each: each.reshape(12, heads, -1).transpose(1, 0, 2)[head][:, across_heads],
        lambda each: list(each.T.reshape(heads, -1, 12).transpose(0, 2, 1))[head],
        lambda each: each.reshape(heads, -1, 24)[:].reshape(-1, 24)[down],
    ]
    for view in views:
        found, expected = view(rows), view(values)
        if turned:
            found, expected = found.T, expected.T
        assert found.shape == expected.shape
        assert len(found) == len(expected)
        assert (found.astype(np.float32, copy=False) == expected).all()
        assert np.shares_memory(found._codes, codes)


@pytest.mark.parametrize("turned", [False, True])
def test_a_product_has_the_bits_of_the_widened_matrix(turned: bool) -> None:
    rows, _, values = fp8(300, 520, (128, 128))
    x = np.random.default_rng(1).standard_normal((9, 100)).astype(np.float32)

    def cut(each: Any) -> Any:
        if turned:
            return each[20:120].T  # [520, 100]
        return each.reshape(3, 100, 520).transpose(0, 1, 2)[1][:, 200:300]

    found = tiled_matmul(x, MappedMatrix(cut(rows)))

    assert (found == tiled_matmul(x, MappedMatrix(cut(values)))).all()

"""Products with matrices as stored: their values, and the bits of a row in any company."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from emulator.compute.experts import ExpertNetworks
from emulator.compute.mapped_matrix import TILE_ELEMENTS, MappedMatrix, mapped_matrices
from emulator.compute.tiled_matmul import grouped_matmul, tiled_matmul
from emulator.formats import array_products
from emulator.formats.array_products import array_product_slowly
from emulator.formats.product_formats import product_format
from emulator.specs.weight_format import WeightFormat

STORED = (ml_dtypes.bfloat16, np.float16, np.float32)

# Outputs of the parts, and inputs; the last ones have several tiles, the last of which is partial.
SHAPES = [((3,), 7), ((128, 16, 16), 112), ((1,), 1), ((300, 150), 2048), ((5,), TILE_ELEMENTS + 1)]


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def stored_parts(outputs: tuple[int, ...], inputs: int, kind: Any = STORED[0]) -> list[np.ndarray]:
    rng = np.random.default_rng(inputs)
    return [normal(rng, rows, inputs).astype(kind) for rows in outputs]


def test_a_product_by_hand() -> None:
    x = np.array([[1, 2], [3, 4], [5, 6]], dtype=np.float32)
    matrix = MappedMatrix(
        np.array([[1, 0], [0, 1]], dtype=ml_dtypes.bfloat16),
        np.array([[2, 3]], dtype=ml_dtypes.bfloat16),
    )

    assert tiled_matmul(x, matrix).tolist() == [[1, 2, 8], [3, 4, 18], [5, 6, 28]]


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
@pytest.mark.parametrize("kind", STORED)
def test_the_product_is_the_mathematical_one_within_float32(
    outputs: tuple[int, ...], inputs: int, kind: Any
) -> None:
    parts = stored_parts(outputs, inputs, kind)
    x = normal(np.random.default_rng(0), 9, inputs)

    product = tiled_matmul(x, MappedMatrix(*parts))

    weight = np.concatenate(parts).T.astype(np.float64)
    scale = np.abs(x).astype(np.float64) @ np.abs(weight)
    assert product.dtype == np.float32
    assert (np.abs(product - x.astype(np.float64) @ weight) <= 1e-5 * scale).all()


@pytest.mark.long
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_a_row_alone_has_the_bits_that_it_has_in_any_batch_at_any_place(
    outputs: tuple[int, ...], inputs: int
) -> None:
    matrix = MappedMatrix(*stored_parts(outputs, inputs))
    rng = np.random.default_rng(1)
    row = normal(rng, 1, inputs)
    alone = tiled_matmul(row, matrix)[0]

    for rows in range(1, 10):
        for place in range(rows):
            batch = normal(rng, rows, inputs)
            batch[place] = row
            assert (tiled_matmul(batch, matrix)[place] == alone).all(), (rows, place)


def test_a_view_of_columns_is_multiplied_as_its_copy_is() -> None:
    (stored,) = stored_parts((200,), 2048)
    x = normal(np.random.default_rng(2), 5, 512)

    view = tiled_matmul(x, MappedMatrix(stored[:, 512:1024]))

    assert (view == tiled_matmul(x, MappedMatrix(stored[:, 512:1024].copy()))).all()


@pytest.mark.long
@pytest.mark.parametrize("storage", [WeightFormat.BF16, WeightFormat.MXFP4])
@pytest.mark.parametrize(
    ("outputs", "inputs"), [((160, 16), 1536), ((100, 3), 2048), ((80,), 6144)]
)
def test_tiles_of_the_arrays_products_have_its_bits_and_are_all_the_blas_s(
    storage: WeightFormat, outputs: tuple[int, ...], inputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Widths that the BLAS adds in another order, as 85, 21 and 3, took up to 4,000 times as long.

    Which it has is tried once by shape, here before.
    """
    products = product_format(storage)
    copied = products.store(normal(np.random.default_rng(inputs), inputs, sum(outputs)))
    x = normal(np.random.default_rng(5), 4, inputs)
    parts = np.split(copied.T.astype(ml_dtypes.bfloat16), np.cumsum(outputs)[:-1])
    tiled_matmul(x, MappedMatrix(*parts), products)
    depth = 128 if storage is WeightFormat.BF16 else 512
    expected = array_product_slowly(products.round_rows(x), copied, depth=depth)
    slow = []

    def recorded(rows: np.ndarray, weights: np.ndarray, *, depth: int) -> np.ndarray:
        slow.append(weights.shape)
        return array_product_slowly(rows, weights, depth=depth)

    monkeypatch.setattr(array_products, "array_product_slowly", recorded)
    product = tiled_matmul(x, MappedMatrix(*parts), products)

    assert slow == []
    assert (product == expected).all()


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_tiles_of_float32_are_cut_by_inputs_alone(outputs: tuple[int, ...], inputs: int) -> None:
    """Another cut has other bits, and texts would change with it."""
    parts = stored_parts(outputs, inputs)
    x = normal(np.random.default_rng(6), 4, inputs)
    rows = max(1, TILE_ELEMENTS // inputs)
    cut = [part[first : first + rows] for part in parts for first in range(0, len(part), rows)]

    product = tiled_matmul(x, MappedMatrix(*parts))

    assert (product == np.concatenate([x @ each.astype(np.float32).T for each in cut], 1)).all()


@pytest.mark.parametrize("own_rows", [False, True])
def test_each_group_is_multiplied_as_it_is_alone(own_rows: bool) -> None:
    rng = np.random.default_rng(3)
    cuts = ((96, 48), (100, 44), (144,))
    matrices = [MappedMatrix(*stored_parts(outputs, 256)) for outputs in cuts]
    x = normal(rng, 3, 11, 256) if own_rows else normal(rng, 11, 256)

    product = grouped_matmul(x, mapped_matrices(matrices))

    assert product.shape == (3, 11, 144)
    for group, matrix in enumerate(matrices):
        assert (product[group] == tiled_matmul(x[group] if own_rows else x, matrix)).all()


@pytest.mark.parametrize("counts", [[1, 0, 3], [9, 5, 0], [4, 4, 4]])
def test_experts_are_those_of_the_converted_weights(counts: list[int]) -> None:
    rng = np.random.default_rng(4)
    hidden, width = 96, 40
    gate_ups = [stored_parts((width, width), hidden) for _ in counts]
    downs = [normal(rng, hidden, width).astype(ml_dtypes.bfloat16) for _ in counts]
    # A slot without rows may be empty.
    held = [n for n, count in enumerate(counts) if count]
    gate_up, down = (np.empty(len(counts), dtype=object) for _ in range(2))
    for expert in held:
        gate_up[expert] = MappedMatrix(*gate_ups[expert])
        down[expert] = MappedMatrix(downs[expert])
    rows = normal(rng, sum(counts), hidden)

    each = np.arange(len(rows))

    found = ExpertNetworks(gate_up, down).run(rows, each, np.array(counts))

    packed = [np.concatenate(parts).T.astype(np.float32) for parts in gate_ups]
    loaded = ExpertNetworks(
        np.array(packed), np.array([down.T.astype(np.float32) for down in downs])
    )
    expected = loaded.run(rows, each, np.array(counts))
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()

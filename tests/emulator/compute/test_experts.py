import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.compute.experts import run_experts, run_experts_slowly, silu

HIDDEN, INTERMEDIATE = 12, 6


def weights(experts: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    gate_up = rng.standard_normal((experts, HIDDEN, 2 * INTERMEDIATE)).astype(np.float32)
    down = rng.standard_normal((experts, INTERMEDIATE, HIDDEN)).astype(np.float32)
    return gate_up, down


def rows_of(count: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, HIDDEN)).astype(np.float32)


def test_one_row_through_one_expert_by_hand() -> None:
    # Gate 1 * ln 3 -> silu = ln 3 * 3/4; up 2; down 10.
    gate_up = np.array([[[math.log(3), 2.0]]], dtype=np.float32)
    down = np.array([[[10.0]]], dtype=np.float32)
    row = np.ones((1, 1), dtype=np.float32)

    out = run_experts(row, np.array([1]), gate_up, down)

    np.testing.assert_allclose(out, [[math.log(3) * 0.75 * 2 * 10]], rtol=1e-6)


def test_silu_saturates_at_both_ends_without_a_warning() -> None:
    x = np.array([-1e4, -200, -90, 0, 90, 1e4], dtype=np.float32)

    np.testing.assert_allclose(silu(x), [0, 0, 0, 0, 90, 1e4], atol=1e-30)


# Each way of running experts: few tiles gathered, all experts at once, one by one when skewed.
@pytest.mark.parametrize(
    "counts",
    [
        [1],
        [9],
        [0, 0, 1, 0, 0, 0, 0, 0],
        [0, 5, 0, 0, 0, 0, 3, 0],
        [4, 4, 4, 4],
        [1, 2, 3, 4],
        [5, 1, 0, 2, 8, 3],
        [40, 0, 1, 1, 0, 2],
        [1, 200, 1, 1],
        [0, 0, 17, 0],
    ],
)
def test_every_layout_gives_the_bits_of_one_row_at_a_time(counts: list[int]) -> None:
    gate_up, down = weights(len(counts))
    rows = rows_of(sum(counts))
    before = rows.copy()

    out = run_experts(rows, np.array(counts), gate_up, down)

    assert (out == run_experts_slowly(rows, np.array(counts), gate_up, down)).all()
    assert (rows == before).all()


@given(st.lists(st.integers(0, 12), min_size=1, max_size=10).filter(any), st.integers(0, 2**32))
def test_any_routing_gives_the_bits_of_one_row_at_a_time(counts: list[int], seed: int) -> None:
    gate_up, down = weights(len(counts), seed)
    rows = rows_of(sum(counts), seed)

    out = run_experts(rows, np.array(counts), gate_up, down)

    assert (out == run_experts_slowly(rows, np.array(counts), gate_up, down)).all()


def test_the_slow_reference_is_swiglu_in_float64() -> None:
    counts = np.array([2, 0, 3])
    gate_up, down = weights(3)
    rows = rows_of(5)

    out = run_experts_slowly(rows, counts, gate_up, down)

    for row, expert in enumerate([0, 0, 2, 2, 2]):
        both = rows[row].astype(np.float64) @ gate_up[expert]
        gate, up = both[:INTERMEDIATE], both[INTERMEDIATE:]
        expected = (gate / (1 + np.exp(-gate)) * up) @ down[expert]
        np.testing.assert_allclose(out[row], expected, rtol=1e-4, atol=1e-5)

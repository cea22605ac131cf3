import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.compute.architecture import SwiGlu
from emulator.compute.experts import SILU, gated, run_dense, run_experts, run_experts_slowly

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

    both = np.stack([x, np.ones_like(x)], axis=1)

    np.testing.assert_allclose(gated(both, SILU)[:, 0], [0, 0, 0, 0, 90, 1e4], atol=1e-30)


def test_a_clamped_gate_by_hand() -> None:
    # gpt-oss: gate at most 7, up within 7, gate * sigmoid(1.702 gate) * (up + 1).
    clamped = SwiGlu(alpha=1.702, shift=1.0, limit=7.0)
    both = np.array([[9.0, 8.0], [1.0, -9.0]], dtype=np.float32)

    wanted = [7 / (1 + math.exp(-1.702 * 7)) * 8, 1 / (1 + math.exp(-1.702)) * -6]
    np.testing.assert_allclose(gated(both, clamped)[:, 0], wanted, rtol=1e-6)


def test_parts_of_a_dense_network_add_up_to_the_whole() -> None:
    rng = np.random.default_rng(3)
    gate, up = (rng.standard_normal((8, 6)).astype(np.float32) for _ in range(2))
    down = rng.standard_normal((6, 8)).astype(np.float32)
    x = rng.standard_normal((5, 8)).astype(np.float32)
    halves = [slice(0, 3), slice(3, 6)]
    gate_up = np.array([np.concatenate([gate[:, h], up[:, h]], axis=1) for h in halves])
    parts = run_dense(x, gate_up, np.array([down[h] for h in halves]), SILU)

    whole = gated(x @ np.concatenate([gate, up], axis=1), SILU) @ down
    np.testing.assert_allclose(parts.sum(axis=0), whole, rtol=1e-5, atol=1e-5)
    alone = run_dense(x, gate_up[1:], down[None, halves[1]], SILU)
    assert (alone[0] == parts[1]).all(), "a part has the same bits wherever it is computed"


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

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.compute.architecture import SwiGlu
from emulator.compute.experts import SILU, ExpertNetworks, gated, run_dense
from tests.emulator.compute.expert_reference import run_experts_slowly

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

    out = ExpertNetworks(gate_up, down).run(row, np.array([0]), np.array([1]))

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


COUNTS = [
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
]
CLAMPED = SwiGlu(alpha=1.702, shift=1.0, limit=1.5)


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("with_biases", [False, True])
def test_experts_are_those_of_the_slow_reference(counts: list[int], with_biases: bool) -> None:
    gate_up, down = weights(len(counts))
    rows = rows_of(sum(counts))
    before = rows.copy()
    biases, gate = None, SILU
    if with_biases:
        shape = (len(counts), 2 * INTERMEDIATE + HIDDEN)
        biases = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
        gate = CLAMPED
    each = np.arange(len(rows))

    out = ExpertNetworks(gate_up, down, biases, gate).run(rows, each, np.array(counts))

    expected = run_experts_slowly(rows, np.array(counts), gate_up, down, biases, gate)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)
    assert (rows == before).all()


@given(st.lists(st.integers(0, 12), min_size=1, max_size=10).filter(any), st.integers(0, 2**32))
def test_a_row_has_the_bits_that_it_has_alone_on_a_chip_with_its_expert_alone(
    counts: list[int], seed: int
) -> None:
    gate_up, down = weights(len(counts), seed)
    rows = rows_of(5, seed)
    row_of_pair = np.random.default_rng(seed).integers(0, 5, sum(counts))

    out = ExpertNetworks(gate_up, down).run(rows, row_of_pair, np.array(counts))

    experts = np.repeat(np.arange(len(counts)), counts)
    for pair, (row, expert) in enumerate(zip(row_of_pair, experts, strict=True)):
        own = slice(expert, expert + 1)
        alone = ExpertNetworks(gate_up[own], down[own]).run(
            rows[row : row + 1], np.array([0]), np.array([1])
        )
        assert (out[pair] == alone[0]).all()


@pytest.mark.parametrize(
    ("row_of_pair", "counts"),
    [([0, 3], [1, 1]), ([0, -1], [1, 1]), ([0, 1], [1, 2]), ([0, 1], [1, 0, 1])],
)
def test_pairs_without_a_row_or_an_expert_are_an_error(
    row_of_pair: list[int], counts: list[int]
) -> None:
    experts = ExpertNetworks(*weights(2))

    with pytest.raises(IndexError, match="pair"):
        experts.run(rows_of(3), np.array(row_of_pair), np.array(counts))

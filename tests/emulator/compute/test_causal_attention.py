import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emulator.compute import causal_attention
from emulator.compute.causal_attention import (
    AttentionInputs,
    BatchShape,
    attention_backward,
    attention_forward,
    scores_are_bounded,
)
from emulator.compute.mixed_precision import Precision


def made_inputs(
    *,
    heads: int = 4,
    kv_heads: int = 2,
    sequences: int = 3,
    length: int = 20,
    bounded: bool = True,
    size: float = 1.0,
    dtype: type = np.float64,
) -> AttentionInputs:
    rng = np.random.default_rng(heads * length)
    query = rng.standard_normal((heads, 8, sequences, length)) * size
    key, value = rng.standard_normal((2, kv_heads, 8, sequences, length))
    return AttentionInputs(
        query=query.astype(dtype),
        key=key.astype(dtype),
        value=value.astype(dtype),
        bounded=bounded,
        precision=Precision.FP32,
    )


def gradients(inputs: AttentionInputs, grad: np.ndarray) -> tuple[np.ndarray, ...]:
    into = tuple(np.zeros_like(x) for x in (inputs.query, inputs.key, inputs.value))
    attention_backward(inputs, attention_forward(inputs), grad, into)
    return into


def torchs(inputs: AttentionInputs, grad: np.ndarray) -> tuple[np.ndarray, ...]:
    """Mixed values and gradients by PyTorch's own attention."""
    leaves = [
        torch.tensor(x.transpose(2, 0, 3, 1).copy(), requires_grad=True)
        for x in (inputs.query, inputs.key, inputs.value)
    ]
    mixed = torch.nn.functional.scaled_dot_product_attention(
        *leaves, is_causal=True, scale=1.0, enable_gqa=True
    )
    mixed.backward(torch.tensor(grad.transpose(2, 0, 3, 1).copy()))
    arrays = [mixed.detach(), *(leaf.grad for leaf in leaves)]
    return tuple(array.numpy().transpose(1, 3, 0, 2) for array in arrays)


def test_two_tokens_by_hand() -> None:
    # One head of width 1. The second query scores 0 and ln 3: weights 1/4 and 3/4.
    inputs = AttentionInputs(
        query=np.array([5.0, 1.0]).reshape(1, 1, 1, 2),
        key=np.array([0.0, np.log(3)]).reshape(1, 1, 1, 2),
        value=np.array([8.0, 16.0]).reshape(1, 1, 1, 2),
        bounded=True,
        precision=Precision.FP32,
    )

    attended = attention_forward(inputs)
    grad_query, grad_key, grad_value = gradients(inputs, np.array([0.0, 1.0]).reshape(1, 1, 1, 2))

    # dL/dscore = weight * (value - mixed) = 1/4 * (8 - 14) and 3/4 * (16 - 14).
    np.testing.assert_allclose(attended.mixed.ravel(), [8.0, 14.0])
    np.testing.assert_allclose(attended.total.ravel(), [1.0, 4.0])
    np.testing.assert_allclose(grad_value.ravel(), [0.25, 0.75])
    np.testing.assert_allclose(grad_query.ravel(), [0.0, 1.5 * np.log(3)], atol=1e-12)
    np.testing.assert_allclose(grad_key.ravel(), [-1.5, 1.5])


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize("length", [1, 20, 63, 64, 65, 200])
@pytest.mark.parametrize("bounded", [True, False])
def test_values_and_gradients_are_pytorchs(
    heads: int, kv_heads: int, length: int, bounded: bool
) -> None:
    inputs = made_inputs(heads=heads, kv_heads=kv_heads, length=length, bounded=bounded)
    grad = np.random.default_rng(9).standard_normal(inputs.query.shape)

    ours = attention_forward(inputs).mixed, *gradients(inputs, grad)

    for found, expected in zip(ours, torchs(inputs, grad), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9)


def test_scores_far_beyond_what_exp_holds_are_attended_where_no_bound_is_claimed() -> None:
    inputs = made_inputs(bounded=False, size=400.0, dtype=np.float32)
    grad = np.ones_like(inputs.query)

    ours = attention_forward(inputs).mixed, *gradients(inputs, grad)

    for found, expected in zip(ours, torchs(inputs, grad), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


@pytest.mark.long
@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 3000))
def test_how_the_work_is_cut_changes_no_value(block: int, sequences: int, scores: int) -> None:
    inputs = made_inputs(sequences=sequences, length=33)
    grad = np.random.default_rng(9).standard_normal(inputs.query.shape)
    whole = attention_forward(inputs).mixed, *gradients(inputs, grad)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(causal_attention, "QUERY_BLOCK_TOKENS", block)
        patch.setattr(causal_attention, "SCORES_MAX", scores)
        cut = attention_forward(inputs).mixed, *gradients(inputs, grad)

    for found, expected in zip(cut, whole, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)


def test_gradients_are_added_to_what_is_there() -> None:
    inputs = made_inputs()
    grad = np.ones_like(inputs.query)
    once = gradients(inputs, grad)

    into = tuple(np.full_like(x, 7.0) for x in once)
    attention_backward(inputs, attention_forward(inputs), grad, into)

    for found, expected in zip(into, once, strict=True):
        np.testing.assert_allclose(found, expected + 7.0)


def test_a_batch_without_a_token_is_refused() -> None:
    with pytest.raises(AssertionError):
        BatchShape(sequences=0, length=4)
    with pytest.raises(AssertionError):
        BatchShape(sequences=1, length=0)
    assert BatchShape(sequences=3, length=5).tokens == 15


class TestBound:
    def test_the_longest_vectors_point_the_same_way(self) -> None:
        ones = np.ones(16, dtype=np.float32)

        # The root of 16 times the largest weights: 4 * 3 * 5 = 60.
        assert scores_are_bounded(3 * ones, 5 * ones)
        assert scores_are_bounded(-3 * ones, 5 * ones)
        assert not scores_are_bounded(3 * ones, np.float32(5.01) * ones)

    def test_a_rotation_that_lengthens_both_counts_twice(self) -> None:
        ones = np.ones(16, dtype=np.float32)

        assert scores_are_bounded(3 * ones, 1.25 * ones, rotation_gain=2.0)
        assert not scores_are_bounded(3 * ones, 1.26 * ones, rotation_gain=2.0)

    def test_one_large_weight_is_enough_of_either_sign(self) -> None:
        weights = np.ones(16, dtype=np.float32)
        weights[7] = -30.0

        assert not scores_are_bounded(weights, np.ones(16, dtype=np.float32))
        assert not scores_are_bounded(np.ones(16, dtype=np.float32), weights)

    @given(st.integers(1, 64), st.integers(0, 2**32))
    def test_no_score_of_normalised_vectors_exceeds_the_bound(self, width: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        query_norm, key_norm = rng.uniform(-8, 8, (2, width)).astype(np.float32)
        query, key = rng.standard_normal((2, width))
        # The worst direction among the random ones: along the weights themselves.
        for vector in (query, key, np.eye(width)[int(np.abs(query_norm * key_norm).argmax())]):
            unit = vector / math.sqrt(np.square(vector).mean())
            score = (unit * query_norm) @ (unit * key_norm) / math.sqrt(width)
            if scores_are_bounded(query_norm, key_norm):
                assert abs(score) <= causal_attention.SAFE_SCORE * (1 + 1e-6)

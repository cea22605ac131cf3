import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeRMSNorm

from emulator.compute.decoder import rms_norm


def test_a_vector_by_hand() -> None:
    x = np.array([[3.0, 4.0]], dtype=np.float32)
    weight = np.array([2.0, 10.0], dtype=np.float32)

    # The mean square is 12.5; with 3.5 added, its root is 4.
    assert rms_norm(x, weight, 3.5).tolist() == [[1.5, 10.0]]


def test_a_vector_of_zeros_stays_zero() -> None:
    zeros = np.zeros((2, 8), dtype=np.float32)

    assert (rms_norm(zeros, np.ones(8, dtype=np.float32), 1e-6) == 0).all()


@given(st.integers(0, 2**32), st.sampled_from([1e-6, 1e-5, 1.0]), st.floats(-3, 3))
def test_it_is_transformers_norm(seed: int, eps: float, exponent: float) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((5, 3, 24)) * 10**exponent).astype(np.float32)
    weight = rng.uniform(-2, 2, 24).astype(np.float32)
    reference = Qwen3MoeRMSNorm(24, eps=eps)
    with torch.no_grad():
        reference.weight.copy_(torch.from_numpy(weight))
        expected = reference(torch.from_numpy(x)).numpy()

    np.testing.assert_allclose(rms_norm(x, weight, eps), expected, rtol=1e-6)


@given(st.integers(1, 9), st.integers(1, 130), st.integers(0, 2**32))
def test_a_row_has_the_same_bits_alone_and_among_others(rows: int, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, width)).astype(np.float32)
    weight = rng.standard_normal(width).astype(np.float32)

    alone = np.concatenate([rms_norm(x[row : row + 1], weight, 1e-6) for row in range(rows)])

    assert (rms_norm(x, weight, 1e-6) == alone).all()


def test_the_input_is_left_alone_and_may_have_gaps() -> None:
    x = np.random.default_rng(3).standard_normal((4, 3, 8)).astype(np.float32)
    before, weight = x.copy(), np.ones(5, dtype=np.float32)

    assert (rms_norm(x[..., :5], weight, 1e-6) == rms_norm(x[..., :5].copy(), weight, 1e-6)).all()
    assert (x == before).all()

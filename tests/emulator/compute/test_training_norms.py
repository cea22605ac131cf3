import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emulator.compute.decoder import rms_norm
from emulator.compute.training_norms import rms_norm_backward, rms_norm_forward


def test_a_row_by_hand() -> None:
    # Mean square of (3, 4) is 12.5; with eps 12.5 the root is 5.
    x, weight = np.array([[3.0, 4.0]]), np.array([10.0, 20.0])

    normed, scale = rms_norm_forward(x, weight, 12.5)
    # dy = (1, 0): dx = 0.2 * (10, 0) - x * 0.008 / 2 * 30.
    grad_x, by_weight = rms_norm_backward(x, scale, weight, np.array([[1.0, 0.0]]))

    np.testing.assert_allclose(normed, [[6.0, 16.0]])
    np.testing.assert_allclose(scale, [[0.2]])
    np.testing.assert_allclose(grad_x, [[2.0 - 0.36, -0.48]])
    np.testing.assert_allclose(by_weight, [[0.6, 0.0]])


@given(st.integers(0, 2**32), st.integers(1, 9), st.integers(1, 40))
def test_forward_is_the_serving_norm_and_backward_is_autograds(
    seed: int, rows: int, width: int
) -> None:
    rng = np.random.default_rng(seed)
    x, grad = rng.standard_normal((2, rows, width))
    weight = rng.standard_normal(width)
    leaf, by = torch.tensor(x, requires_grad=True), torch.tensor(weight, requires_grad=True)
    theirs = torch.nn.functional.rms_norm(leaf, [width], by, 1e-6)
    theirs.backward(torch.tensor(grad))

    normed, scale = rms_norm_forward(x, weight, 1e-6)
    grad_x, by_weight = rms_norm_backward(x, scale, weight, grad)

    np.testing.assert_allclose(normed, theirs.detach().numpy(), rtol=1e-9)
    np.testing.assert_allclose(grad_x, leaf.grad.numpy(), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(by_weight.sum(axis=0), by.grad.numpy(), rtol=1e-9, atol=1e-12)
    served = rms_norm(x.astype(np.float32), weight.astype(np.float32), 1e-6)
    np.testing.assert_allclose(normed, served, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_another_axis_is_the_last_one_turned(dtype: type) -> None:
    rng = np.random.default_rng(0)
    x, grad = rng.standard_normal((2, 3, 8, 5)).astype(dtype)
    weight = rng.standard_normal((3, 8)).astype(dtype)

    normed, scale = rms_norm_forward(x, weight[:, :, None], 1e-6, axis=1)
    grad_x, by_weight = rms_norm_backward(x, scale, weight[:, :, None], grad, axis=1)

    turned, turned_grad = x.transpose(0, 2, 1), grad.transpose(0, 2, 1)
    expected, expected_scale = rms_norm_forward(turned, weight[:, None], 1e-6)
    slopes = rms_norm_backward(turned, expected_scale, weight[:, None], turned_grad)
    assert normed.dtype == grad_x.dtype == dtype
    np.testing.assert_allclose(normed.transpose(0, 2, 1), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(grad_x.transpose(0, 2, 1), slopes[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(by_weight.transpose(0, 2, 1), slopes[1], rtol=1e-4, atol=1e-5)

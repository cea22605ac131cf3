import numpy as np
import pytest
import torch

from emulator.compute.causal_attention import SAFE_SCORE, BatchShape
from emulator.compute.mixed_precision import Precision
from emulator.compute.parameters import Parameters, dense_layout
from emulator.compute.training_attention import attend_backward, attend_forward
from tests.emulator.compute.torch_qwen3_moe import attended
from tests.emulator.compute.whole_training_step import Model, small_architecture

SHAPE = BatchShape(sequences=2, length=13)


def residual_of(shape: BatchShape = SHAPE) -> np.ndarray:
    return np.random.default_rng(2).standard_normal((shape.tokens, 20)).astype(np.float32)


def test_attention_of_one_token_is_its_value() -> None:
    # All of a one-token sequence's weight is on itself: residual = x + norm(x) Wv Wo.
    dense = Model.random(small_architecture()).dense
    shape = BatchShape(sequences=5, length=1)
    x = residual_of(shape)

    tape = attend_forward(dense, 0, x, shape, Precision.FP32)

    normed = x / np.sqrt((x * x).mean(axis=1, keepdims=True)) * dense["layers.0.input_norm"]
    values = (normed @ dense["layers.0.qkv"][:, -16:]).reshape(5, 2, 8)
    mixed = np.repeat(values, 2, axis=1).reshape(5, 32)  # two query heads for each value head
    np.testing.assert_allclose(
        tape.residual, x + mixed @ dense["layers.0.output"], rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("sharpness", [1.0, 100.0])
def test_residual_and_gradients_are_autograds_also_when_scores_are_far_apart(
    sharpness: float,
) -> None:
    arch = small_architecture()
    dense = Model.random(arch).dense
    dense["layers.1.query_norm"][:] *= sharpness
    x, grad = residual_of(), residual_of()[::-1].copy()
    names = ["input_norm", "qkv", "query_norm", "key_norm", "output"]
    leaves = {
        f"layers.1.{name}": torch.tensor(dense[f"layers.1.{name}"], requires_grad=True)
        for name in names
    }
    leaf = torch.tensor(x, requires_grad=True)
    theirs = leaf + attended(leaves, "layers.1", leaf.view(2, 13, 20), arch, torch.matmul).flatten(
        0, 1
    )
    theirs.backward(torch.tensor(grad))

    grads = Parameters.zeros(dense_layout(arch))
    tape = attend_forward(dense, 1, x, SHAPE, Precision.FP32)
    grad_x = attend_backward(dense, grads, 1, tape, grad)

    assert tape.inputs.bounded == (sharpness == 1.0)
    scores = np.einsum("hdsl,hdsm->hslm", tape.inputs.query[::2], tape.inputs.key)
    assert (np.abs(scores).max() <= SAFE_SCORE) == (sharpness == 1.0)
    close = {"rtol": 1e-3, "atol": 1e-4 * sharpness}
    np.testing.assert_allclose(tape.residual, theirs.detach(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(grad_x, leaf.grad, **close)
    for name, parameter in leaves.items():
        np.testing.assert_allclose(grads[name], parameter.grad, **close, err_msg=name)

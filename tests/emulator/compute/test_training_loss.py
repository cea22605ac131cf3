import math

import numpy as np
import pytest
import torch

from emulator.compute import training_loss
from emulator.compute.mixed_precision import Precision
from emulator.compute.parameters import Parameters, dense_layout
from emulator.compute.training_loss import expert_share, head
from tests.emulator.compute.whole_training_step import Model, balance_loss, small_architecture


def made(*, tied: bool = False, rows: int = 30) -> tuple[Parameters, np.ndarray, np.ndarray]:
    dense = Model.random(small_architecture(tied=tied)).dense
    rng = np.random.default_rng(4)
    x = rng.standard_normal((rows, 20)).astype(np.float32)
    return dense, x, rng.integers(-1, 37, rows).astype(np.int32)


def test_all_tokens_alike_lose_the_logarithm_of_their_number() -> None:
    dense = Parameters.zeros(dense_layout(small_architecture()))
    targets = np.array([3, -1, 0], dtype=np.int32)

    loss, counted, grad = head(
        dense, None, np.ones((3, 20), dtype=np.float32), targets, 1.0, Precision.FP32
    )

    assert loss == pytest.approx(2 * math.log(37))
    assert counted == 2
    assert grad is None


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("logits_max", [1, 37 * 7, 1 << 18])
def test_loss_and_gradients_are_pytorchs_however_many_rows_are_taken_at_once(
    tied: bool, logits_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_loss, "LOGITS_MAX", logits_max)
    dense, x, targets = made(tied=tied)
    grads = Parameters.zeros(dense.layout)
    name = "embedding" if tied else "lm_head"
    leaf = torch.tensor(x, requires_grad=True)
    norm = torch.tensor(dense["final_norm"], requires_grad=True)
    matrix = torch.tensor(dense[name], requires_grad=True)
    normed = torch.nn.functional.rms_norm(leaf, [20], norm, 1e-6)
    theirs = torch.nn.functional.cross_entropy(
        normed @ (matrix.T if tied else matrix),
        torch.tensor(targets, dtype=torch.long),
        ignore_index=-1,
        reduction="sum",
    )
    (theirs * 0.25).backward()

    loss, counted, grad = head(dense, grads, x, targets, 0.25, Precision.FP32)

    assert loss == pytest.approx(theirs.item(), rel=1e-6)
    assert counted == np.count_nonzero(targets >= 0)
    np.testing.assert_allclose(grad, leaf.grad, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(grads["final_norm"], norm.grad, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(grads[name], matrix.grad, rtol=1e-4, atol=1e-5)
    untouched = set(grads) - {"final_norm", name}
    assert not any(grads[other].any() for other in untouched)


def test_logits_beyond_what_exp_holds_give_a_finite_loss() -> None:
    dense, x, targets = made()
    dense["lm_head"][:] *= 1e4

    loss, _, grad = head(dense, Parameters.zeros(dense.layout), x, targets, 1.0, Precision.FP32)

    assert np.isfinite(loss)
    assert grad is not None
    assert np.isfinite(grad).all()


def test_only_targets_that_are_counted_have_a_gradient() -> None:
    dense, x, targets = made()

    _, _, grad = head(dense, Parameters.zeros(dense.layout), x, targets, 1.0, Precision.BF16)

    assert grad is not None
    assert (grad.any(axis=1) == (targets >= 0)).all()
    assert -1 in targets


def test_balance_is_k_when_experts_are_alike_and_experts_when_one_has_all() -> None:
    even = np.full(8, 1 / 8, dtype=np.float32)
    one = np.eye(8, dtype=np.float32)[0]

    assert balance_loss(expert_share(np.full(8, 30), 120), even) == pytest.approx(2.0)
    assert balance_loss(expert_share(np.array([50, 0, 0, 0, 0, 0, 0, 0]), 50), one) == 8.0

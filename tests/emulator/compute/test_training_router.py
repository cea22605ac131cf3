import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.compute.architecture import Routing
from emulator.compute.mixed_precision import Precision
from emulator.compute.parameters import Parameters, dense_layout
from emulator.compute.router import Router
from emulator.compute.training_router import (
    route_backward,
    route_forward,
)
from emulator.compute.weights import RouterWeights
from tests.emulator.compute.whole_training_step import Model, small_architecture


def residual_of(tokens: int, seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((tokens, 20)).astype(np.float32)


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("experts_per_token", [1, 2, 6])
def test_experts_and_weights_are_those_of_the_serving_router(
    normalise: bool, experts_per_token: int
) -> None:
    arch = small_architecture(normalise=normalise, experts_per_token=experts_per_token)
    dense = Model.random(arch).dense

    tape = route_forward(dense, 1, residual_of(50), Precision.FP32)

    router = Router(
        RouterWeights(matrix=dense["layers.1.router"]),
        experts_per_token=experts_per_token,
        routing=Routing(normalise=normalise),
    )
    chosen, weights = router.route(tape.hidden)
    assert (tape.chosen == chosen).all()
    np.testing.assert_allclose(tape.weights, weights, rtol=1e-5)
    np.testing.assert_allclose(tape.probabilities.sum(axis=1), 1.0, rtol=1e-5)


@given(st.lists(st.integers(0, 3), min_size=6, max_size=6), st.integers(1, 6))
def test_equal_logits_still_give_each_token_k_different_experts(
    columns: list[int], experts_per_token: int
) -> None:
    arch = small_architecture(experts_per_token=experts_per_token)
    dense = Parameters.zeros(dense_layout(arch))
    dense["layers.0.post_norm"][:] = 1.0
    dense["layers.0.router"][:] = columns  # experts with the same column score the same

    tape = route_forward(dense, 0, np.abs(residual_of(5)), Precision.FP32)

    assert tape.chosen.shape == (5, experts_per_token)
    assert (np.diff(tape.chosen, axis=1) > 0).all()
    worst = np.take_along_axis(tape.probabilities, tape.chosen, axis=1).min(axis=1)
    higher = (tape.probabilities > worst[:, None] * (1 + 1e-5)).sum(axis=1)
    assert (higher < experts_per_token).all()


def test_logits_beyond_what_exp_holds_give_finite_weights() -> None:
    dense = Model.random(small_architecture()).dense
    dense["layers.0.router"][:] *= 1e3

    tape = route_forward(dense, 0, residual_of(20), Precision.FP32)

    assert np.isfinite(tape.probabilities).all()
    np.testing.assert_allclose(tape.weights.sum(axis=1), 1.0, rtol=1e-5)


def test_only_balance_pulls_when_nothing_else_does_and_it_pulls_the_busy_expert_down() -> None:
    arch = small_architecture()
    dense = Model.random(arch).dense
    grads = Parameters.zeros(dense.layout)
    tape = route_forward(dense, 0, residual_of(30), Precision.FP32)
    tape.grad_weights = np.zeros((30, 2), dtype=np.float32)
    nothing = np.zeros((30, 20), dtype=np.float32)
    share = np.array([1.0, 0.2, 0.2, 0.2, 0.2, 0.2], dtype=np.float32)

    route_backward(dense, grads, 0, tape, nothing, nothing, share, 0.5)
    dense["layers.0.router"][:] -= 0.5 * grads["layers.0.router"]
    after = route_forward(dense, 0, residual_of(30), Precision.FP32)

    assert after.probabilities[:, 0].mean() < tape.probabilities[:, 0].mean()
    assert after.probabilities[:, 1:].mean() > tape.probabilities[:, 1:].mean()


def test_a_token_without_a_gradient_gets_none_and_no_balance_gives_none() -> None:
    dense = Model.random(small_architecture()).dense
    grads = Parameters.zeros(dense.layout)
    tape = route_forward(dense, 0, residual_of(3), Precision.FP32)
    tape.grad_weights = np.zeros((3, 2), dtype=np.float32)
    nothing = np.zeros((3, 20), dtype=np.float32)

    grad = route_backward(dense, grads, 0, tape, nothing, nothing, np.ones(6, np.float32), 0.0)

    assert not grad.any()
    assert not grads.flat.any()


def test_the_backward_before_the_experts_is_refused() -> None:
    dense = Model.random(small_architecture()).dense
    tape = route_forward(dense, 0, residual_of(3), Precision.FP32)
    nothing = np.zeros((3, 20), dtype=np.float32)

    with pytest.raises(AssertionError, match="owners come before"):
        route_backward(dense, dense, 0, tape, nothing, nothing, np.ones(6, dtype=np.float32), 0.0)


def test_what_is_sent_to_experts_is_rounded_already_under_bf16() -> None:
    dense = Model.random(small_architecture()).dense

    tape = route_forward(dense, 0, residual_of(9), Precision.BF16)

    assert not (np.ascontiguousarray(tape.hidden).view(np.uint32) & 0xFFFF).any()

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emulator.compute.mixed_precision import Precision, round_to_bfloat16
from emulator.compute.parameters import Parameters, expert_layout
from emulator.compute.training_experts import experts_backward, experts_forward
from tests.emulator.compute.expert_reference import run_experts_slowly
from tests.emulator.compute.torch_qwen3_moe import Product, rounded_product
from tests.emulator.compute.whole_training_step import small_architecture


def made(counts: list[int], *, seed: int = 0) -> tuple[Parameters, np.ndarray, np.ndarray]:
    """Experts of one layer, rows for them, and the gradient of their answers; operands of BF16."""
    layout = expert_layout(small_architecture(layers=1), [len(counts)])
    rng = np.random.default_rng(seed)
    experts = Parameters(layout, rng.standard_normal(layout.size).astype(np.float32) * 0.4)
    rows, grad = rng.standard_normal((2, sum(counts), 20)).astype(np.float32)
    return experts, round_to_bfloat16(rows.copy()), round_to_bfloat16(grad.copy())


def by_autograd(
    experts: Parameters, rows: np.ndarray, counts: list[int], grad: np.ndarray, product: Product
) -> list[np.ndarray]:
    """Answers, and gradients of rows, gate_up and down."""
    leaves = [
        torch.tensor(value, requires_grad=True)
        for value in (rows, experts["layers.0.gate_up"], experts["layers.0.down"])
    ]
    parts = []
    for expert, part in enumerate(leaves[0].split(counts)):
        gate, up = product(part, leaves[1][expert]).chunk(2, dim=1)
        parts.append(product(torch.nn.functional.silu(gate) * up, leaves[2][expert]))
    out = torch.cat(parts)
    out.backward(torch.tensor(grad))
    return [out.detach().numpy(), *(leaf.grad.numpy() for leaf in leaves)]


def ours(
    experts: Parameters, rows: np.ndarray, counts: list[int], grad: np.ndarray, precision: Precision
) -> list[np.ndarray]:
    grads = Parameters.zeros(experts.layout)
    out, tape = experts_forward(experts, 0, rows, np.array(counts), precision)
    grad_rows = experts_backward(experts, grads, 0, tape, grad)
    return [out, grad_rows, grads["layers.0.gate_up"], grads["layers.0.down"]]


def test_one_row_through_one_expert_by_hand() -> None:
    # Gate ln 3: sigmoid 3/4, silu' = 3/4 (1 + ln 3 / 4). Up 2, down 10; out = 3/4 ln 3 * 2 * 10.
    arch = small_architecture(layers=1)
    layout = expert_layout(arch, [1])
    experts, grads = Parameters.zeros(layout), Parameters.zeros(layout)
    experts["layers.0.gate_up"][0, 0, 0] = math.log(3)
    experts["layers.0.gate_up"][0, 0, 7] = 2.0
    experts["layers.0.down"][0, 0, 0] = 10.0
    row, grad = np.zeros((2, 1, 20), dtype=np.float32)
    row[0, 0] = grad[0, 0] = 1.0

    out, tape = experts_forward(experts, 0, row, np.array([1]), Precision.FP32)
    grad_rows = experts_backward(experts, grads, 0, tape, grad)

    slope = 0.75 * (1 + math.log(3) / 4)
    assert out[0, 0] == pytest.approx(15 * math.log(3))
    assert grads["layers.0.down"][0, 0, 0] == pytest.approx(1.5 * math.log(3))
    assert grads["layers.0.gate_up"][0, 0, 0] == pytest.approx(20 * slope)
    assert grads["layers.0.gate_up"][0, 0, 7] == pytest.approx(7.5 * math.log(3))
    assert grad_rows[0, 0] == pytest.approx(20 * slope * math.log(3) + 15 * math.log(3))


@pytest.mark.long
@given(st.lists(st.integers(0, 12), min_size=1, max_size=8).filter(any), st.integers(0, 2**32))
def test_any_routing_gives_the_serving_experts_answers_and_autograds_gradients(
    counts: list[int], seed: int
) -> None:
    experts, rows, grad = made(counts, seed=seed)

    found = ours(experts, rows, counts, grad, Precision.FP32)

    expected = by_autograd(experts, rows, counts, grad, torch.matmul)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
    served = run_experts_slowly(
        rows, np.array(counts), experts["layers.0.gate_up"], experts["layers.0.down"]
    )
    np.testing.assert_allclose(found[0], served, rtol=1e-4, atol=1e-5)


def test_bf16_gives_autograds_gradients_with_the_same_roundings() -> None:
    counts = [40, 0, 3, 1]
    experts, rows, grad = made(counts)

    found = ours(experts, rows, counts, grad, Precision.BF16)

    expected = by_autograd(experts, rows, counts, grad, rounded_product)
    exact = by_autograd(experts, rows, counts, grad, torch.matmul)
    for mine, theirs, unrounded in zip(found, expected, exact, strict=True):
        apart = np.linalg.norm(mine - theirs) / np.linalg.norm(theirs)
        assert apart < 5e-4  # a sum in another order is rounded to the other side now and then
        assert np.linalg.norm(mine - unrounded) / np.linalg.norm(unrounded) > 4 * apart


@pytest.mark.parametrize("precision", Precision)
def test_an_experts_bits_do_not_depend_on_the_experts_beside_it(precision: Precision) -> None:
    counts = [5, 30, 1, 0, 9]
    experts, rows, grad = made(counts)
    alone = Parameters.zeros(expert_layout(small_architecture(layers=1), [1]))
    for name in alone:
        alone[name][0] = experts[name][1]

    together = ours(experts, rows, counts, grad, precision)
    single = ours(alone, rows[5:35], [30], grad[5:35], precision)

    assert (together[0][5:35] == single[0]).all()
    assert (together[1][5:35] == single[1]).all()
    assert (together[2][1] == single[2][0]).all()
    assert (together[3][1] == single[3][0]).all()


def test_a_chip_that_gets_no_row_answers_nothing_and_learns_nothing() -> None:
    experts, rows, grad = made([0, 0])

    out, grad_rows, grad_gate_up, grad_down = ours(experts, rows, [0, 0], grad, Precision.BF16)

    assert out.shape == grad_rows.shape == (0, 20)
    assert not grad_gate_up.any()
    assert not grad_down.any()


def test_gates_far_from_zero_saturate_without_a_warning() -> None:
    experts, rows, grad = made([4])
    experts["layers.0.gate_up"][:] *= 1e4

    found = ours(experts, rows, [4], grad, Precision.FP32)

    assert all(np.isfinite(array).all() for array in found)


def test_gradients_are_added_to_what_is_there() -> None:
    experts, rows, grad = made([3, 2])
    grads = Parameters.zeros(experts.layout)

    for _ in range(2):
        _, tape = experts_forward(experts, 0, rows, np.array([3, 2]), Precision.FP32)
        experts_backward(experts, grads, 0, tape, grad)

    once = ours(experts, rows, [3, 2], grad, Precision.FP32)
    np.testing.assert_allclose(grads["layers.0.gate_up"], 2 * once[2], rtol=1e-6)
    np.testing.assert_allclose(grads["layers.0.down"], 2 * once[3], rtol=1e-6)

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.compute.adamw import AdamW, AdamWSettings, clip_factor, squared_norm
from emulator.compute.mixed_precision import Precision
from emulator.compute.parameters import Layout, Parameters, Slot
from emulator.errors import ConfigError
from tests.emulator.compute.whole_training_step import small_architecture


def layout_of(*sizes: tuple[int, bool]) -> Layout:
    slots, offset = {}, 0
    for index, (size, decays) in enumerate(sizes):
        slots[f"p{index}"] = Slot(offset=offset, shape=(size,), decays=decays)
        offset += size
    return Layout(architecture=small_architecture(), slots=slots)


def test_the_first_step_by_hand() -> None:
    # A first step goes the learning rate against the sign: m / (1 - b1) = g, v / (1 - b2) = g^2.
    layout = layout_of((2, True), (1, False))
    weights = Parameters(layout, np.array([1.0, 1.0, 1.0], dtype=np.float32))
    grads = Parameters(layout, np.array([4.0, -0.5, 2.0], dtype=np.float32))
    optimizer = AdamW(layout, AdamWSettings(weight_decay=0.5))

    optimizer.step(weights, grads, 0.1)

    np.testing.assert_allclose(weights.flat, [0.95 - 0.1, 0.95 + 0.1, 1.0 - 0.1], rtol=1e-6)
    np.testing.assert_allclose(optimizer.first, [0.4, -0.05, 0.2], rtol=1e-6)
    np.testing.assert_allclose(optimizer.second, [0.8, 0.0125, 0.2], rtol=1e-6)
    assert optimizer.steps == 1
    assert grads.flat.tolist() == [4.0, -0.5, 2.0]


@pytest.mark.long
@given(st.integers(0, 2**32), st.sampled_from([(10, 7), (20_000, 3), (16_384, 16_385)]))
@settings(max_examples=15)
def test_many_steps_are_pytorchs(seed: int, sizes: tuple[int, int]) -> None:
    rng = np.random.default_rng(seed)
    layout = layout_of((sizes[0], True), (sizes[1], False))
    weights = Parameters(layout, rng.standard_normal(layout.size).astype(np.float32))
    leaves = [torch.nn.Parameter(torch.tensor(weights[name])) for name in weights]
    theirs = torch.optim.AdamW(
        [{"params": [leaves[0]], "weight_decay": 0.3}, {"params": [leaves[1]], "weight_decay": 0}],
        betas=(0.8, 0.9),
        eps=1e-6,
    )
    optimizer = AdamW(
        layout, AdamWSettings(first_decay=0.8, second_decay=0.9, eps=1e-6, weight_decay=0.3)
    )
    for step in range(5):
        rate, factor = 0.01 * (step + 1), 1.0 / (step + 1)
        grads = Parameters(layout, rng.standard_normal(layout.size).astype(np.float32))
        for leaf, name in zip(leaves, weights, strict=True):
            leaf.grad = torch.tensor(grads[name] * np.float32(factor))
        for group in theirs.param_groups:
            group["lr"] = rate
        theirs.step()

        optimizer.step(weights, grads, rate, factor)

    expected = np.concatenate([leaf.detach().numpy() for leaf in leaves])
    np.testing.assert_allclose(weights.flat, expected, rtol=1e-5, atol=1e-6)


def test_state_put_back_goes_on_with_the_same_bits() -> None:
    layout = layout_of((100, True))
    rng = np.random.default_rng(0)
    slopes = [Parameters(layout, rng.standard_normal(100).astype(np.float32)) for _ in range(4)]
    straight = Parameters(layout, np.ones(100, dtype=np.float32))
    optimizer = AdamW(layout, AdamWSettings())
    for grads in slopes:
        optimizer.step(straight, grads, 0.1)

    stopped = Parameters(layout, np.ones(100, dtype=np.float32))
    first = AdamW(layout, AdamWSettings())
    for grads in slopes[:2]:
        first.step(stopped, grads, 0.1)
    again = AdamW(layout, AdamWSettings())
    again.first[:], again.second[:], again.steps = first.first, first.second, first.steps
    for grads in slopes[2:]:
        again.step(stopped, grads, 0.1)

    assert (stopped.flat == straight.flat).all()


def test_a_step_makes_the_rounded_weights_anew() -> None:
    layout = layout_of((4, True))
    weights = Parameters(layout, np.ones(4, dtype=np.float32))
    before = weights.operands(Precision.BF16)

    AdamW(layout, AdamWSettings()).step(weights, weights, 0.5)

    assert (weights.operands(Precision.BF16).flat < before.flat).all()


def test_a_norm_above_the_limit_is_brought_to_it_and_one_below_is_left() -> None:
    flat = np.array([3.0, 4.0] + [0.0] * 40_000 + [12.0], dtype=np.float32)

    assert squared_norm(flat) == 169.0
    assert squared_norm(np.zeros(0, dtype=np.float32)) == 0.0
    assert clip_factor(math.sqrt(169.0), 1.3) == pytest.approx(0.1)
    assert clip_factor(0.5, 1.3) == 1.0
    assert clip_factor(0.0, 1.3) == 1.0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("first_decay", 1.0),
        ("first_decay", -0.1),
        ("second_decay", math.nan),
        ("eps", 0.0),
        ("eps", math.inf),
        ("weight_decay", -1.0),
        ("weight_decay", math.nan),
    ],
)
def test_a_rate_that_cannot_be_is_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{field}="):
        AdamWSettings(**{field: value})

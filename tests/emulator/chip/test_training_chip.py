"""Chips that train: whatever their number, the model learns what one chip would learn."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emulator.chip.training_commands import (
    ApplyGradients,
    BeginTraining,
    CombineGradients,
    CombineSums,
)
from emulator.compute.mixed_precision import Precision
from emulator.training_fleet import Micro, TrainingFleet
from emulator.ultraserver.training_lockstep import Optimization
from tests.emulator.chip.in_process_training import started

VOCAB, LENGTH = 256, 12
STEP = Optimization(learning_rate=1e-3, clip_norm=1.0, balance_coefficient=0.05)


def sequences(count: int, seed: int = 0) -> Micro:
    """One chip's: [count, LENGTH] tokens, and targets of which some are not asked for."""
    rng = np.random.default_rng(seed)
    text = rng.integers(0, VOCAB, (count, LENGTH + 1)).astype(np.int32)
    targets = np.where(rng.random((count, LENGTH)) < 0.2, -1, text[:, 1:]).astype(np.int32)
    return [(text[:, :-1].copy(), targets)]


def dealt(micro: Micro, chips: int) -> Micro:
    """The sequences of one chip given to `chips`."""
    ((tokens, targets),) = micro
    parts = zip(np.array_split(tokens, chips), np.array_split(targets, chips), strict=True)
    return list(parts)


def learned(fleet: TrainingFleet, micros: list[Micro], steps: int = 3) -> dict[str, Any]:
    """Losses and the state after some steps."""
    losses = [fleet.step(micros, STEP).loss for _ in range(steps)]
    return {"losses": losses, **fleet.state().values}


@pytest.fixture(scope="module")
def checkpoint(small_checkpoints: Mapping[str, Path]) -> Path:
    return small_checkpoints["one_kv_head"]  # 12 experts: 5 chips do not divide them


@pytest.fixture(scope="module")
def alone(checkpoint: Path) -> dict[str, Any]:
    return learned(started(checkpoint, chips=1), [sequences(5)])


@pytest.mark.long
@pytest.mark.parametrize("chips", [2, 3, 5])
def test_chips_together_learn_what_one_chip_learns(
    checkpoint: Path, alone: dict[str, Any], chips: int
) -> None:
    together = learned(started(checkpoint, chips=chips), [dealt(sequences(5), chips)])

    assert together["losses"] == pytest.approx(alone["losses"], rel=1e-5)
    for name in alone.keys() - {"losses"}:
        # Adam divides a gradient by its own size, so a weight whose gradient is noise of rounding
        # may go the other way: by at most its step, 3 x 1e-3.
        close = np.isclose(together[name], alone[name], rtol=1e-3, atol=1e-5)
        assert close.mean() > 0.999, name
        assert np.abs(together[name] - alone[name]).max() < 6.1e-3, name


def test_a_step_in_micro_batches_has_the_gradients_of_the_whole_batch(checkpoint: Path) -> None:
    whole, parts = (started(checkpoint, chips=2) for _ in range(2))
    unbalanced = Optimization(learning_rate=1e-3, clip_norm=1e9, balance_coefficient=0.0)
    once = whole.step([dealt(sequences(6), 2)], unbalanced)
    both = dealt(sequences(6), 2)
    first: Micro = [(tokens[:1], targets[:1]) for tokens, targets in both]
    second: Micro = [(tokens[1:], targets[1:]) for tokens, targets in both]

    twice = parts.step([first, second], unbalanced)

    assert twice.counted == once.counted
    assert twice.loss == pytest.approx(once.loss, rel=1e-6)
    assert twice.gradient_norm == pytest.approx(once.gradient_norm, rel=1e-5)


def test_the_same_micro_batch_twice_has_the_gradients_and_the_balance_of_once(
    checkpoint: Path,
) -> None:
    once, twice = (started(checkpoint, chips=2) for _ in range(2))
    micro = dealt(sequences(4), 2)

    first, second = once.step([micro], STEP), twice.step([micro, micro], STEP)

    assert second.balance == pytest.approx(first.balance, rel=1e-6)
    assert second.gradient_norm == pytest.approx(first.gradient_norm, rel=1e-5)


@pytest.mark.parametrize("shape", ["tied", "one_kv_head"])
def test_all_gradients_of_chips_together_are_those_that_autograd_finds(
    small_checkpoints: Mapping[str, Path], shape: str
) -> None:
    """Adam's first moment after one step is a tenth of the gradient."""
    import torch  # noqa: PLC0415  takes seconds

    from tests.emulator.compute.torch_qwen3_moe import loss_and_gradients  # noqa: PLC0415

    fleet = started(small_checkpoints[shape], chips=2)
    before = fleet.state().values
    ((tokens, targets),) = sequences(4)
    balance = 0.05
    loss, gradients = loss_and_gradients(
        {name.removeprefix("master."): before[name] for name in before if "master" in name},
        fleet.architecture,
        tokens,
        targets,
        product=torch.matmul,
        balance=balance,
    )

    found = fleet.step(
        [dealt([(tokens, targets)], 2)],
        Optimization(learning_rate=1e-3, clip_norm=1e9, balance_coefficient=balance),
    )

    assert found.loss + found.balance == pytest.approx(loss, rel=1e-5)
    moments = fleet.state().values
    for name, expected in gradients.items():
        mine = moments[f"first.{name}"] / 0.1
        error = np.abs(mine - expected).max() / np.abs(expected).max()
        assert error < 1e-4, (name, error)


@pytest.mark.long
@pytest.mark.parametrize("precision", list(Precision))
def test_the_same_steps_have_the_same_bits(checkpoint: Path, precision: Precision) -> None:
    first, second = (
        learned(started(checkpoint, chips=3, precision=precision), [dealt(sequences(6), 3)])
        for _ in range(2)
    )

    assert first["losses"] == second["losses"]
    for name in first.keys() - {"losses"}:
        assert first[name].tobytes() == second[name].tobytes(), name


@pytest.mark.long
def test_dense_weights_stay_the_same_bits_on_every_chip(checkpoint: Path) -> None:
    fleet = started(checkpoint, chips=3)
    before = fleet.live[0]._weights.dense.flat.copy()
    learned(fleet, [dealt(sequences(6), 3)])

    after = [chip._weights.dense.flat for chip in fleet.live.values()]
    assert not np.array_equal(before, after[0])
    assert all(each.tobytes() == after[0].tobytes() for each in after)


def test_an_evaluation_changes_nothing_and_finds_the_loss_of_the_next_step(
    checkpoint: Path,
) -> None:
    fleet = started(checkpoint, chips=2)
    micros = [dealt(sequences(4), 2)]
    before = fleet.state().values

    found = fleet.evaluate(micros)

    assert found.loss == fleet.evaluate(micros).loss
    after = fleet.state().values
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert fleet.step(micros, STEP).loss == found.loss


def test_an_evaluation_may_leave_chips_without_sequences(checkpoint: Path) -> None:
    fleet = started(checkpoint, chips=3)

    some = fleet.evaluate([dealt(sequences(2), 2)])

    assert some.loss == pytest.approx(
        started(checkpoint, chips=1).evaluate([sequences(2)]).loss, rel=1e-6
    )


@pytest.mark.slow
def test_the_loss_of_one_batch_falls_below_a_twentieth_of_a_nat(checkpoint: Path) -> None:
    fleet = started(checkpoint, chips=2, precision=Precision.BF16)
    micros = [dealt(sequences(2), 2)]
    quick = Optimization(learning_rate=1e-2, clip_norm=1.0, balance_coefficient=0.01)

    losses = [fleet.step(micros, quick).loss for _ in range(60)]

    assert losses[0] > 3
    assert losses[-1] < 0.05


def test_gradients_above_the_norm_are_clipped_to_it(checkpoint: Path) -> None:
    """Adam's step hides a scale; its first moment, after one step a tenth of it, does not."""
    loose, tight = (started(checkpoint, chips=2) for _ in range(2))
    micros = [dealt(sequences(4), 2)]
    norm = loose.step(
        micros, Optimization(learning_rate=1e-3, clip_norm=1e9, balance_coefficient=0)
    )
    clipped = Optimization(
        learning_rate=1e-3, clip_norm=norm.gradient_norm / 4, balance_coefficient=0
    )
    tight.step(micros, clipped)

    whole, quarter = loose.state().values, tight.state().values
    moments = [name for name in whole if name.startswith("first.")]
    squared = sum(float(np.square(whole[name] / 0.1, dtype=np.float64).sum()) for name in moments)
    assert np.sqrt(squared) == pytest.approx(norm.gradient_norm, rel=1e-4)
    for name in moments:
        np.testing.assert_allclose(quarter[name], whole[name] / 4, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize(
    "command",
    [
        CombineSums(layer=0, rows=np.zeros((1, 64), np.float32)),
        CombineGradients(
            layer=0,
            rows=np.zeros((1, 64), np.float32),
            weights=np.zeros((1, 3), np.float32),
            expert_share=np.zeros(12, np.float32),
            balance_scale=0.0,
        ),
        ApplyGradients(dense=np.zeros(1, np.float32), learning_rate=1.0, clip_factor=1.0),
    ],
)
def test_a_command_that_comes_out_of_turn_is_refused(checkpoint: Path, command: Any) -> None:
    chip = started(checkpoint, chips=1).live[0]

    with pytest.raises(AssertionError, match="idle"):
        chip.handle(command)


def test_a_micro_batch_may_not_begin_before_the_last_one_ended(checkpoint: Path) -> None:
    chip = started(checkpoint, chips=1).live[0]
    ((tokens, targets),) = sequences(1)
    begin = BeginTraining(tokens=tokens, targets=targets, loss_scale=1.0)
    chip.handle(begin)

    with pytest.raises(AssertionError, match="forward"):
        chip.handle(begin)

"""A training step as a conversation: who is asked what, and that chips keep in step."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emulator.chip.effects import CommandDone
from emulator.chip.training_commands import BeginTraining
from emulator.chip.training_effects import Scored
from emulator.ultraserver.training_lockstep import Optimization, TrainingLockstep
from tests.emulator.chip.in_process_training import InProcessTraining, started

STEP = Optimization(learning_rate=1e-3, clip_norm=1.0, balance_coefficient=0.01)


def begin(chips: int) -> dict[int, BeginTraining]:
    tokens = np.arange(6, dtype=np.int32).reshape(1, 6)
    return {
        chip: BeginTraining(tokens=tokens + chip, targets=tokens + 1, loss_scale=1 / (6 * chips))
        for chip in range(chips)
    }


def drive(lockstep: TrainingLockstep, fleet: InProcessTraining) -> list[tuple[str, int]]:
    """The kinds of commands of each round, and to how many chips they went."""
    rounds = []
    commands: Mapping[int, Any] = lockstep.start()
    while commands:
        (kind,) = {type(command).__name__ for command in commands.values()}
        rounds.append((kind, len(commands)))
        commands = lockstep.advance(fleet._ask(commands))
    return rounds


@pytest.fixture
def fleet(small_checkpoints: Mapping[str, Path]) -> InProcessTraining:
    return started(small_checkpoints["tied"], chips=2)  # two layers


def test_a_step_of_two_micro_batches_goes_there_and_back_twice_and_ends_once(
    fleet: InProcessTraining,
) -> None:
    lockstep = TrainingLockstep([begin(2), begin(2)], fleet._experts, STEP)

    rounds = [kind for kind, _ in drive(lockstep, fleet)]

    there_and_back = ["BeginTraining"]
    there_and_back += ["TrainExperts", "CombineSums"] * 2
    there_and_back += ["TrainExpertsBackward", "CombineGradients"] * 2
    assert rounds == [*there_and_back, *there_and_back, "ApplyGradients"]
    result = lockstep.result()
    assert result.counted == 24
    assert result.gradient_norm > 0
    assert result.balance > 0
    assert result.imbalance >= 1


def test_an_evaluation_goes_there_alone(fleet: InProcessTraining) -> None:
    lockstep = TrainingLockstep([begin(2)], fleet._experts, None)

    rounds = drive(lockstep, fleet)

    kinds = ["BeginTraining", *["TrainExperts", "CombineSums"] * 2]
    assert [kind for kind, _ in rounds] == kinds
    assert lockstep.result().gradient_norm == lockstep.result().balance == 0


def test_experts_of_a_chip_without_sequences_work_all_the_same(fleet: InProcessTraining) -> None:
    lockstep = TrainingLockstep([begin(1)], fleet._experts, None)

    rounds = dict(drive(lockstep, fleet))

    assert rounds == {"BeginTraining": 1, "TrainExperts": 2, "CombineSums": 1}


def test_chips_that_answer_differently_are_found_out(fleet: InProcessTraining) -> None:
    lockstep = TrainingLockstep([begin(2)], fleet._experts, None)
    lockstep.start()

    with pytest.raises(AssertionError):
        lockstep.advance({0: Scored(loss_sum=1.0, counted=1, balance=0.0), 1: CommandDone()})

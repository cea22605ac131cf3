"""Every command in every state of a chip: what it answers, and what is out of turn."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from emulator.chip.chip import Chip
from emulator.chip.commands import (
    BeginStep,
    Combine,
    Command,
    Hang,
    LoadExperts,
    Reduce,
    RepeatStep,
    ResetRank,
    RunExperts,
    SendExperts,
    StopChip,
    TakeExperts,
)
from emulator.chip.effects import (
    CommandDone,
    Dispatch,
    Effect,
    ExpertRows,
    ExpertWeights,
    PartialSums,
    StepDone,
)
from emulator.specs.step import NewRequest, RankStep, Scheduled
from tests.emulator.chip.in_process import GREEDY, NO_BITMASK, InProcessChips

TOKENS, HIDDEN, INTERMEDIATE, GROUPS, K = 5, 64, 24, 2, 4  # of the checkpoint "tied": two layers
SLOTS = 16


def f32(*shape: int) -> np.ndarray:
    return np.ones(shape, dtype=np.float32)


def begin(tokens: int) -> BeginStep:
    new = NewRequest(
        request_id="r",
        token_ids=list(range(50, 50 + TOKENS)),
        prompt_tokens=TOKENS,
        sampling=GREEDY,
        block_ids=[1],
    )
    scheduled = [Scheduled(request_id="r", first_position=0, new_tokens=tokens)]
    step = RankStep(rank=0, new=[new], scheduled=scheduled if tokens else [], finished=[])
    return BeginStep(step=step, grammar_bitmask=NO_BITMASK)


def combine(layer: int) -> Combine:
    return Combine(layer=layer, expert_rows=f32(TOKENS, K, HIDDEN))


def reduce(layer: int) -> Reduce:
    return Reduce(layer=layer, rows=f32(GROUPS, TOKENS, HIDDEN))


COMMANDS: dict[str, Command] = {
    "begin": begin(TOKENS),
    "begin without tokens": begin(0),
    "repeat": RepeatStep(),
    "reduce 0": reduce(0),
    "reduce 1": reduce(1),
    "combine 0": combine(0),
    "combine 1": combine(1),
    "reset": ResetRank(),
    "load": LoadExperts(layer=0, slots=[0], experts=[0]),
    "hang": Hang(),
    "stop": StopChip(),
}

# How a state is reached, and what the commands of `COMMANDS` lead to there: an effect and its
# layer. Whatever is not listed is out of turn.
Outcome = tuple[type[Effect], int | None]
State = tuple[list[str], dict[str, Outcome]]
ANYWHERE: dict[str, Outcome] = {"reset": (CommandDone, None)}
RESTING: dict[str, Outcome] = {**ANYWHERE, "begin without tokens": (StepDone, None)}

ALONE: dict[str, State] = {
    "idle": ([], {**RESTING, "begin": (Dispatch, 0)}),
    "layer 0": (
        ["begin"],
        {**ANYWHERE, "combine 0": (Dispatch, 1), "repeat": (Dispatch, 0)},
    ),
    "last layer": (
        ["begin", "combine 0"],
        {**ANYWHERE, "combine 1": (StepDone, None), "repeat": (Dispatch, 0)},
    ),
    "repeated": (
        ["begin", "combine 0", "repeat"],
        {**ANYWHERE, "combine 0": (Dispatch, 1), "repeat": (Dispatch, 0)},
    ),
    "reset": (["begin", "combine 0", "reset"], {**RESTING, "begin": (Dispatch, 0)}),
}
OF_A_PAIR: dict[str, State] = {
    "idle": ([], {**RESTING, "begin": (PartialSums, 0)}),
    "attended 0": (
        ["begin"],
        {**ANYWHERE, "reduce 0": (Dispatch, 0), "repeat": (PartialSums, 0)},
    ),
    "dispatched 0": (
        ["begin", "reduce 0"],
        {**ANYWHERE, "combine 0": (PartialSums, 1), "repeat": (PartialSums, 0)},
    ),
    "attended 1": (
        ["begin", "reduce 0", "combine 0"],
        {**ANYWHERE, "reduce 1": (Dispatch, 1), "repeat": (PartialSums, 0)},
    ),
    "dispatched 1": (
        ["begin", "reduce 0", "combine 0", "reduce 1"],
        {**ANYWHERE, "combine 1": (StepDone, None), "repeat": (PartialSums, 0)},
    ),
    "done": (
        ["begin", "reduce 0", "combine 0", "reduce 1", "combine 1", "reset"],
        {**RESTING, "begin": (PartialSums, 0)},
    ),
}
CASES = [
    pytest.param(tp, path, command, outcomes.get(command), id=f"tp{tp}-{state}-{command}")
    for tp, states in ((1, ALONE), (2, OF_A_PAIR))
    for state, (path, outcomes) in states.items()
    for command in COMMANDS
]


def chip_of(directory: Path, tp: int, index: int) -> Chip:
    machine = InProcessChips(directory, chips=tp, tp=tp, kv_blocks=4)
    return machine.chips[index]


def layer_of(effect: Effect) -> int | None:
    return getattr(effect, "layer", None)


@pytest.mark.long
@pytest.mark.parametrize(("tp", "path", "command", "outcome"), CASES)
def test_a_command_is_answered_in_its_turn_and_refused_out_of_it(
    tp: int,
    path: list[str],
    command: str,
    outcome: Outcome | None,
    small_checkpoints: Mapping[str, Path],
) -> None:
    chip = chip_of(small_checkpoints["tied"], tp, tp - 1)
    for before in path:
        chip.handle(COMMANDS[before])

    if outcome is None:
        with pytest.raises(AssertionError):
            chip.handle(COMMANDS[command])
    else:
        effect = chip.handle(COMMANDS[command])
        assert (type(effect), layer_of(effect)) == outcome


@pytest.mark.parametrize(("tp", "states"), [(1, ALONE), (2, OF_A_PAIR)])
def test_experts_are_run_read_and_written_in_any_state_and_change_none(
    tp: int, states: dict[str, State], small_checkpoints: Mapping[str, Path]
) -> None:
    run = RunExperts(layer=0, rows=f32(1, HIDDEN), row_of_pair=np.array([0]), counts=np.array([1]))
    for path, outcomes in states.values():
        chip = chip_of(small_checkpoints["tied"], tp, 0)
        for before in path:
            chip.handle(COMMANDS[before])

        sent = chip.handle(SendExperts(layer=0, slots=[0]))
        assert isinstance(sent, ExpertWeights)
        taken = TakeExperts(
            layer=0, slots=[0], gate_up=sent.gate_up, down=sent.down, biases=sent.biases
        )
        assert chip.handle(taken) == CommandDone()
        assert isinstance(chip.handle(run), ExpertRows)
        onward = next(name for name in outcomes if name not in ANYWHERE)
        assert (type(chip.handle(COMMANDS[onward])),) == outcomes[onward][:1]

"""What the chips of one rank share: heads, tokens to dispatch, and what the leading one sampled."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from emulator.chip.commands import BeginStep, Reduce, RunExperts, SendExperts, TakeExperts
from emulator.chip.effects import (
    CommandDone,
    Dispatch,
    ExpertRows,
    ExpertWeights,
    PartialSums,
    StepDone,
)
from emulator.specs.placement import EMPTY, ExpertPlacement
from emulator.specs.step import NewRequest, RankStep, Scheduled
from tests.emulator.chip.in_process import GREEDY, NO_BITMASK, InProcessChips

PROMPT = list(range(50, 57))


def new() -> NewRequest:
    return NewRequest(
        request_id="r",
        token_ids=PROMPT,
        prompt_tokens=len(PROMPT),
        sampling=GREEDY,
        block_ids=[1],
    )


def tokens(first: int, count: int, *, fresh: bool = False) -> RankStep:
    scheduled = Scheduled(request_id="r", first_position=first, new_tokens=count)
    return RankStep(rank=0, new=[new()] if fresh else [], scheduled=[scheduled], finished=[])


@pytest.fixture
def directory(small_checkpoints: Mapping[str, Path]) -> Path:
    return small_checkpoints["as_many_kv_heads"]  # four head groups of one query head each


def attended(machine: InProcessChips) -> list[PartialSums]:
    effects = []
    for chip in machine.chips:
        effect = chip.handle(BeginStep(step=tokens(0, 7, fresh=True), grammar_bitmask=NO_BITMASK))
        assert isinstance(effect, PartialSums)
        effects.append(effect)
    return effects


@pytest.mark.long
@pytest.mark.parametrize("tp", [2, 4])
def test_each_attends_its_own_head_groups_to_the_bits_that_fewer_chips_give(
    tp: int, directory: Path
) -> None:
    rows = [effect.rows for effect in attended(InProcessChips(directory, chips=tp, tp=tp))]

    assert {part.shape for part in rows} == {(4 // tp, 7, 64)}
    pair = [effect.rows for effect in attended(InProcessChips(directory, chips=2, tp=2))]
    assert (np.concatenate(rows) == np.concatenate(pair)).all()


@pytest.mark.long
@pytest.mark.parametrize("tp", [2, 4])
def test_together_they_dispatch_every_token_of_the_rank_once_in_order(
    tp: int, directory: Path
) -> None:
    machine = InProcessChips(directory, chips=tp, tp=tp)
    rows = np.concatenate([effect.rows for effect in attended(machine)])

    dispatches = [chip.handle(Reduce(layer=0, rows=rows)) for chip in machine.chips]

    alone = InProcessChips(directory, chips=1).chips[0]
    whole = alone.handle(BeginStep(step=tokens(0, 7, fresh=True), grammar_bitmask=NO_BITMASK))
    assert isinstance(whole, Dispatch)
    parts = [effect for effect in dispatches if isinstance(effect, Dispatch)]
    assert [len(part.hidden) for part in parts] == {2: [3, 4], 4: [1, 2, 2, 2]}[tp]
    assert (np.concatenate([part.hidden for part in parts]) == whole.hidden).all()
    assert (np.concatenate([part.chosen for part in parts]) == whole.chosen).all()


@pytest.mark.long
def test_a_rank_with_fewer_tokens_than_chips_leaves_some_without_any(directory: Path) -> None:
    machine = InProcessChips(directory, chips=4, tp=4)
    alone = InProcessChips(directory, chips=1)

    for given in (tokens(0, 7, fresh=True), tokens(7, 1)):
        expected = alone.step([given])[0]
        assert machine.step([given])[0].token_ids.tolist() == expected.token_ids.tolist()


@pytest.mark.long
def test_only_the_leading_one_samples_and_the_others_are_told_with_the_next_step(
    directory: Path,
) -> None:
    machine = InProcessChips(directory, chips=2, tp=2)
    first = machine.step([tokens(0, 7, fresh=True)])[0]
    assert first.request_ids == ["r"]
    assert [len(chip._requests["r"]) for chip in machine.chips] == [8, 7]
    follower = machine.chips[1]

    with pytest.raises(AssertionError):  # it does not know the token that it is to compute
        follower.handle(BeginStep(step=tokens(7, 1), grammar_bitmask=NO_BITMASK))
    told = BeginStep(
        step=tokens(7, 1),
        grammar_bitmask=NO_BITMASK,
        sampled_ids=first.request_ids,
        sampled_tokens=first.token_ids,
    )
    assert isinstance(follower.handle(told), PartialSums)
    assert follower._requests["r"].tokens(7, 8).tolist() == first.token_ids.tolist()


def test_what_finishes_with_the_step_that_tells_of_its_last_token_is_forgotten(
    directory: Path,
) -> None:
    machine = InProcessChips(directory, chips=2, tp=2)
    first = machine.step([tokens(0, 7, fresh=True)])[0]
    ended = BeginStep(
        step=RankStep(rank=0, new=[], scheduled=[], finished=["r"]),
        grammar_bitmask=NO_BITMASK,
        sampled_ids=first.request_ids,
        sampled_tokens=first.token_ids,
    )

    effect = machine.chips[1].handle(ended)

    assert isinstance(effect, StepDone)
    assert (effect.output.rank, effect.output.request_ids) == (0, [])
    assert len(machine.chips[1]._requests) == 0


class TestSlots:
    """Experts that are read out, written in, and slots that wait for some."""

    @pytest.fixture
    def machine(self, directory: Path) -> InProcessChips:
        slots = np.full((3, 1, 20), EMPTY, dtype=np.int64)
        slots[:, 0, :16] = np.arange(16)
        placement = ExpertPlacement(experts=16, ep=1, expert_of_slot=slots)
        return InProcessChips(directory, chips=1, placement=placement)

    def test_what_is_written_is_read_back_from_its_layer_and_slots_alone(
        self, machine: InProcessChips
    ) -> None:
        (chip,) = machine.chips
        before = [chip.handle(SendExperts(layer=layer, slots=list(range(20)))) for layer in (0, 1)]
        rng = np.random.default_rng(0)
        gate_up = rng.standard_normal((2, 64, 48)).astype(np.float32)
        down = rng.standard_normal((2, 24, 64)).astype(np.float32)

        none = np.zeros((2, 0), dtype=np.float32)
        taking = TakeExperts(layer=1, slots=[18, 3], gate_up=gate_up, down=down, biases=none)
        done = chip.handle(taking)
        after = [chip.handle(SendExperts(layer=layer, slots=list(range(20)))) for layer in (0, 1)]

        assert done == CommandDone()
        for layer in (0, 1):
            old, now = before[layer], after[layer]
            assert isinstance(old, ExpertWeights)
            assert isinstance(now, ExpertWeights)
            for slot in range(20):
                written = {18: 0, 3: 1}.get(slot) if layer == 1 else None
                assert (
                    now.gate_up[slot]
                    == (old.gate_up[slot] if written is None else gate_up[written])
                ).all()
                assert (
                    now.down[slot] == (old.down[slot] if written is None else down[written])
                ).all()

    def test_what_was_read_does_not_change_with_what_is_written_later(
        self, machine: InProcessChips
    ) -> None:
        (chip,) = machine.chips
        read = chip.handle(SendExperts(layer=0, slots=[0, 1]))
        assert isinstance(read, ExpertWeights)
        kept = read.gate_up.copy()

        chip.handle(
            TakeExperts(
                layer=0,
                slots=[1, 0],
                gate_up=read.gate_up,
                down=read.down,
                biases=read.biases,
            )
        )

        assert (read.gate_up == kept).all()
        swapped = chip.handle(SendExperts(layer=0, slots=[1, 0]))
        assert isinstance(swapped, ExpertWeights)
        assert (swapped.gate_up == kept).all()

    def test_slots_beyond_the_placement_of_the_step_are_left_alone(
        self, machine: InProcessChips
    ) -> None:
        (chip,) = machine.chips
        rows = np.random.default_rng(1).standard_normal((2, 64)).astype(np.float32)
        answers = []
        for slots in (16, 20):
            counts = np.zeros(slots, dtype=np.int64)
            counts[[3, 15]] = 1
            run = RunExperts(layer=2, rows=rows, row_of_pair=np.array([1, 0]), counts=counts)
            answers.append(chip.handle(run))

        first, second = answers
        assert isinstance(first, ExpertRows)
        assert isinstance(second, ExpertRows)
        assert (first.rows == second.rows).all()

"""A chip made from its share is the one of that place, and reads experts that others hold too."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from emulator.chip.chip_share import ChipShare, load_chip, load_slots
from emulator.chip.commands import BeginStep, LoadExperts, SendExperts
from emulator.chip.effects import CommandDone, Dispatch, ExpertWeights, PartialSums
from emulator.errors import CheckpointError
from emulator.specs.placement import EMPTY
from emulator.specs.step import NewRequest, RankStep, Scheduled
from tests.emulator.chip.in_process import GREEDY, NO_BITMASK, InProcessChips

LAYERS, EXPERTS = 3, 16


@pytest.fixture
def directory(small_checkpoints: Mapping[str, Path]) -> Path:
    return small_checkpoints["wide_heads"]


def share(directory: Path, experts: list[int], *, tp: int = 1, tp_index: int = 0) -> ChipShare:
    return ChipShare(
        weights_dir=str(directory),
        experts=[experts] * LAYERS,
        kv_blocks=3,
        block_tokens=16,
        tp=tp,
        tp_index=tp_index,
    )


def prefill(blocks: list[int]) -> BeginStep:
    tokens = 16 * len(blocks)
    new = NewRequest(
        request_id="r",
        token_ids=[7 + position % 90 for position in range(tokens)],
        prompt_tokens=tokens,
        sampling=GREEDY,
        block_ids=blocks,
    )
    scheduled = [Scheduled(request_id="r", first_position=0, new_tokens=tokens)]
    step = RankStep(rank=0, new=[new], scheduled=scheduled, finished=[])
    return BeginStep(step=step, grammar_bitmask=NO_BITMASK)


def test_it_is_the_chip_of_that_place_in_its_rank(directory: Path) -> None:
    machine = InProcessChips(directory, chips=2, tp=2)
    for index in range(2):
        chip = load_chip(share(directory, list(range(8)), tp=2, tp_index=index))

        found, expected = (each.handle(prefill([1, 2])) for each in (chip, machine.chips[index]))

        assert isinstance(found, PartialSums)
        assert isinstance(expected, PartialSums)
        assert (found.rows == expected.rows).all()


def test_its_pool_has_the_blocks_that_it_was_given_and_no_more(directory: Path) -> None:
    assert isinstance(load_chip(share(directory, [0])).handle(prefill([0, 1, 2])), Dispatch)
    with pytest.raises(IndexError):
        load_chip(share(directory, [0])).handle(prefill([0, 1, 3]))


def test_experts_read_from_the_checkpoint_are_those_that_other_chips_hold(directory: Path) -> None:
    holder = load_chip(share(directory, list(range(EXPERTS))))
    own = share(directory, [4, 5, EMPTY])
    chip = load_chip(own)

    asked = LoadExperts(layer=2, slots=[2, 0], experts=[11, 3])
    assert load_slots(chip, own, asked) == CommandDone()

    found = chip.handle(SendExperts(layer=2, slots=[2, 0, 1]))
    expected = holder.handle(SendExperts(layer=2, slots=[11, 3, 5]))
    untouched = chip.handle(SendExperts(layer=1, slots=[0, 2]))
    assert isinstance(found, ExpertWeights)
    assert isinstance(expected, ExpertWeights)
    assert isinstance(untouched, ExpertWeights)
    assert (found.gate_up == expected.gate_up).all()
    assert (found.down == expected.down).all()
    assert not untouched.down[1].any()
    assert not np.array_equal(found.down[0], found.down[1])


def test_a_directory_that_is_gone_is_a_checkpoint_error(directory: Path, tmp_path: Path) -> None:
    gone = share(tmp_path / "gone", [0])
    with pytest.raises(CheckpointError, match="gone"):
        load_chip(gone)
    chip = load_chip(share(directory, [0]))
    with pytest.raises(CheckpointError, match="gone"):
        load_slots(chip, gone, LoadExperts(layer=0, slots=[0], experts=[0]))

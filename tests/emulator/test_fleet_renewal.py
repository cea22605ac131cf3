"""Running chips read another checkpoint: real processes, and chips in this process."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from emulator.chip.commands import LoadExperts, LoadWeights, SendExperts
from emulator.compute.checkpoint import check_weights
from emulator.data import SMALL_MOE_DIR
from emulator.errors import CheckpointError, ChipLost
from emulator.fleet import Fleet
from emulator.specs.placement import EMPTY, ExpertPlacement, ExpertTransfer
from emulator.specs.step import NewRequest, RankStep, Scheduled
from tests.emulator.chip.in_process import GREEDY
from tests.emulator.chip.in_process_fleet import InProcessFleet
from tests.serving.plugin.other_weights import other_weights

pytestmark = pytest.mark.long

CHIPS, EP = 4, 2
PROMPT = list(range(300, 320))


def placement_of(chips: int, ep: int) -> ExpertPlacement:
    arch = check_weights(SMALL_MOE_DIR)
    return ExpertPlacement.even(layers=arch.layers, experts=arch.experts, chips=chips, ep=ep)


def fleet_on(kind: type[Fleet], weights: Path = SMALL_MOE_DIR, *, tp: int = 1) -> Fleet:
    fleet = kind(
        weights_dir=weights,
        placement=placement_of(CHIPS, EP),
        tp=tp,
        kv_blocks=16,
        block_tokens=16,
        slots_max=80,
    )
    fleet.start()
    return fleet


class Texts:
    """What ranks say to one prompt, each time as a new request."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._count = 0

    def of(self, rank: int, tokens: int = 6) -> list[int]:
        self._count += 1
        name, text = f"r{self._count}", list[int]()
        for _ in range(tokens):
            known = len(PROMPT) + len(text) - 1 if text else 0
            every = [*PROMPT, *text]
            new = NewRequest(
                request_id=name,
                token_ids=every,
                prompt_tokens=len(PROMPT),
                sampling=GREEDY,
                block_ids=[1, 2],
            )
            step = RankStep(
                rank=rank,
                new=[] if text else [new],
                scheduled=[
                    Scheduled(request_id=name, first_position=known, new_tokens=len(every) - known)
                ],
                finished=[f"r{self._count - 1}"] if not text and self._count > 1 else [],
            )
            output = self._fleet.step([step], {}).outputs[rank]
            text.extend(output.token_ids.tolist())
        return text


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return other_weights(tmp_path_factory.mktemp("weights") / "other", seed=5)


@pytest.fixture(scope="module")
def right(other: Path) -> dict[Path, list[int]]:
    """What a fleet that starts with the weights says."""
    return {
        weights: Texts(fleet_on(InProcessFleet, weights)).of(0)
        for weights in (SMALL_MOE_DIR, other)
    }


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    fleet = fleet_on(InProcessFleet)
    yield fleet
    fleet.stop()


@pytest.mark.fleet
@pytest.mark.slow
@pytest.mark.parametrize("tp", [1, 2])
def test_real_chips_say_what_the_new_weights_say_and_the_other_block_what_the_old_do(
    other: Path, right: dict[Path, list[int]], tp: int
) -> None:
    fleet = fleet_on(Fleet, tp=tp)
    try:
        texts = Texts(fleet)
        last = CHIPS // tp - 1
        assert texts.of(0) == right[SMALL_MOE_DIR]
        fleet.renew([0, 1], other)
        assert texts.of(0) == right[other] != right[SMALL_MOE_DIR]
        assert texts.of(last) == right[SMALL_MOE_DIR]
        fleet.renew([0, 1], SMALL_MOE_DIR)
        assert texts.of(0) == right[SMALL_MOE_DIR]
    finally:
        fleet.stop()


def test_a_chip_that_was_not_there_reads_the_new_weights_when_it_comes(
    fleet: Fleet, other: Path, right: dict[Path, list[int]]
) -> None:
    fleet.remove([1], [1])
    fleet.renew([0, 1], other)
    fleet.add(1, placement_of(CHIPS, EP))
    assert Texts(fleet).of(1) == right[other]


@pytest.mark.parametrize("chip", [0, 1])
def test_weights_that_one_chip_cannot_read_change_no_chip(
    fleet: Fleet, tmp_path: Path, right: dict[Path, list[int]], chip: int
) -> None:
    broken = other_weights(tmp_path / "broken", seed=6)
    assert isinstance(fleet, InProcessFleet)
    host_chip = fleet.host.chips[chip]
    answer = host_chip.answer

    def gone(command):  # type: ignore[no-untyped-def]
        if isinstance(command, LoadWeights) and command.weights_dir == str(broken):
            shutil.rmtree(broken, ignore_errors=True)
        return answer(command)

    host_chip.answer = gone  # type: ignore[method-assign]
    with pytest.raises(CheckpointError, match="broken"):
        fleet.renew([0, 1], broken)
    texts = Texts(fleet)
    assert texts.of(0) == texts.of(1) == right[SMALL_MOE_DIR]


def test_another_architecture_is_not_read(
    fleet: Fleet, tmp_path: Path, right: dict[Path, list[int]]
) -> None:
    broken = other_weights(tmp_path / "broken", seed=6)
    config = broken / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"rope_theta": 7.0}))
    with pytest.raises(CheckpointError, match="another architecture"):
        fleet.renew([0], broken)
    assert Texts(fleet).of(0) == right[SMALL_MOE_DIR]


def test_a_chip_that_is_lost_meanwhile_is_told_of_and_the_others_have_read(
    fleet: Fleet, other: Path, right: dict[Path, list[int]]
) -> None:
    assert isinstance(fleet, InProcessFleet)
    fleet.doom(1, LoadWeights)
    with pytest.raises(ChipLost) as loss:
        fleet.renew([0, 1], other)
    assert loss.value.chips == (1,)
    fleet.remove([1], [1])
    fleet.add(1, placement_of(CHIPS, EP))
    texts = Texts(fleet)
    assert texts.of(0) == texts.of(1) == right[other]


def test_an_expert_never_comes_from_a_chip_with_other_weights(
    fleet: Fleet, other: Path, right: dict[Path, list[int]]
) -> None:
    fleet.renew([0, 1], other)
    slots = fleet.placement.padded(80)
    expert, source = int(slots[0, 3, 0]), 3
    first_free = int(np.flatnonzero(slots[0, 0] == EMPTY)[0])
    slots[0, 0, first_free] = expert  # of chip 3, in another block
    slots[0, 1][slots[0, 1] == expert] = EMPTY
    transfer = ExpertTransfer(
        layer=0, expert=expert, source_chip=source, source_slot=0, chip=0, slot=first_free
    )
    assert isinstance(fleet, InProcessFleet)
    fleet.host.sent.clear()
    fleet.place(
        ExpertPlacement(experts=fleet.placement.experts, ep=EP, expert_of_slot=slots), [transfer]
    )
    kinds = [type(command) for _, command in fleet.host.sent]
    assert LoadExperts in kinds
    assert SendExperts not in kinds
    assert Texts(fleet).of(0) == right[other]

"""A fleet whose chips draft: a rank's chips agree, and one of them may be lost while it drafts."""

from pathlib import Path

import numpy as np
import pytest

from emulator.chip.commands import Command
from emulator.chip.effects import Effect
from emulator.errors import ChipLost
from emulator.specs.placement import EMPTY, ExpertPlacement, ExpertTransfer
from emulator.specs.step import RankOutput, RankStep, Scheduled
from tests.emulator.chip.draft_layer_checkpoint import make_draft_checkpoint
from tests.emulator.chip.in_process import InProcessChips, serve
from tests.emulator.chip.in_process_fleet import InProcessFleet, prompts_on
from tests.emulator.chip.served_drafts import cut, draft_texts

LAYERS = 3  # of the model; the one that drafts is the next
PLACEMENT = ExpertPlacement.even(layers=2, experts=16, chips=4, ep=4)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("drafts") / "own-ends"
    make_draft_checkpoint(directory)
    return directory


def fleet_of(checkpoint: Path) -> InProcessFleet:
    """Two ranks of two chips."""
    fleet = InProcessFleet(
        weights_dir=checkpoint,
        placement=PLACEMENT,
        tp=2,
        kv_blocks=16,
        block_tokens=16,
        slots_max=8,
        draft_tokens=2,
    )
    fleet.start()
    return fleet


def steps() -> list[RankStep]:
    """A prompt on each rank."""
    return prompts_on(2, 20, [1, 2, 3])


def verifying(outputs: dict[int, RankOutput]) -> list[RankStep]:
    """The step after, with the drafts of the last one."""
    return [
        RankStep(
            rank=rank,
            new=[],
            scheduled=[
                Scheduled(
                    request_id=f"r{rank}",
                    first_position=20,
                    new_tokens=3,
                    draft_tokens=output.drafts[f"r{rank}"],
                )
            ],
            finished=[],
        )
        for rank, output in sorted(outputs.items())
    ]


def said(outputs: dict[int, RankOutput]) -> dict[int, tuple[list[int], dict[str, list[int]]]]:
    return {rank: (output.token_ids.tolist(), output.drafts) for rank, output in outputs.items()}


def expected(checkpoint: Path) -> list[dict[int, tuple[list[int], dict[str, list[int]]]]]:
    """Of both steps, without a fleet."""
    chips = InProcessChips(checkpoint, chips=4, tp=2, kv_blocks=16, draft_tokens=2)
    first = chips.step(steps())
    return [said(first), said(chips.step(verifying(first)))]


@pytest.mark.long
def test_it_computes_what_chips_without_a_fleet_compute(checkpoint: Path) -> None:
    fleet = fleet_of(checkpoint)
    first = fleet.step(steps(), {})
    second = fleet.step(verifying(first.outputs), {})

    assert [said(first.outputs), said(second.outputs)] == expected(checkpoint)
    assert first.expert_pairs is not None
    assert first.expert_pairs.sum(axis=(1, 2)).tolist() == [2 * 20 * 4] * (LAYERS - 1)


@pytest.mark.long
@pytest.mark.parametrize("passes", [0, 1])
def test_a_chip_lost_while_it_drafts_breaks_the_step_off_and_the_other_rank_finishes_it(
    passes: int, checkpoint: Path
) -> None:
    fleet = fleet_of(checkpoint)
    lost = fleet.host.chips[3]
    answer = lost.answer

    def dying(command: Command) -> Effect | None:
        running = lost.chip._running
        if running is not None and running.guesses is not None:
            lost.alive = lost.alive and running.guesses._passes < passes
        return answer(command)

    lost.answer = dying  # type: ignore[method-assign]
    with pytest.raises(ChipLost) as loss:
        fleet.step(steps(), {})
    assert loss.value.chips == (3,)

    fleet.remove([3], [1])
    held = np.pad(PLACEMENT.expert_of_slot, ((0, 0), (0, 0), (0, 4)), constant_values=EMPTY)
    fleet.add(3, ExpertPlacement(experts=16, ep=4, expert_of_slot=held))
    first = fleet.resume([1])

    whole, after = expected(checkpoint)
    assert said(first.outputs) == {0: whole[0]}
    second = fleet.step(verifying(first.outputs), {})
    assert said(second.outputs) == {0: after[0]}


@pytest.mark.slow
def test_144_chips_draft_through_the_hub_with_the_texts_of_one_chip_without(tmp_path: Path) -> None:
    experts = {"n_routed_experts": 144, "n_group": 4, "topk_group": 2}
    make_draft_checkpoint(tmp_path, experts, own_ends=False, agrees=True)
    prompts = {f"r{n}": list(range(50 + n, 70 + n)) for n in range(72)}
    expected = serve(InProcessChips(tmp_path, chips=1, kv_blocks=300), prompts, new_tokens=6)

    machine = InProcessChips(tmp_path, chips=144, tp=2, kv_blocks=16, draft_tokens=2)
    texts, drafts = draft_texts(machine, prompts, new_tokens=6)

    assert cut(texts, 6) == expected
    steps = [len(of_request) for of_request in drafts.values()]
    assert len(steps) == len(prompts)
    assert min(steps) < 6, "no draft was right"


def test_experts_of_the_layer_that_drafts_move_with_the_last_layer_s(checkpoint: Path) -> None:
    fleet = fleet_of(checkpoint)
    held = np.pad(PLACEMENT.expert_of_slot, ((0, 0), (0, 0), (0, 1)), constant_values=EMPTY)
    moving = int(held[1, 0, 2])
    held[1, 0, 2], held[1, 3, 4] = EMPTY, moving
    transfer = ExpertTransfer(layer=1, expert=moving, chip=3, slot=4, source_chip=0, source_slot=2)
    fleet.place(ExpertPlacement(experts=16, ep=4, expert_of_slot=held), [transfer])

    first = fleet.step(steps(), {})

    assert said(first.outputs) == expected(checkpoint)[0]

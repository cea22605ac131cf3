"""The stand-in for the fleet does what the fleet does: the same texts as chips without one."""

import numpy as np
import pytest

from emulator.chip.commands import RunExperts
from emulator.data import SMALL_MOE_DIR
from emulator.errors import ChipLost
from emulator.specs.placement import ExpertPlacement
from emulator.specs.step import RankStep
from tests.emulator.chip.in_process import InProcessChips
from tests.emulator.chip.in_process_fleet import InProcessFleet, prompts_on

pytestmark = pytest.mark.long

EVEN = ExpertPlacement.even(layers=4, experts=144, chips=4, ep=4)


def in_process_fleet() -> InProcessFleet:
    fleet = InProcessFleet(
        weights_dir=SMALL_MOE_DIR, placement=EVEN, kv_blocks=16, block_tokens=16, slots_max=72
    )
    fleet.start()
    return fleet


def steps() -> list[RankStep]:
    """One prompt on each rank."""
    return prompts_on(4, 10, [1])


def tokens(outputs: dict) -> dict[str, int]:
    return {
        name: int(token)
        for output in outputs.values()
        for name, token in zip(output.request_ids, output.token_ids, strict=True)
    }


def test_it_computes_what_chips_without_a_fleet_compute() -> None:
    plain = InProcessChips(SMALL_MOE_DIR, chips=4, kv_blocks=16)
    result = in_process_fleet().step(steps(), {})

    assert tokens(result.outputs) == tokens(plain.step(steps()))
    assert result.expert_pairs is not None
    assert result.expert_pairs.sum(axis=(1, 2)).tolist() == [4 * 10 * 8] * 4


@pytest.mark.parametrize("way", ["killed", "hung", "doomed"])
def test_a_chip_that_is_gone_breaks_the_step_off_and_the_others_finish_it(way: str) -> None:
    fleet = in_process_fleet()
    {
        "killed": lambda: fleet.kill(1),
        "hung": lambda: fleet.hang(1),
        "doomed": lambda: fleet.doom(1, RunExperts),
    }[way]()
    with pytest.raises(ChipLost) as loss:
        fleet.step(steps(), {})
    assert loss.value.chips == (1,)

    fleet.remove([1], [1])
    spare = ExpertPlacement(
        experts=144,
        ep=4,
        expert_of_slot=np.pad(EVEN.expert_of_slot, ((0, 0), (0, 0), (0, 36)), constant_values=-1),
    )
    fleet.add(1, spare)
    result = fleet.resume([1])

    expected = tokens(InProcessChips(SMALL_MOE_DIR, chips=4, kv_blocks=16).step(steps()))
    assert tokens(result.outputs) == {name: t for name, t in expected.items() if name != "r1"}

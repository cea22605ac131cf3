"""How live chips follow a recovery: who leaves, who comes, what is read, in which order."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from emulator.chip.commands import LoadExperts, ResetRank
from emulator.faults.survival import SurvivalPlan
from emulator.specs.fault import Fault, FaultKind
from emulator.specs.partition import Partition
from emulator.specs.seating import VACANT, Seating
from serving.engine.fleet_recovery import follow, positions_vacated, ranks_without_kv
from tests.serving.plugin.live_parts import LiveParts, live_parts


def seating(*chips: int) -> Seating:
    return Seating(chip_of_position=np.array(chips, dtype=np.int64))


def recovery_of(parts: LiveParts, *chips: int) -> SurvivalPlan:
    """What the machine does when these chips are lost."""
    faults = [Fault(kind=FaultKind.LOSE_CHIP, chip=chip) for chip in chips]
    return parts.machine.recovery_plan(parts.machine.after(faults)).recovery


def followed(parts: LiveParts, recovery: SurvivalPlan, **options: Any) -> list[tuple[int, object]]:
    """Let the chips follow; returns what they were told."""
    parts.fleet.host.sent.clear()
    before, partition = parts.machine.seating, parts.machine.partition
    follow(
        parts.fleet,
        before,
        recovery,
        partition,
        lost_ranks=ranks_without_kv(before, recovery, partition),
        **({"same_model": True} | options),
    )
    return parts.fleet.host.sent


@pytest.mark.parametrize(
    ("before", "after", "vacated"),
    [
        ((0, 1, 2, 3), (0, 1, 2, 3), []),
        ((0, 1, 2, 3), (0, VACANT, 2, 3), [1]),
        ((0, 1, 2, 3), (0, 5, 2, 4), [1, 3]),  # replaced by others
        ((0, VACANT, 2, 3), (0, 1, 2, 3), []),  # nobody left: one came home
        ((0, VACANT, 2, 3), (0, 1, VACANT, 3), [2]),
    ],
)
def test_a_position_is_vacated_when_its_chip_has_gone(
    before: tuple[int, ...], after: tuple[int, ...], vacated: list[int]
) -> None:
    recovery = replace(recovery_of(live_parts()), seating=seating(*after))

    assert positions_vacated(seating(*before), recovery).tolist() == vacated


@pytest.mark.long
def test_ranks_without_kv_lost_a_chip_got_a_new_one_or_closed() -> None:
    partition = Partition(chips=8, tp=2, ep=8)
    whole = replace(
        recovery_of(live_parts()),
        seating=seating(0, 1, 2, VACANT, 4, 5, 6, 7),
        restarted_ranks=(2,),
        lost_ranks=(1, 3),
    )

    assert ranks_without_kv(seating(*range(8)), whole, partition) == {1, 2, 3}


@pytest.mark.long
def test_survivors_read_what_is_missing_and_the_lost_chip_s_mates_forget() -> None:
    parts = live_parts(tp=2)
    told = followed(parts, recovery := recovery_of(parts, 0))

    assert parts.fleet.live_chips == {1, 2, 3}
    resets = [chip for chip, command in told if isinstance(command, ResetRank)]
    assert resets == [1]
    read = [
        (chip, command.layer, expert)
        for chip, command in told
        if isinstance(command, LoadExperts)
        for expert in command.experts
    ]
    assert sorted(read) == sorted((each.chip, each.layer, each.expert) for each in recovery.reloads)
    # All 36 experts of chip 0, in each of 4 layers, once.
    assert len(read) == 4 * 36
    assert {each[1:] for each in read} == {(layer, e) for layer in range(4) for e in range(36)}
    assert parts.fleet.placement is recovery.placement


def test_a_chip_that_takes_a_seat_reads_its_experts_as_it_starts() -> None:
    parts = live_parts(spares=1)
    before = parts.fleet.host.chips[2]
    told = followed(parts, recovery_of(parts, 2))

    assert parts.fleet.live_chips == {0, 1, 2, 3}
    assert parts.fleet.host.chips[2] is not before
    assert not any(isinstance(command, LoadExperts) for _, command in told)
    experts = parts.fleet.host.chips[2].share.experts
    assert [layer[:36] for layer in experts] == [list(range(72, 108))] * 4


@pytest.mark.long
def test_a_stand_in_s_experts_go_where_chips_are_left() -> None:
    parts = live_parts(model="llama-3.1-8b")
    followed(parts, recovery_of(parts, 1), same_model=False)

    placement = parts.fleet.placement
    assert placement.missing() == []
    assert (placement.expert_of_slot[:, 1] == -1).all()


@pytest.mark.long
def test_the_same_recovery_again_leads_to_the_same_chips() -> None:
    # As when another chip was lost in the middle, and the machine's answer is still the same.
    parts = live_parts(spares=1)
    recovery = recovery_of(parts, 2)
    followed(parts, recovery)
    first = parts.fleet.host.chips[2]
    followed(parts, recovery)

    assert parts.fleet.live_chips == {0, 1, 2, 3}
    assert parts.fleet.host.chips[2] is not first
    assert parts.fleet.placement.missing() == []


@pytest.mark.long
def test_a_seat_that_was_empty_and_is_taken_again_after_a_break_gets_one_chip() -> None:
    parts = live_parts()
    lost = parts.machine.after([Fault(kind=FaultKind.LOSE_CHIP, chip=2)])
    recovery_plan = parts.machine.recovery_plan(lost)
    followed(parts, recovery_plan.recovery)
    parts.machine.apply(lost, recovery_plan)
    home = parts.machine.recovery_plan(lost.healed()).recovery
    for _ in range(2):
        followed(parts, home)

    assert parts.fleet.live_chips == {0, 1, 2, 3}

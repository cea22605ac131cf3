from dataclasses import replace

import numpy as np
import pytest

from emulator.faults.survival import survival
from emulator.specs.fault import Fault, FaultKind, LinkTier
from emulator.specs.placement import EMPTY
from emulator.specs.seating import VACANT, Seating
from tests.emulator.faults.machine import (
    WEIGHTS,
    Machine,
    cut,
    lose,
    machine,
    pull,
    with_copies,
)

FULL = machine(chips=4, experts=8, layers=1)  # experts 2c and 2c + 1 on chip c
ROOMY = machine(chips=4, experts=8, layers=1, empty_slots=1)
COPIED = with_copies(ROOMY)  # and chip c copies expert 2c + 2 of the next
SPARED = machine(chips=4, experts=8, layers=1, spares=1)


def rows(held: Machine, *faults: Fault) -> list[list[int]]:
    """The experts of each position in layer 0."""
    slots = held.after(*faults).placement.expert_of_slot[0]
    return [[expert for expert in row if expert != EMPTY] for row in slots.tolist()]


def test_nothing_is_read_when_nothing_is_lost() -> None:
    slow = Fault(kind=FaultKind.SLOW_CHIP, chip=1, factor=4)

    recovery = FULL.after(slow, pull(), cut(2, LinkTier.BACKPLANE))

    assert recovery.survivable
    assert recovery.ranks_up.all()
    assert (recovery.lost_ranks, recovery.reloads, recovery.restored) == ((), (), ())
    assert recovery.reason == "4 of 4 ranks are up"


def test_eight_experts_do_not_fit_on_three_chips_of_two_slots() -> None:
    recovery = FULL.after(lose(1))

    assert not recovery.survivable
    assert recovery.reason == (
        "no rank can go on: block 0 closes: 8 experts do not fit into the 6 slots that are left"
    )
    assert recovery.lost_ranks == (0, 1, 2, 3)
    assert recovery.reloads == ()


def test_survivors_with_an_empty_slot_read_the_lost_experts_from_the_checkpoint() -> None:
    recovery = ROOMY.after(lose(1))

    assert recovery.survivable
    assert rows(ROOMY, lose(1)) == [[0, 1, 2], [], [4, 5, 3], [6, 7]]
    assert [(each.expert, each.chip, each.slot) for each in recovery.reloads] == [
        (2, 0, 2),
        (3, 2, 2),
    ]
    assert {each.source_chip for each in recovery.reloads} == {-1}
    assert recovery.reload_bytes.tolist() == [10, 0, 10, 0]
    assert recovery.lost_ranks == (1,)
    assert recovery.reason == ("3 of 4 ranks are up; survivors read 2 experts from the checkpoint")


def test_a_copy_takes_over_and_only_the_expert_without_one_is_read() -> None:
    # Chip 1 held 2, 3 and a copy of 4; chip 0 has a copy of 2. Nobody has an empty slot, so 3 goes
    # over the first expert that lies twice: 0, of which chip 3 has a copy, on chip 0.
    recovery = COPIED.after(lose(1))

    assert rows(COPIED) == [[0, 1, 2], [2, 3, 4], [4, 5, 6], [6, 7, 0]]
    assert recovery.taken_over == 2
    assert rows(COPIED, lose(1)) == [[3, 1, 2], [], [4, 5, 6], [6, 7, 0]]
    assert recovery.reload_bytes.tolist() == [10, 0, 0, 0]


def test_spare_hbm_gives_more_slots_up_to_its_size() -> None:
    one_more = replace(FULL, spare_slots=1)

    recovery = one_more.after(lose(3))

    assert recovery.placement.slots == 3
    assert rows(one_more, lose(3)) == [[0, 1, 6], [2, 3, 7], [4, 5], []]
    assert not one_more.after(lose(3), lose(0)).survivable


def test_a_spare_takes_the_seat_reads_all_of_it_and_brings_the_rank_back() -> None:
    recovery = SPARED.after(lose(1))

    assert recovery.survivable
    assert recovery.restored == ((1, 4),)
    assert recovery.seating.chip_of_position.tolist() == [0, 4, 2, 3]
    assert (recovery.lost_ranks, recovery.restarted_ranks) == ((), (1,))
    assert recovery.reload_bytes.tolist() == [0, 1_020, 0, 0]
    assert (recovery.placement.expert_of_slot == SPARED.placement.expert_of_slot).all()
    assert recovery.reason == "4 of 4 ranks are up; 1 chip that stood by takes a seat"


def test_a_spare_is_used_even_when_copies_would_do_for_it_brings_the_rank_back() -> None:
    twice = with_copies(machine(chips=4, experts=8, layers=1, empty_slots=2, spares=1))

    recovery = twice.after(lose(1))

    assert recovery.taken_over == 4
    assert recovery.restarted_ranks == (1,)
    assert recovery.reload_bytes.tolist() == [0, 1_040, 0, 0]


def test_a_lost_spare_changes_nothing_and_cannot_stand_in() -> None:
    assert SPARED.after(lose(4)).ranks_up.all()
    assert not SPARED.after(lose(4), lose(1)).survivable


def test_when_the_stand_in_is_lost_too_the_repaired_chip_goes_home() -> None:
    health = SPARED.health_after([lose(1)])
    first = SPARED.survive(health)

    health = health.after(lose(4), SPARED.system, SPARED.partition)
    second = SPARED.survive(health, before=first)
    assert not second.survivable
    assert second.seating.chip_of_position.tolist() == [0, VACANT, 2, 3]

    third = SPARED.survive(health.healed(1), before=second)
    assert third.survivable
    assert third.seating.chip_of_position.tolist() == [0, 1, 2, 3]
    assert rows_of(third) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert third.restarted_ranks == (1,)


def rows_of(recovery: object) -> list[list[int]]:
    slots = recovery.placement.expert_of_slot[0].tolist()  # type: ignore[attr-defined]
    return [[expert for expert in row if expert != EMPTY] for row in slots]


def test_a_chip_comes_home_empty_when_the_survivors_took_its_experts() -> None:
    health = ROOMY.health_after([lose(1)])
    without = ROOMY.survive(health)

    repaired = ROOMY.survive(health.healed(), before=without)

    assert repaired.ranks_up.all()
    assert repaired.reloads == ()
    assert repaired.reload_bytes.tolist() == [0, 1_000, 0, 0]
    assert (repaired.placement.expert_of_slot == without.placement.expert_of_slot).all()


def test_a_rank_of_two_chips_goes_down_with_either_and_the_other_still_serves_experts() -> None:
    pairs = machine(chips=4, tp=2, experts=8, layers=1, empty_slots=1)

    recovery = pairs.after(lose(1))

    assert recovery.ranks_up.tolist() == [False, True]
    assert recovery.seating.chip_of_position.tolist() == [0, VACANT, 2, 3]
    assert rows(pairs, lose(1)) == [[0, 1, 2], [], [4, 5, 3], [6, 7]]


def test_a_rank_over_all_chips_does_not_survive_one_without_a_spare() -> None:
    whole = machine(chips=4, tp=4, experts=8, empty_slots=2)

    recovery = whole.after(lose(1))

    assert not recovery.survivable
    assert "every rank lacks one of its 4 chips" in recovery.reason


def test_one_spare_completes_the_rank_that_lacks_least() -> None:
    pairs = machine(chips=8, tp=2, experts=8, empty_slots=2, spares=1)

    recovery = pairs.after(lose(0), lose(1), lose(5))

    assert recovery.restored == ((5, 8),)
    assert recovery.ranks_up.tolist() == [False, True, True, True]


def test_two_spares_complete_two_ranks_and_not_one() -> None:
    pairs = machine(chips=8, tp=2, experts=8, empty_slots=2, spares=2)

    recovery = pairs.after(lose(0), lose(1), lose(2), lose(4))

    assert recovery.restored == ((2, 8), (4, 9))
    assert recovery.lost_ranks == (0,)


def test_a_spare_that_completes_no_rank_stands_by_for_the_next_fault() -> None:
    pairs = machine(chips=8, tp=2, experts=8, empty_slots=2, spares=1)

    assert pairs.after(lose(0), lose(1)).restored == ()


def test_a_spare_that_gives_room_completes_a_rank_at_the_same_time() -> None:
    # Five chips with a slot each are left for six experts.
    pairs = machine(chips=8, tp=2, experts=6, spares=1)

    assert pairs.after(lose(0), lose(1), lose(3)).restored == ((3, 8),)


def test_a_seat_filled_for_room_alone_brings_no_rank_back() -> None:
    pairs = machine(chips=4, tp=2, experts=8, empty_slots=1, spares=1)

    recovery = pairs.after(lose(0), lose(1))

    assert recovery.restored == ((0, 4),)
    assert recovery.lost_ranks == (0,)
    assert recovery.restarted_ranks == ()


def test_a_group_whose_experts_do_not_fit_closes_and_the_others_go_on() -> None:
    two_groups = machine(chips=4, ep=2, experts=4, layers=1)

    recovery = two_groups.after(lose(0))

    assert recovery.survivable
    assert recovery.lost_ranks == (0, 1)
    assert recovery.reason == (
        "2 of 4 ranks are up; block 0 closes: 4 experts do not fit into the 2 slots that are left"
    )
    assert not two_groups.after(lose(0), lose(2)).survivable


def test_what_a_closed_group_has_copies_of_is_not_taken_over() -> None:
    copied = with_copies(machine(chips=4, ep=2, experts=4, layers=1, empty_slots=1))

    assert copied.after(lose(0)).lost_ranks == (0, 1)
    assert copied.after(lose(0)).taken_over == 0


def test_a_closed_group_opens_again_when_its_chip_is_repaired() -> None:
    two_groups = machine(chips=4, ep=2, experts=4, layers=1)
    health = two_groups.health_after([lose(0)])

    recovery = two_groups.survive(health.healed(0), before=two_groups.survive(health))

    assert recovery.ranks_up.all()
    assert [(each.expert, each.chip) for each in recovery.reloads] == [(0, 0), (1, 0)]
    assert recovery.reload_bytes.tolist() == [1_020, 0, 0, 0]


def test_two_groups_that_need_one_spare_each_come_before_one_that_needs_two() -> None:
    groups = machine(chips=6, ep=2, experts=4, spares=2)

    recovery = groups.after(lose(0), lose(1), lose(2), lose(4))

    assert recovery.restored == ((2, 6), (4, 7))
    assert recovery.lost_ranks == (0, 1)


def test_lost_experts_are_spread_over_the_chips_that_hold_fewest() -> None:
    roomy = machine(chips=4, experts=8, layers=1, empty_slots=2)

    assert rows(roomy, lose(1)) == [[0, 1, 2], [], [4, 5, 3], [6, 7]]


def test_of_chips_that_no_links_join_the_larger_part_goes_on() -> None:
    trays = machine(chips=8, experts=8, layers=1, empty_slots=3)

    assert trays.after(*[pull()] * 10, lose(0)).ranks_up.tolist() == [False] * 4 + [True] * 4
    assert trays.after(*[pull()] * 10, lose(7)).ranks_up.tolist() == [True] * 4 + [False] * 4


def test_a_spare_goes_to_the_group_that_cannot_run_without_it() -> None:
    # Group 0 has room for what it lost, group 1 lost two chips and has not.
    groups = machine(chips=8, ep=4, experts=8, layers=1, empty_slots=1, spares=1)

    recovery = groups.after(lose(0), lose(4), lose(5))

    assert recovery.restored == ((4, 8),)
    assert recovery.lost_ranks == (0, 5)


def test_the_nearest_spare_takes_the_seat() -> None:
    # 7 chips: spares 7 (of chip 4's tray) and 8, in a third tray.
    spread = machine(chips=7, experts=7, spares=2)

    assert spread.after(lose(5)).restored == ((5, 7),)
    assert spread.after(lose(0)).restored == ((0, 7),)
    assert spread.after(lose(5), lose(7)).restored == ((5, 8),)


def test_a_chip_without_any_link_is_fenced_and_its_experts_are_read_by_others() -> None:
    alone = (cut(1, LinkTier.TRAY), cut(1, LinkTier.BACKPLANE), cut(1, LinkTier.CROSS_RACK))

    recovery = ROOMY.after(*alone)

    assert recovery.fenced == (1,)
    assert recovery.lost_ranks == (1,)
    assert rows(ROOMY, *alone) == [[0, 1, 2], [], [4, 5, 3], [6, 7]]
    assert recovery.reason.endswith("1 chip is cut off and stays out")


def test_chips_that_no_links_join_do_not_survive_when_neither_side_has_room() -> None:
    trays = machine(chips=8, experts=16)

    recovery = trays.after(*[pull()] * 10)

    assert not recovery.survivable
    assert recovery.reason == (
        "no rank can go on: block 0 closes: 16 experts do not fit into the 8 slots that are left "
        "(no links join positions 0 and 4)"
    )


def test_groups_within_a_tray_do_not_need_the_switch_trays() -> None:
    assert machine(chips=8, ep=4, experts=8).after(*[pull()] * 10).ranks_up.all()


def test_a_spare_that_no_link_joins_cannot_stand_in() -> None:
    alone = (cut(4, LinkTier.TRAY), cut(4, LinkTier.BACKPLANE), cut(4, LinkTier.CROSS_RACK))

    assert not SPARED.after(*alone, lose(1)).survivable


def test_a_single_chip_needs_no_links_and_its_spare_brings_everything_back() -> None:
    single = machine(chips=1, experts=8, spares=1)

    assert single.after(cut(0, LinkTier.TRAY), cut(0, LinkTier.BACKPLANE)).ranks_up.all()
    assert single.after(lose(0)).restored == ((0, 1),)
    assert "no chip is in service" in machine(chips=1, experts=8).after(lose(0)).reason


def test_a_model_without_experts_loses_only_the_rank() -> None:
    dense = machine(chips=4, ep=1, experts=0, layers=0)

    recovery = dense.after(lose(2))

    assert recovery.survivable
    assert recovery.lost_ranks == (2,)
    assert recovery.reload_bytes.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"capacity": np.ones(3, dtype=np.int64)}, "of 4 chips"),
        ({"capacity": np.ones(4, dtype=np.int64)}, "position 0 holds more than its capacity"),
        ({"reachable": np.ones((3, 3), dtype=np.bool_)}, "of 4 chips"),
        ({"placement": machine(chips=4, ep=2, experts=8).placement}, "in groups of 2"),
    ],
)
def test_arrays_of_another_machine_are_refused(wrong: dict[str, object], line: str) -> None:
    health = FULL.health_after([])
    arguments = {
        "placement": FULL.placement,
        "health": health,
        "partition": FULL.partition,
        "system": FULL.system,
        "seating": Seating.home(FULL.partition),
        "capacity": FULL.capacity(),
        "reachable": FULL.reachable(health),
        "weights": WEIGHTS,
    }
    with pytest.raises(ValueError, match=line):
        survival(**{**arguments, **wrong})

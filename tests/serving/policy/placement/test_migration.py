import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from emulator.specs.placement import EMPTY, ExpertPlacement, ExpertTransfer
from serving.policy.placement.migration import (
    CHECKPOINT,
    migration,
    rounds,
    transfer_bytes,
)
from tests.serving.policy.placement.cases import machine, placement, placements

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

SMALL = machine(racks=2, trays=2, chips=2)  # chips 0-3 in rack 0, 4-7 in rack 1


def only(transfers: tuple[ExpertTransfer, ...]) -> ExpertTransfer:
    assert len(transfers) == 1
    return transfers[0]


@pytest.mark.parametrize(
    ("chip", "holders", "nearest"),
    [
        (0, [1, 2, 4], 1),
        (0, [2, 4], 2),
        (0, [4, 6], 4),
        (7, [0, 4, 6], 6),
        (7, [0, 4], 4),
        (7, [0, 3], 0),
        (7, [], CHECKPOINT),
    ],
)
def test_an_expert_comes_from_the_nearest_copy(chip: int, holders: list[int], nearest: int) -> None:
    chips = [[5 if other in holders else EMPTY, EMPTY] for other in range(8)]
    before = placement(chips, experts=6, ep=8)
    chips[chip] = [EMPTY, 5]

    move = only(migration(before, placement(chips, experts=6, ep=8), **SMALL.places))

    assert (move.source_chip, move.chip, move.slot, move.expert) == (nearest, chip, 1, 5)
    assert move.source_slot == (CHECKPOINT if nearest == CHECKPOINT else 0)


def test_a_copy_on_the_same_chip_is_nearest_of_all() -> None:
    before = placement([[0, EMPTY], [0, EMPTY]], experts=1, ep=1)
    after = placement([[0, EMPTY], [0, 0]], experts=1, ep=1)

    move = only(migration(before, after, **machine(racks=1, trays=1, chips=2).places))

    assert (move.source_chip, move.source_slot) == (1, 0)


def test_equally_near_copies_share_the_sending() -> None:
    before = placement([[0], [0], [1], [1]], experts=2, ep=2)
    after = placement([[0], [0], [0], [0]], experts=2, ep=2)

    moves = migration(before, after, **machine(racks=1, trays=1, chips=4).places)

    assert [(move.source_chip, move.chip) for move in moves] == [(0, 2), (1, 3)]


def test_what_lies_where_it_belongs_or_is_dropped_moves_nothing() -> None:
    before = placement([[0, 1], [1, 0]], experts=2, ep=2)
    after = placement([[0, EMPTY], [1, 0]], experts=2, ep=2)

    assert migration(before, after, **machine(racks=1, trays=1, chips=2).places) == ()


def test_two_chips_can_change_places_in_one_round() -> None:
    before = placement([[0], [1]], experts=2, ep=2)
    after = placement([[1], [0]], experts=2, ep=2)
    moves = migration(before, after, **machine(racks=1, trays=1, chips=2).places)

    assert [(move.source_chip, move.chip) for move in moves] == [(1, 0), (0, 1)]
    assert rounds(moves) == (moves,)


def test_placements_that_do_not_fit_each_other_are_refused() -> None:
    one = placement([[0], [1]], experts=2, ep=2)

    for other in (
        placement([[0, 1], [1, 0]], experts=2, ep=2),
        placement([[0], [1]], experts=3, ep=2),
    ):
        with pytest.raises(ValueError, match="same layers, chips and experts"):
            migration(one, other, **machine(racks=1, trays=1, chips=2).places)


def move(source: int, chip: int, layer: int = 0) -> ExpertTransfer:
    return ExpertTransfer(
        layer=layer,
        expert=0,
        source_chip=source,
        source_slot=min(source, 0),
        chip=chip,
        slot=0,
    )


def test_bytes_are_counted_by_sender_and_receiver_but_for_those_from_the_checkpoint() -> None:
    moved = transfer_bytes([move(0, 1), move(0, 1), move(1, 1), move(CHECKPOINT, 0)], 10.0, 2)

    assert moved.tolist() == [[0, 20], [0, 10]]


def test_rounds_are_layers_and_a_chip_stages_what_one_brings() -> None:
    moves = [move(0, 1, layer=1), move(0, 1), move(0, 0, layer=1), move(0, 1, layer=1)]

    assert rounds(moves) == ((moves[1],), (moves[0], moves[2], moves[3]))


def run(memory: F64, transfers: tuple[ExpertTransfer, ...], checkpoint: F64) -> F64:
    """Runs the rounds on memory[layers, chips, slots, numbers]; each reads all before it writes."""
    memory = memory.copy()
    for moves in rounds(transfers):
        staged = [
            checkpoint[m.layer, m.expert]
            if m.source_chip == CHECKPOINT
            else memory[m.layer, m.source_chip, m.source_slot].copy()
            for m in moves
        ]
        for m, weights in zip(moves, staged, strict=True):
            memory[m.layer, m.chip, m.slot] = weights
    return memory


@given(data=st.data())
def test_the_transfers_turn_the_weights_of_one_placement_into_those_of_the_other(
    data: st.DataObject,
) -> None:
    place = machine(racks=2, trays=1, chips=2)
    shape = (data.draw(st.integers(1, 3)), place.chips, data.draw(st.integers(1, 3)))
    after = data.draw(placements(shape=shape))
    before = data.draw(placements(shape=shape, complete=False))
    before = ExpertPlacement(
        experts=after.experts,
        ep=place.chips,
        expert_of_slot=np.where(
            before.expert_of_slot < after.experts, before.expert_of_slot, EMPTY
        ),
    )
    checkpoint = np.random.default_rng(0).random((shape[0], after.experts, 4))

    def weights_of(placed: ExpertPlacement) -> F64:
        layer = np.arange(shape[0])[:, None, None]
        return checkpoint[layer, placed.expert_of_slot]

    transfers = migration(before, after, **place.places)
    memory = run(weights_of(before), transfers, checkpoint)

    held = after.expert_of_slot != EMPTY
    assert (memory[held] == weights_of(after)[held]).all()
    assert len(transfers) == np.count_nonzero(
        held & (after.expert_of_slot != before.expert_of_slot)
    )
    moved = transfer_bytes(transfers, 1.0, place.chips)
    loaded = sum(each.source_chip == CHECKPOINT for each in transfers)
    assert moved.sum() + loaded == len(transfers)
    live = before.copies()[0] > 0  # [layers, experts]
    for m in transfers:
        assert (m.source_chip == CHECKPOINT) == (not live[m.layer, m.expert])

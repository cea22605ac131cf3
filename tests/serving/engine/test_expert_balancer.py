"""When experts move, by what load, and how much evener they lie afterwards."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.specs.placement import ExpertPlacement
from serving.engine import expert_balancer
from serving.engine.expert_balancer import LEAST_GAIN, ExpertBalancer, Move
from serving.policy.placement.chip_loads import chip_loads
from serving.policy.placement.eplb_settings import EplbSettings
from tests.serving.policy.placement.cases import imbalance

LAYERS, EXPERTS, CHIPS = 3, 8, 4
UP = np.ones(CHIPS, dtype=np.bool_)
EVEN = ExpertPlacement.even(layers=LAYERS, experts=EXPERTS, chips=CHIPS, ep=CHIPS)
# Two slots a chip. Experts 0 and 1, both on chip 0, get 9 of 24 pairs each, the others 1 of 24.
SKEWED = np.tile(np.array([9, 9, 1, 1, 1, 1, 1, 1]), (LAYERS, 1))


def made(settings: EplbSettings | None, groups: int = 1) -> ExpertBalancer:
    return ExpertBalancer(
        settings,
        layers=LAYERS,
        groups=groups,
        experts=EXPERTS,
        tray_of_chip=np.zeros(CHIPS, dtype=np.int64),
        rack_of_chip=np.zeros(CHIPS, dtype=np.int64),
    )


def balancer(**settings: Any) -> ExpertBalancer:
    return made(EplbSettings(**({"step_interval": 1, "window_size": 4} | settings)))


def count(target: ExpertBalancer, load: np.ndarray, placement: ExpertPlacement = EVEN) -> None:
    """Count one step of [layers, experts] on a placement; copies share their pairs evenly."""
    pairs = np.rint(chip_loads(load, placement)).astype(np.int64)
    target.count(load[:, None, :], pairs)


def moves_of(target: ExpertBalancer, placement: ExpertPlacement = EVEN) -> list[Move]:
    """All moves until nothing is due; each is carried out."""
    moves = []
    while (move := target.next_move(placement, UP)) is not None:
        moves.append(move)
        placement = move.placement
    return moves


def test_two_busy_experts_of_one_chip_part_by_hand() -> None:
    target = balancer(use_async=False)
    count(target, SKEWED)
    # Before: chip 0 has 18 of 24 pairs, 6 would be the mean: 3. After: 9 + 1 = 10 at best.
    assert (target.imbalance(UP), target.before, target.rebalances) == (3.0, None, 0)
    (move,) = moves_of(target)

    assert (target.imbalance(UP), target.before, target.rebalances) == (None, 3.0, 1)
    count(target, SKEWED, move.placement)
    assert target.imbalance(UP) == pytest.approx(10 / 6)
    assert move.placement.missing() == []


def test_transfers_lead_from_the_old_placement_to_the_new() -> None:
    target = balancer(use_async=False)
    count(target, SKEWED)
    (move,) = moves_of(target)

    slots = EVEN.expert_of_slot.copy()
    for each in move.transfers:
        assert EVEN.expert_of_slot[each.layer, each.source_chip, each.source_slot] == each.expert
        slots[each.layer, each.chip, each.slot] = each.expert
    assert (slots == move.placement.expert_of_slot).all()


def test_asynchronously_one_layer_moves_after_each_step() -> None:
    target = balancer(use_async=True)
    count(target, SKEWED)
    moves = moves_of(target)

    assert [sorted({each.layer for each in move.transfers}) for move in moves] == [[0], [1], [2]]
    for before, after in itertools.pairwise([EVEN, *(move.placement for move in moves)]):
        changed = (before.expert_of_slot != after.expert_of_slot).any(axis=(1, 2))
        assert changed.sum() == 1
        assert after.missing() == []
    at_once = balancer(use_async=False)
    count(at_once, SKEWED)
    (whole,) = moves_of(at_once)
    assert (moves[-1].placement.expert_of_slot == whole.placement.expert_of_slot).all()


def test_a_plan_is_carried_out_before_the_next_is_made() -> None:
    target = balancer(use_async=True)
    count(target, SKEWED)
    first = target.next_move(EVEN, UP)
    assert first is not None
    count(target, SKEWED[:, ::-1])  # due again, and another load
    count(target, SKEWED[:, ::-1])
    second = target.next_move(first.placement, UP)

    assert second is not None
    assert {each.layer for each in second.transfers} == {1}
    assert target.rebalances == 0  # the first is not through
    assert moves_of(target, second.placement)
    assert target.rebalances == 2


@pytest.mark.parametrize("interval", [1, 3])
def test_experts_move_every_step_interval_steps(interval: int) -> None:
    target = balancer(step_interval=interval, use_async=False)
    due = []
    for step in range(1, 10):
        # Every third step another chip's experts are the busy ones, so that there is a gain.
        count(target, np.roll(SKEWED, 2 * (step // 3), axis=1) * 10**step)
        if target.next_move(EVEN, UP) is not None:
            due.append(step)

    assert due == list(range(interval, 10, interval))


def test_only_the_window_s_steps_count() -> None:
    target = balancer(window_size=2, step_interval=4, use_async=False)
    for load in (SKEWED * 1_000, SKEWED * 1_000, np.ones_like(SKEWED), np.ones_like(SKEWED)):
        count(target, load)

    assert target.imbalance(UP) == 1.0
    assert moves_of(target) == []
    assert target.rebalances == 0


def test_without_load_nothing_is_measured_and_nothing_moves() -> None:
    target = balancer()
    count(target, np.zeros_like(SKEWED))

    assert target.imbalance(UP) is None
    assert moves_of(target) == []
    assert (target.before, target.rebalances) == (None, 0)


def test_a_layer_that_no_token_reached_is_not_measured() -> None:
    target = balancer()
    load = SKEWED.copy()
    load[1] = 0
    count(target, load)

    assert target.imbalance(UP) == 3.0


@pytest.mark.long
def test_without_settings_it_counts_and_moves_nothing() -> None:
    target = made(None)
    for _ in range(5_000):
        count(target, SKEWED)

    assert target.next_move(EVEN, UP) is None
    assert target.imbalance(UP) == 3.0


def test_a_plan_that_is_void_is_made_anew_before_the_next_step_and_measured_anew() -> None:
    target = balancer(step_interval=100, use_async=True)
    for _ in range(99):
        count(target, SKEWED)
        assert target.next_move(EVEN, UP) is None
    target.plan_soon()

    assert target.imbalance(UP) is None  # of chips that are not what they were
    moves = moves_of(target)
    assert [sorted({each.layer for each in move.transfers}) for move in moves] == [[0], [1], [2]]


def test_moves_that_have_not_begun_are_void_when_chips_come_or_go() -> None:
    target = balancer(use_async=True)
    count(target, SKEWED)
    first = target.next_move(EVEN, UP)
    assert first is not None
    target.plan_soon()
    left = target.next_move(EVEN, UP)  # as it was: the first move was lost with a chip

    assert left is not None
    assert {each.layer for each in left.transfers} == {0}


def test_without_any_step_nothing_is_planned_soon() -> None:
    target = balancer()
    target.plan_soon()

    assert target.next_move(EVEN, UP) is None


def test_nothing_moves_to_a_chip_that_is_not_usable() -> None:
    slots = np.full((LAYERS, CHIPS, 4), -1, dtype=np.int64)
    slots[:, :, :2] = EVEN.expert_of_slot
    slots[:, 2, :] = [4, 5, 6, 7]  # chip 3 has nothing: it is gone
    slots[:, 3, :] = -1
    placement = ExpertPlacement(experts=EXPERTS, ep=CHIPS, expert_of_slot=slots)
    usable = np.array([True, True, True, False])
    target = balancer(use_async=False)
    count(target, SKEWED)
    move = target.next_move(placement, usable)

    assert move is not None
    assert (move.placement.expert_of_slot[:, 3] == -1).all()
    assert move.placement.missing() == []
    assert {each.chip for each in move.transfers} | {
        each.source_chip for each in move.transfers
    } <= {
        0,
        1,
        2,
    }


def test_a_gain_below_the_threshold_is_not_worth_moves() -> None:
    load = np.full((LAYERS, EXPERTS), 1_000)
    load[:, :2] += 20  # chip 0 has 2 % more: swapping halves would gain 1 %
    target = balancer(use_async=False)
    count(target, load)

    assert LEAST_GAIN > 0.02
    assert moves_of(target) == []
    assert target.rebalances == 0


def test_a_group_that_lacks_an_expert_is_closed_and_left_alone() -> None:
    halves = ExpertPlacement.even(layers=LAYERS, experts=EXPERTS, chips=CHIPS, ep=2)
    closed = halves.without([3])
    target = made(EplbSettings(step_interval=1, window_size=4, use_async=False), groups=2)
    skewed = np.stack([np.tile([9, 9, 9, 9, 1, 1, 1, 1], (LAYERS, 1))] * 2, axis=1)
    target.count(skewed, np.tile([36, 4, 36, 4], (LAYERS, 1)))
    move = target.next_move(closed, np.array([True, True, True, False]))

    assert move is not None
    assert {each.chip for each in move.transfers} <= {0, 1}
    assert (move.placement.expert_of_slot[:, 2:] == closed.expert_of_slot[:, 2:]).all()


def test_each_group_is_balanced_by_its_own_load() -> None:
    halves = ExpertPlacement.even(layers=LAYERS, experts=EXPERTS, chips=CHIPS, ep=2)
    target = made(EplbSettings(step_interval=1, window_size=4, use_async=False), groups=2)
    first, second = [9, 9, 9, 9, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1, 1]
    load = np.stack([np.tile(first, (LAYERS, 1)), np.tile(second, (LAYERS, 1))], axis=1)
    target.count(load, np.tile([36, 4, 4, 4], (LAYERS, 1)))
    (move,) = moves_of(target, halves)

    assert {each.chip for each in move.transfers} == {0, 1}
    assert (
        imbalance(load.swapaxes(0, 1), move.placement).max()
        < imbalance(load.swapaxes(0, 1), halves).min()
    )


@pytest.mark.parametrize("log", [True, False])
def test_balancedness_is_logged_when_asked(log: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(
        expert_balancer.logger, "info", lambda text, *values: lines.append(text % values)
    )
    target = balancer(step_interval=100, log_balancedness=log, log_balancedness_interval=2)
    for _ in range(4):
        count(target, SKEWED)
        target.next_move(EVEN, UP)

    assert lines == ["expert imbalance (busiest chip over mean) 3.000"] * (2 if log else 0)


@given(
    st.lists(st.integers(0, 10_000), min_size=EXPERTS * LAYERS, max_size=EXPERTS * LAYERS),
    st.integers(0, 8),
    st.booleans(),
)
def test_whatever_was_counted_no_expert_is_lost_and_the_busiest_chip_gets_no_busier(
    counts: list[int], copies: int, use_async: bool
) -> None:
    load = np.array(counts, dtype=np.int64).reshape(LAYERS, EXPERTS)
    copies -= copies % CHIPS
    slots = np.concatenate(
        [EVEN.expert_of_slot] + [EVEN.expert_of_slot[..., :1]] * (copies // CHIPS), 2
    )
    before = ExpertPlacement(experts=EXPERTS, ep=CHIPS, expert_of_slot=slots)
    target = balancer(num_redundant_experts=copies, use_async=use_async)
    count(target, load)
    moves = moves_of(target, before)

    after = moves[-1].placement if moves else before
    for move in moves:
        assert move.placement.missing() == []
    assert (imbalance(load, after) <= imbalance(load, before) + 1e-9).all()

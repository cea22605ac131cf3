"""Experts that move: what is counted, what the links are charged, where the weights then lie."""

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from emulator.chip.commands import SendExperts, TakeExperts
from emulator.compute.architecture import Architecture
from emulator.compute.checkpoint import load_experts
from emulator.compute.weights import ExpertSet
from emulator.data import SMALL_MOE_DIR
from emulator.specs.batch import StepBatch
from emulator.specs.fault import Fault, FaultKind
from emulator.specs.placement import EMPTY, ExpertPlacement
from emulator.ultraserver.lockstep import StepResult
from serving.engine.expert_moves import DeployedExperts, ExpertMoves
from tests.emulator.chip.in_process_fleet import InProcessFleet
from tests.serving.plugin.live_parts import (
    LiveParts,
    Requests,
    batch_of,
    live_parts,
    texts_of_one_chip,
)
from tests.serving.policy.placement.cases import imbalance

pytestmark = pytest.mark.long

QWEN = "qwen3-30b-a3b"
# One expert of one layer of Qwen3-30B-A3B: gate, up and down of 2,048 x 768 in BF16.
QWEN_EXPERT_BYTES = 3 * 2_048 * 768 * 2
NOTHING = StepResult(outputs={})


def moving(**settings: Any) -> tuple[LiveParts, ExpertMoves]:
    """Parts whose experts move after every step, all layers at once unless said otherwise."""
    eplb = {"step_interval": 1, "window_size": 8, "use_async": False} | settings.pop("eplb", {})
    parts = live_parts(eplb=eplb, **settings)
    return parts, ExpertMoves(DeployedExperts.of(parts.deployment), parts.live)


def arrivals(before: ExpertPlacement, after: ExpertPlacement) -> int:
    """Slots with an expert that its chip did not have in that layer before."""
    count = 0
    for layer, chip, slot in np.argwhere(before.expert_of_slot != after.expert_of_slot):
        expert = after.expert_of_slot[layer, chip, slot]
        count += expert != EMPTY and expert not in before.expert_of_slot[layer, chip]
    return count


@functools.cache
def stored_experts(architecture: Architecture, layer: int) -> ExpertSet:
    """All experts of a layer, by number."""
    return load_experts(SMALL_MOE_DIR, architecture, layer, range(architecture.experts))


def check_weights(fleet: InProcessFleet) -> None:
    """Every slot of each live chip holds the weights of the expert that is said to be there."""
    architecture = fleet.architecture
    for layer in range(architecture.layers):
        whole = stored_experts(architecture, layer)
        for chip in sorted(fleet.live_chips):
            experts = fleet.placement.expert_of_slot[layer, chip]
            slots = np.flatnonzero(experts != EMPTY)
            held = fleet.host.chips[chip].chip._shard.layers[layer].feed_forward.experts
            assert (held.gate_up[slots] == whole.gate_up[experts[slots]]).all(), (layer, chip)
            assert (held.down[slots] == whole.down[experts[slots]]).all(), (layer, chip)


@pytest.fixture(scope="module")
def expected() -> dict[str, list[int]]:
    return texts_of_one_chip()


def serve(parts: LiveParts, moves: ExpertMoves, requests: Requests | None = None) -> Requests:
    requests = requests or Requests(parts)
    while requests.unfinished:
        step = requests.step()
        moves.after_step(step.result, batch_of(parts, 4))
    return requests


def test_what_crosses_links_is_counted_and_held_up_for() -> None:
    parts, moves = moving(model=QWEN, routing="zipf:1.2")
    before = parts.machine.placement
    moves.after_step(NOTHING, batch_of(parts, 1_000))
    after = parts.machine.placement

    moved_bytes = QWEN_EXPERT_BYTES * arrivals(before, after)
    assert moved_bytes > 0
    assert moves.moved_bytes == moves.balance.moved_bytes == moved_bytes
    assert (moves.rebalances, moves.balance.rebalances) == (1, 1)
    # At best all four chips send at once what they have to; the links' rate is the fabric's.
    even = np.full((4, 4), moved_bytes / 12) * ~np.eye(4, dtype=np.bool_)
    pause_ns = Requests(parts).step().pause_ns
    assert pause_ns >= parts.machine.moving(even).duration_ns > 0


def test_what_changes_its_slot_within_a_chip_crosses_no_link() -> None:
    parts = live_parts(model=QWEN)
    moves = ExpertMoves(DeployedExperts.of(parts.deployment), parts.live)
    home = parts.machine.placement
    turned = replace(home, expert_of_slot=home.expert_of_slot[..., ::-1].copy())
    parts.machine.place_experts(turned)
    moves.bring_home()

    assert (parts.machine.placement.expert_of_slot == home.expert_of_slot).all()
    assert moves.moved_bytes == 0
    assert Requests(parts).step().pause_ns == 0


def test_a_skewed_load_is_evener_after_the_move() -> None:
    parts, moves = moving(model=QWEN, routing="zipf:1.2")
    moves.after_step(NOTHING, batch_of(parts, 10_000))
    before = moves.balance
    assert (before.imbalance, before.imbalance_after) == (None, None)  # counted on the old places
    assert before.imbalance_before is not None
    assert before.imbalance_before > 1.2
    moves.after_step(NOTHING, batch_of(parts, 10_000))
    balance = moves.balance

    assert balance.imbalance_after == balance.imbalance
    assert balance.imbalance is not None
    assert balance.imbalance < 1.1
    # What the counts were drawn from is evener too.
    distribution = parts.deployment.distribution
    assert distribution is not None
    assert imbalance(distribution.probability, parts.machine.placement).mean() < 1.1


@pytest.mark.parametrize("steps", [1, 40, 250])
def test_tokens_are_drawn_for_each_group_of_chips_as_stated(steps: int) -> None:
    parts = live_parts(model=QWEN, routing="zipf:1", chips=8, tp=2, ep=4)
    moves = ExpertMoves(DeployedExperts.of(parts.deployment), parts.live)
    batch = StepBatch(
        ranks=4,
        rank=np.array([0, 1]),
        new_tokens=np.array([30_000, 10_000]),
        context_tokens=np.zeros(2, dtype=np.int64),
        logit_rows=np.array([1, 1, 0, 0]),
    )
    for _ in range(steps):
        moves.after_step(NOTHING, batch)

    distribution = parts.deployment.distribution
    assert distribution is not None
    # Ranks 0 and 1 are the first group; the second has nothing to do.
    experts = np.array(moves.load.tokens).reshape(48, 128)
    expected = steps * 40_000 * distribution.probability
    assert experts == pytest.approx(expected, abs=6 * 100 * steps**0.5)
    assert moves.imbalance == pytest.approx(
        imbalance(np.stack([expected, 0 * expected]), parts.machine.placement).mean(), rel=0.02
    )


def test_steps_are_counted_where_experts_lay_then() -> None:
    parts = live_parts(model=QWEN, chips=4, ep=4)
    moves = ExpertMoves(DeployedExperts.of(parts.deployment), parts.live)
    batch = batch_of(parts, 1_000)
    moves.after_step(NOTHING, batch)
    placement = parts.machine.placement
    swapped = placement.expert_of_slot[:, [1, 0, 2, 3]]
    parts.machine.place_experts(replace(placement, expert_of_slot=swapped))
    for _ in range(3):
        moves.after_step(NOTHING, batch)

    tokens = sum(moves.load.tokens)
    assert tokens == pytest.approx(4 * 4_000 * 8 * 48, rel=0.01)
    assert moves._timed is not None
    assert moves._timed._steps == 4


def test_the_model_s_time_follows_the_new_placement() -> None:
    parts, moves = moving(model=QWEN, routing="zipf:1.2")
    before = parts.machine.cost_model
    moves.after_step(NOTHING, batch_of(parts, 1_000))

    assert parts.machine.cost_model is not before
    assert parts.machine.cost_model.layout.placement is parts.machine.placement


@pytest.mark.parametrize("use_async", [False, True])
@pytest.mark.parametrize("tp", [1, 2])
def test_texts_are_the_same_while_experts_move_after_every_step(
    use_async: bool, tp: int, expected: dict[str, list[int]]
) -> None:
    parts, moves = moving(tp=tp, eplb={"use_async": use_async, "num_redundant_experts": 16})
    requests = serve(parts, moves)

    assert requests.texts == expected
    assert moves.moved_bytes > 0
    assert parts.fleet.placement is parts.machine.placement
    assert parts.machine.placement.missing() == []
    check_weights(parts.fleet)
    layers_moved = {
        command.layer for _, command in parts.fleet.host.sent if isinstance(command, TakeExperts)
    }
    assert len(layers_moved) > 1


def test_routers_that_compute_are_counted_as_they_decide() -> None:
    parts, moves = moving()
    requests = Requests(parts)
    step = requests.step()
    assert step.result.expert_pairs is not None
    moves.after_step(step.result, batch_of(parts, 4))

    # 46 prompt tokens choose 8 experts each in each of 4 layers.
    tokens = sum(len(prompt) for prompt in requests.prompts.values())
    counted = step.result.expert_pairs  # [layers, groups, experts]
    assert counted.sum(axis=(1, 2)).tolist() == [8 * tokens] * 4
    even = parts.deployment.placement_of(parts.deployment.weights)
    assert moves.balance.imbalance_before == pytest.approx(
        imbalance(counted.swapaxes(0, 1), even).mean()
    )


def test_a_stand_in_s_experts_move_by_their_own_load_and_cost_no_emulated_time(
    expected: dict[str, list[int]],
) -> None:
    parts, moves = moving(model="llama-3.1-8b")
    before = parts.fleet.placement
    requests = serve(parts, moves)

    assert requests.texts == expected
    assert (parts.fleet.placement.expert_of_slot != before.expert_of_slot).any()
    check_weights(parts.fleet)
    assert sum(step.pause_ns for step in requests.steps) == 0
    assert (moves.moved_bytes, moves.rebalances) == (0, 0)
    assert moves.balance.imbalance is None  # a dense model has nothing to balance


def test_where_tokens_are_made_up_the_timed_model_s_experts_move_alone() -> None:
    parts, moves = moving(model=QWEN, routing="zipf:1", computes=False)
    requests = serve(parts, moves)

    assert moves.moved_bytes > 0
    assert sum(step.pause_ns for step in requests.steps) > 0


def test_without_balancing_experts_stay_and_imbalance_is_measured() -> None:
    parts = live_parts()
    moves = ExpertMoves(DeployedExperts.of(parts.deployment), parts.live)
    before = parts.machine.placement
    step = Requests(parts).step()
    moves.after_step(step.result, batch_of(parts, 46))

    assert parts.machine.placement is before
    assert step.result.expert_pairs is not None
    counted = step.result.expert_pairs.swapaxes(0, 1)
    assert moves.imbalance == pytest.approx(imbalance(counted, before).mean())
    assert (moves.moved_bytes, moves.balance.rebalances) == (0, 0)
    assert (moves.balance.imbalance_before, moves.balance.imbalance_after) == (None, None)


def test_chips_that_come_or_go_make_plans_void_and_new_ones_due() -> None:
    parts, moves = moving(
        model=QWEN, routing="zipf:1.2", eplb={"use_async": True, "step_interval": 60}
    )
    for _ in range(60):
        moves.after_step(NOTHING, batch_of(parts, 100))
    begun = moves.moved_bytes
    assert begun > 0  # one layer has moved, 47 have yet to
    assert moves.rebalances == 0
    moves.plan_soon()
    for _ in range(47):
        moves.after_step(NOTHING, batch_of(parts, 100))

    assert moves.moved_bytes > begun
    assert moves.rebalances == 1


def test_experts_that_are_balanced_are_not_brought_home() -> None:
    parts, moves = moving(model=QWEN, routing="zipf:1.2")
    moves.after_step(NOTHING, batch_of(parts, 1_000))
    balanced = parts.machine.placement
    moves.bring_home()

    assert parts.machine.placement is balanced


@pytest.mark.parametrize("kind", [SendExperts, TakeExperts])
@pytest.mark.parametrize("spares", [0, 1])
@pytest.mark.parametrize("model", [None, pytest.param("llama-3.1-8b", marks=pytest.mark.slow)])
def test_a_chip_that_is_lost_while_experts_move_leaves_no_slot_with_another_expert(
    kind: type, spares: int, model: str | None, expected: dict[str, list[int]]
) -> None:
    parts, moves = moving(spares=spares, model=model)
    requests = Requests(parts)
    step = requests.step()
    parts.fleet.doom(2, kind)
    moves.after_step(step.result, batch_of(parts, 4))
    (record,) = parts.live.faults.records
    assert record.fault == Fault(kind=FaultKind.LOSE_CHIP, chip=2)

    check_weights(parts.fleet)
    assert serve(parts, moves, requests).texts == expected
    check_weights(parts.fleet)

"""The machine's state as the control service shows it: every field, whole and with faults."""

import pytest

from emulator.specs.fault import Fault, FaultKind, LinkTier
from serving.engine.scheduler_state import RankQueues
from serving.wire.machine_state import ChipHealth, CutLink, FaultStage
from tests.serving.plugin.live_parts import KV_BLOCKS
from tests.serving.plugin.running_engine import Running, heard, lose

pytestmark = pytest.mark.long


def test_a_fresh_machine_is_shown_whole() -> None:
    state = Running(
        chips=8, tp=2, ep=4, lnc=1, spares=1, first_chip=70, model="qwen3-30b-a3b"
    ).state()

    assert (state.emulated_s, state.steps, state.dilation) == (0.0, 0, 0.0)
    assert (state.system, state.model, state.weights) == (
        "trn3-nl72x2",
        "qwen3-30b-a3b",
        "small-moe",
    )
    assert state.routing == "uniform (expected)"
    part = state.partition
    assert (part.chips, part.tp, part.dp, part.ep, part.lnc) == (8, 2, 4, 4, 1)
    assert (part.first_chip, part.spares) == (70, 1)
    # Chip 70 of the machine is the third of the last tray of rack 0; chip 72 begins rack 1.
    places = [(chip.rack, chip.tray, chip.position) for chip in state.chips]
    assert places[:3] == [(0, 17, 2), (0, 17, 3), (1, 0, 0)]
    assert [chip.rank for chip in state.chips] == [0, 0, 1, 1, 2, 2, 3, 3, None]
    assert [chip.spare for chip in state.chips] == [False] * 8 + [True]
    assert {chip.health for chip in state.chips} == {ChipHealth.UP}
    # 128 experts over 4 chips are 32 slots in each of 48 layers.
    assert (state.chips[0].expert_slots, state.chips[0].expert_slots_filled) == (1536, 1536)
    spare = state.chips[8]
    assert (spare.hbm_used_bytes, spare.expert_slots, spare.rank) == (0, 0, None)
    assert spare.hbm_capacity_bytes == 144 * 2**30
    assert [(rank.up, rank.kv_blocks, rank.requests_running) for rank in state.ranks] == [
        (True, KV_BLOCKS, 0)
    ] * 4
    assert [(rack.switch_trays_up, rack.switch_trays) for rack in state.racks] == [(10, 10)] * 2
    assert state.expert_balance.imbalance is None


def test_hbm_is_shown_by_stack_and_owner_as_it_is_held() -> None:
    running = Running(model="qwen3-30b-a3b")
    machine = running.parts.machine
    chip = running.state().chips[1]

    assert [stack.capacity_bytes for stack in chip.stacks] == [36 * 2**30] * 4
    assert {"microcode", "activations", "collectives", "kv", "weights/experts"} <= set(
        chip.stacks[0].owner_bytes
    )
    assert chip.stacks[0].owner_bytes["microcode"] == 2 * 96_000_000
    # 32 experts in 48 layers, a quarter of their columns on each stack.
    assert chip.stacks[0].owner_bytes["weights/experts"] == 32 * 48 * 3 * 2_048 * 768 * 2 // 4
    free = sum(stack.free_bytes for stack in machine.hbm.usage()[1])
    assert chip.hbm_used_bytes == chip.hbm_capacity_bytes - free


def test_the_ranks_queues_are_those_of_the_last_step() -> None:
    running = Running(chips=2)
    queues = (
        RankQueues(running=3, waiting=1, kv_blocks_used=9),
        RankQueues(running=0, waiting=0, kv_blocks_used=0),
    )
    running.engine.hear(heard(rank_states=queues))
    first, second = running.state().ranks

    assert (first.requests_running, first.requests_waiting, first.kv_blocks_used) == (3, 1, 9)
    assert (second.requests_running, second.requests_waiting, second.kv_blocks_used) == (0, 0, 0)


def test_each_fault_shows_where_it_is() -> None:
    running = Running(chips=8, ep=4, spares=1)
    for fault in (
        lose(0),
        Fault(kind=FaultKind.HANG_CHIP, chip=1),
        Fault(kind=FaultKind.SLOW_CHIP, chip=2, factor=2.5),
        Fault(kind=FaultKind.FAIL_STACK, chip=3, stack=1),
        Fault(kind=FaultKind.CUT_LINK, chip=4, tier=LinkTier.BACKPLANE, lanes=3),
        Fault(kind=FaultKind.PULL_SWITCH_TRAY, rack=1),
    ):
        assert running.inject(fault).accepted
    running.step(*range(8))
    state = running.state()

    assert [chip.health for chip in state.chips] == [
        ChipHealth.LOST,
        ChipHealth.HUNG,
        ChipHealth.SLOW,
        ChipHealth.LOST,
        *[ChipHealth.UP] * 5,
    ]
    assert state.chips[2].slow_factor == 2.5
    assert [stack.failed for stack in state.chips[3].stacks] == [False, True, False, False]
    (cut,) = state.chips[4].cut_links
    assert (cut.tier, cut.lanes_cut) == (LinkTier.BACKPLANE, 3)
    assert isinstance(cut, CutLink)
    assert [rack.switch_trays_up for rack in state.racks] == [10, 9]
    # The spare took the seat of one of the three that are out.
    assert (state.chips[8].spare, state.chips[8].rank) == (False, 0)
    assert [chip.rank for chip in state.chips[:4]] == [None, None, 2, None]
    assert [rank.up for rank in state.ranks] == [True, False, True, False, True, True, True, True]
    assert [record.number for record in state.faults] == [1, 2, 3, 4, 5, 6]
    stages = [record.stage for record in state.faults]
    assert stages.pop(2) is FaultStage.DEGRADED, "it is slow until it is healed"
    assert set(stages) == {FaultStage.RECOVERED}
    assert [chip.watts > 0 for chip in state.chips[:4]] == [False, True, True, False]
    assert state.chips[0].hbm_used_bytes == 0
    assert state.chips[2].expert_slots_filled >= 4 * 36


def test_a_spare_that_is_lost_stands_by_no_more() -> None:
    running = Running(spares=2)
    running.inject(lose(4))
    spares = running.state().chips[4:]

    assert [(chip.spare, chip.health) for chip in spares] == [
        (False, ChipHealth.LOST),
        (True, ChipHealth.UP),
    ]

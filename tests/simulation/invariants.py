"""Invariants after every step, and once no request is left."""

import numpy as np

from emulator.chip.commands import SendExperts
from emulator.chip.effects import ExpertWeights
from emulator.compute.checkpoint import load_experts, read_architecture
from emulator.data import SMALL_MOE_DIR
from emulator.specs.placement import EMPTY, ExpertPlacement
from emulator.specs.seating import VACANT
from emulator.units import NS_PER_S
from tests.serving.plugin.counted_steps import CountedSteps
from tests.simulation.troubled_engine import TroubledEngine


class TimeAndEnergy:
    """Follows the clock and the meter step by step.

    A step's own time is at its cost's watts, all other time at idle, spares always idle: known here
    without the engine's sums.
    """

    def __init__(self, engine: TroubledEngine) -> None:
        self._engine = engine
        partition, chip_watts = engine.machine.partition, engine.machine.cost_model.idle_chip_watts
        self._chip_watts = chip_watts
        self._spare_watts = chip_watts * partition.spares
        self._idle_watts = chip_watts * (partition.chips + partition.spares)
        self._last = engine.live.telemetry()
        self._counted = CountedSteps(engine.live)

    def check(self) -> None:
        """Assert that time has advanced since the last call, and every ns was paid for."""
        live = self._engine.live
        now, last = live.telemetry(), self._last
        self._last = now
        passed_s, paused_s = now.emulated_s - last.emulated_s, now.pause_s - last.pause_s
        assert passed_s >= 0, "the clock ran back"
        assert now.steps - last.steps in (0, 1), "call it after every step"
        if now.steps == last.steps:
            assert (passed_s, now.chip_joules) == (0, last.chip_joules)
            return
        cost = self._counted.last_cost
        assert cost is not None
        step_s = cost.duration_ns / NS_PER_S
        assert passed_s - paused_s >= step_s * (1 - 1e-9) - 1e-9
        step_watts = float(cost.chip_watts.sum()) + self._spare_watts
        joules = step_watts * step_s + self._idle_watts * (passed_s - step_s)
        lost = int(self._engine.live_machine.actual.lost.sum())
        joules -= self._chip_watts * lost * passed_s
        assert np.isclose(now.chip_joules - last.chip_joules, joules, rtol=1e-6, atol=1e-6)
        assert now.facility_joules - last.facility_joules >= joules * (1 - 1e-6)

    @property
    def step_ns(self) -> int:
        cost = self._counted.last_cost
        assert cost is not None
        return int(cost.duration_ns)

    @property
    def pause_ns(self) -> int:
        """Total time in which the machine was held up, at the last call."""
        return round(self._last.pause_s * NS_PER_S)


def check_agreement(engine: TroubledEngine) -> None:
    """Assert after a step that machine, processes and schedulers agree on chips and ranks."""
    machine, partition = engine.machine, engine.machine.partition
    seated = np.flatnonzero(machine.chips_up).tolist()
    seats = machine.seating.chip_of_position
    live_machine = engine.live_machine

    assert sorted(engine.fleet.live_chips) == seated
    assert engine.fleet._processes.channel.connected == engine.fleet.live_chips
    assert live_machine.actual.in_service[seats[seats != VACANT]].all()
    assert engine.scheduler.ranks_up.tolist() == machine.ranks_up.tolist()
    whole = machine.chips_up.reshape(partition.ranks, partition.tp).all(axis=1)
    assert not (machine.ranks_up & ~whole).any(), "a rank is up without all of its chips"


def check_idle(engine: TroubledEngine) -> None:
    """Assert that no request holds KV or HBM, and every expert is placed."""
    for rank in engine.scheduler.ranks:
        pool = rank.kv_cache_manager.block_pool
        assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1  # less vLLM's null block
        assert not rank.requests
        assert not rank.running
    assert not engine.scheduler._places, "a request that has ended is remembered"
    engine.machine.hbm.check()
    check_placed(engine, engine.machine.placement)
    check_placed(engine, engine.fleet.placement)


def check_placed(engine: TroubledEngine, placement: ExpertPlacement) -> None:
    """Assert that every expert is on a present chip, in every group with ranks that compute."""
    machine, partition = engine.machine, engine.machine.partition
    vacant = np.flatnonzero(~machine.chips_up).tolist()
    assert (placement.expert_of_slot[:, vacant] == EMPTY).all(), "experts lie where no chip is"
    ranks = np.flatnonzero(machine.ranks_up).tolist()
    groups = {chip // partition.ep for rank in ranks for chip in partition.chips_of_rank(rank)}
    missing = {group for group, _, _ in placement.missing()}
    assert not missing & groups, "an expert is nowhere"


def check_memories(engine: TroubledEngine, layers: list[int]) -> None:
    """Assert that the chips hold the right expert's weights in every slot of `layers`."""
    arch = read_architecture(SMALL_MOE_DIR)
    fleet, slots = engine.fleet, engine.fleet.placement.expert_of_slot
    for layer in layers:
        whole = load_experts(SMALL_MOE_DIR, arch, layer, range(arch.experts))
        filled = {p: np.flatnonzero(slots[layer, p] != EMPTY).tolist() for p in fleet.live_chips}
        read = fleet._tell(
            {
                position: SendExperts(layer=layer, slots=held)
                for position, held in filled.items()
                if held
            }
        )
        for position, weights in read.items():
            assert isinstance(weights, ExpertWeights), weights
            experts = slots[layer, position, filled[position]]
            assert np.array_equal(weights.gate_up, whole.gate_up[experts]), (layer, position)
            assert np.array_equal(weights.down, whole.down[experts]), (layer, position)

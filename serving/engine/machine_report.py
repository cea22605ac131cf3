"""The machine's state as the control service shows it, put together between two steps."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from emulator.specs.health import TIERS
from emulator.specs.link_lanes import lanes_of
from emulator.specs.placement import EMPTY
from emulator.specs.seating import VACANT
from emulator.ultraserver.machine import Machine
from serving.engine.chip_leases import ChipLeases
from serving.engine.deployment import Deployment
from serving.engine.engine_description import partition_state
from serving.engine.ledger import Float64s
from serving.engine.live_machine import LiveMachine
from serving.engine.scheduler_state import RankQueues
from serving.wire.machine_state import (
    SERVING,
    ChipHealth,
    ChipState,
    CutLink,
    ExpertBalance,
    MachineState,
    RackState,
    RankState,
)
from serving.wire.telemetry import Telemetry, with_figures


def machine_state(
    deployment: Deployment,
    live: LiveMachine,
    telemetry: Telemetry,
    balance: ExpertBalance,
    *,
    leases: ChipLeases,
    watts: Float64s,
    queues: tuple[RankQueues, ...],
    kv_blocks: int,
) -> MachineState:
    """Everything, as it is now. `queues` are the ranks' schedulers at the last step;
    `watts` are of each chip, [chips].
    """
    machine, partition = live.machine, deployment.partition
    return with_figures(
        MachineState,
        telemetry,
        system=deployment.system.name,
        model=deployment.time_model.name,
        weights=deployment.weights_name,
        routing=deployment.routing,
        partition=partition_state(partition),
        chips=_chips(live, leases, watts.tolist()),
        ranks=_ranks(machine, queues, kv_blocks),
        racks=_racks(live),
        faults=live.faults.records,
        expert_balance=balance,
        leases=leases.states,
    )


def _chips(live: LiveMachine, leases: ChipLeases, watts: Sequence[float]) -> tuple[ChipState, ...]:
    machine = live.machine
    health, partition, system = live.actual, machine.partition, machine.system
    position_of = {
        int(chip): position
        for position, chip in enumerate(machine.seating.chip_of_position.tolist())
        if chip != VACANT
    }
    phases = leases.phases
    slots = machine.placement.expert_of_slot  # [layers, positions, slots]
    filled = (slots != EMPTY).sum(axis=(0, 2))  # [positions]
    empty = [replace(each, owner_bytes={}) for each in machine.hbm.allocators[0].usage()]
    per_tray, per_rack = system.chips_per_tray.count, system.chips_per_rack
    chips = []
    for chip in range(len(health.lost)):
        position = position_of.get(chip)
        place = partition.first_chip + chip
        seated = position is not None
        holds = position if seated else machine.lent_position(chip)  # whose HBM it is
        chips.append(
            ChipState(
                chip=chip,
                rack=place // per_rack,
                tray=place % per_rack // per_tray,
                position=place % per_tray,
                health=_health(live, chip),
                slow_factor=float(health.slow_factor[chip]),
                spare=not seated and bool(health.in_service[chip]),
                rank=partition.rank_of_chip(position) if position is not None else None,
                stacks=tuple(
                    replace(stack, failed=failed)
                    for stack, failed in zip(
                        empty if holds is None else machine.hbm.allocators[holds].usage(),
                        health.failed_stacks[chip].tolist(),
                        strict=True,
                    )
                ),
                cut_links=_cut_links(live, chip),
                expert_slots=machine.placement.layers * machine.placement.slots if seated else 0,
                expert_slots_filled=int(filled[position]) if position is not None else 0,
                watts=watts[chip],
                phase=phases.get(chip, SERVING),
            )
        )
    return tuple(chips)


def _health(live: LiveMachine, chip: int) -> ChipHealth:
    health = live.actual
    if health.hung[chip]:
        return ChipHealth.HUNG
    if not health.works[chip]:
        return ChipHealth.LOST
    return ChipHealth.SLOW if health.slow_factor[chip] > 1 else ChipHealth.UP


def _cut_links(live: LiveMachine, chip: int) -> tuple[CutLink, ...]:
    lanes = lanes_of(live.machine.system.chip)
    return tuple(
        CutLink(tier=tier, lanes_cut=int(down), lanes=lanes[tier].lanes.count)
        for tier, down in zip(TIERS, live.actual.lanes_down[chip].tolist(), strict=True)
        if down
    )


def _ranks(
    machine: Machine, queues: tuple[RankQueues, ...], kv_blocks: int
) -> tuple[RankState, ...]:
    empty = RankQueues(running=0, waiting=0, kv_blocks_used=0)
    by_rank = queues or (empty,) * machine.partition.ranks
    return tuple(
        RankState(
            rank=rank,
            up=bool(up),
            requests_running=queue.running,
            requests_waiting=queue.waiting,
            kv_blocks_used=queue.kv_blocks_used,
            kv_blocks=kv_blocks,
        )
        for rank, (up, queue) in enumerate(zip(machine.ranks_up.tolist(), by_rank, strict=True))
    )


def _racks(live: LiveMachine) -> tuple[RackState, ...]:
    trays = live.machine.system.switch_trays_per_rack.count
    out = np.asarray(live.actual.switch_trays_out).tolist()
    return tuple(
        RackState(rack=rack, switch_trays_up=trays - pulled, switch_trays=trays)
        for rack, pulled in enumerate(out)
    )

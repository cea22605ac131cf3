"""Views of a running engine, each of one moment, with one clock and one power."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from emulator.specs.health import TIERS
from emulator.specs.link_lanes import lanes_of
from emulator.specs.placement import EMPTY
from emulator.specs.seating import VACANT
from emulator.units import NS_PER_S
from serving.engine.chip_leases import ChipLeases
from serving.engine.deployment import Deployment
from serving.engine.engine_description import partition_state
from serving.engine.engine_meters import EngineMeters
from serving.engine.engine_sleep import EngineSleep
from serving.engine.engine_steps import EngineSteps
from serving.engine.engine_time import EngineTime
from serving.engine.expert_moves import ExpertMoves
from serving.engine.kv_moves import KvMoves
from serving.engine.ledger import Float64s
from serving.engine.live_machine import LiveMachine
from serving.engine.model_versions import ModelVersions
from serving.engine.scheduler_state import RankQueues, SchedulerState
from serving.wire.machine_snapshot import MachineSnapshot
from serving.wire.machine_state import (
    SERVING,
    ChipHealth,
    ChipState,
    CutLink,
    HostRatio,
    MachineState,
    RackState,
    RankState,
)
from serving.wire.telemetry import Telemetry, with_figures


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineViews:
    """Views over the engine's parts; `heard` is its scheduler's last state."""

    deployment: Deployment
    live: LiveMachine
    time: EngineTime
    meters: EngineMeters
    experts: ExpertMoves
    kv: KvMoves
    steps: EngineSteps
    versions: ModelVersions
    leases: ChipLeases
    sleep: EngineSleep
    kv_blocks: int
    host_ratios: tuple[HostRatio, ...]

    def note_lost(self) -> None:
        """Update which chips draw power: lost ones do not."""
        self.meters.ledger.lose(self.live.actual.lost, self.time.now_ns)

    def telemetry(self, heard: SchedulerState) -> Telemetry:
        """The figures that change all the time."""
        return self._telemetry(heard, *self._now())

    def state(self, heard: SchedulerState) -> MachineState:
        """The whole machine."""
        at_ns, watts = self._now()
        return self._state(heard, self._telemetry(heard, at_ns, watts), watts)

    def snapshot(self, heard: SchedulerState) -> MachineSnapshot:
        """State, telemetry and meters of one moment."""
        at_ns, watts = self._now()
        telemetry = self._telemetry(heard, at_ns, watts)
        return self.meters.snapshot(at_ns, telemetry, self._state(heard, telemetry, watts))

    def _now(self) -> tuple[int, Float64s]:
        """The present in ns, and each chip's watts then, [chips]."""
        self.note_lost()
        at_ns = self.time.now_ns
        return at_ns, self.meters.watts(at_ns, self.live.actual, self.leases.going_on)

    def _telemetry(self, heard: SchedulerState, at_ns: int, watts: Float64s) -> Telemetry:
        """Figures at `at_ns`, not before the last step's end; `watts` are [chips].

        No total falls later: a step that begins since the last one draws at least idle power.
        """
        time, ledger, machine = self.time, self.meters.ledger, self.live.machine
        cost, epoch, queues = machine.cost_model, time.epoch, heard.rank_states
        tokens, chip_watts = self.meters.tokens.totals, float(watts.sum())
        ranks = self.deployment.partition.ranks
        return Telemetry(
            dilation=time.dilation,
            clock_epoch=epoch.index if epoch else 0,
            epoch_emulated_s=epoch.from_ns / NS_PER_S if epoch else 0.0,
            epoch_unix_s=time.unix_s(epoch) if epoch else 0.0,
            emulated_s=at_ns / NS_PER_S,
            steps=time.steps,
            busy_s=time.busy_ns / NS_PER_S,
            lag_s=time.lag_ns / NS_PER_S,
            lagging_steps=time.lagging_steps,
            compute_wall_s=time.compute_wall_s,
            pause_s=time.pause_ns / NS_PER_S,
            prompt_tokens=tokens.prompt_tokens,
            output_tokens=tokens.output_tokens,
            requests_arrived=heard.arrived_requests,
            requests_running=sum(queue.running for queue in queues),
            requests_waiting=heard.waiting,
            requests_moved=heard.moved_requests,
            empty_rank_steps=heard.empty_rank_steps,
            kv_blocks_used=sum(queue.kv_blocks_used for queue in queues),
            kv_blocks=self.kv_blocks * ranks,
            chips=cost.partition.chips,
            chips_up=int(machine.chips_up.sum()),
            chips_leased=self.leases.chips_leased,
            ranks=ranks,
            ranks_up=int(machine.ranks_up.sum()),
            chip_joules=float(ledger.chip_joules(at_ns).sum()),
            facility_joules=ledger.facility_joules(at_ns),
            chip_watts=chip_watts,
            facility_watts=cost.facility_watts(chip_watts),
            provisioned_watts=cost.provisioned_watts,
            faults=len(self.live.faults),
            expert_imbalance=self.experts.imbalance,
            expert_rebalances=self.experts.rebalances,
            expert_moved_bytes=self.experts.moved_bytes,
            model_version=self.versions.target.number,
            rollout_blocks_pending=self.versions.waiting_blocks,
            stall=self.steps.stall(),
            **asdict(self.leases.totals),
            **asdict(self.kv.totals),
        )

    def _state(self, heard: SchedulerState, telemetry: Telemetry, watts: Float64s) -> MachineState:
        deployment = self.deployment
        return with_figures(
            MachineState,
            telemetry,
            system=deployment.system.name,
            model=deployment.time_model.name,
            weights=deployment.weights_name,
            routing=deployment.routing,
            partition=partition_state(deployment.partition),
            chips=_chips(self.live, self.leases, watts.tolist()),
            ranks=self._ranks(heard),
            racks=_racks(self.live),
            faults=self.live.faults.records,
            expert_balance=self.experts.balance,
            leases=self.leases.states,
            versions=self.versions.states(),
            sleep=self.sleep.state(),
            host_ratios=self.host_ratios,
        )

    def _ranks(self, heard: SchedulerState) -> tuple[RankState, ...]:
        ranks_up = self.live.machine.ranks_up.tolist()
        empty = RankQueues(running=0, waiting=0, kv_blocks_used=0)
        by_rank = heard.rank_states or (empty,) * len(ranks_up)
        return tuple(
            RankState(
                rank=rank,
                up=bool(up),
                requests_running=queue.running,
                requests_waiting=queue.waiting,
                kv_blocks_used=queue.kv_blocks_used,
                kv_blocks=self.kv_blocks,
                version=self.versions.number_of(rank),
            )
            for rank, (up, queue) in enumerate(zip(ranks_up, by_rank, strict=True))
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


def _racks(live: LiveMachine) -> tuple[RackState, ...]:
    trays = live.machine.system.switch_trays_per_rack.count
    out = np.asarray(live.actual.switch_trays_out).tolist()
    return tuple(
        RackState(rack=rack, switch_trays_up=trays - pulled, switch_trays=trays)
        for rack, pulled in enumerate(out)
    )

"""Profiles of traffic in virtual time."""

from functools import partial

import numpy as np

from emulator.memory.chip_contents import HbmTerms
from emulator.specs.model import ModelSpec
from emulator.specs.partition import Partition
from emulator.specs.placement import ExpertPlacement
from emulator.specs.system import SystemSpec
from emulator.timing.expert_distribution import ExpertDistribution
from emulator.ultraserver.ceilings import Ceilings, ceilings_of
from emulator.ultraserver.machine import Machine
from emulator.units import NS_PER_S
from loadgen.workloads.traffic import Traffic
from serving.analysis.profile.profiled_run import (
    WHAT_IF_FACTOR,
    ProfiledChip,
    ProfiledRun,
    by_owner,
)
from serving.analysis.steady_state.step_assumptions import StepAssumptions
from serving.engine.step_recording import StepRecording
from serving.simulator import SchedulerLimits, SimulatedDeployment, simulate
from serving.traffic.engine_limits import HBM_SHARE


def profile_traffic(
    traffic: Traffic,
    system: SystemSpec,
    model: ModelSpec,
    partition: Partition,
    *,
    distribution: ExpertDistribution,
    limits: SchedulerLimits,
    steps_max: int,
    assumed: StepAssumptions,
) -> tuple[ProfiledRun, Ceilings]:
    """Serve `traffic`, keep the last `steps_max` steps and cost a sample again.

    Raises ConfigError for arguments that contradict each other, HbmExhausted.
    """
    machine = _machine(system, model, partition, distribution, assumed=assumed)
    cost_model = machine.cost_model
    blocks = machine.kv_tokens_per_rank // limits.block_tokens
    machine.take_kv(blocks * limits.block_tokens)
    recording = StepRecording(1, steps_max)
    deployment = SimulatedDeployment(
        cost_model=cost_model,
        limits=limits.with_kv(machine.kv_tokens_per_rank),
    )
    served = simulate(
        deployment,
        traffic,
        on_step=partial(
            recording.add,
            costing=machine.costing(),
            loads=None,
            pause_ns=0,
            chips=np.arange(partition.chips),
        ),
    ).served
    ceilings = ceilings_of(cost_model)
    run = ProfiledRun(
        source="virtual",
        system=system.name,
        model=model.name,
        weights="none (lengths alone)",
        routing=cost_model.routing,
        calibration=cost_model.calibration.name,
        tp=partition.tp,
        begin_ns=0,
        end_ns=round(served.emulated_s * NS_PER_S),
        chips=_chips(machine, ceilings),
        kv_blocks=(blocks,) * partition.ranks,
        steps=recording.records(),
        dropped=recording.dropped,
        what_ifs=tuple(recording.what_if(one, WHAT_IF_FACTOR) for one in range(recording.samples)),
    )
    return run, ceilings


def _machine(
    system: SystemSpec,
    model: ModelSpec,
    partition: Partition,
    distribution: ExpertDistribution,
    *,
    assumed: StepAssumptions,
) -> Machine:
    placement = ExpertPlacement.even(
        layers=model.moe_layers, experts=model.experts, chips=partition.chips, ep=partition.ep
    )
    return Machine(
        system,
        model,
        partition,
        placement,
        distribution=distribution,
        calibration=assumed.calibration,
        overlap=assumed.overlap,
        terms=HbmTerms(utilization=HBM_SHARE),
    )


def _chips(machine: Machine, ceilings: Ceilings) -> tuple[ProfiledChip, ...]:
    system, partition = machine.system, machine.partition
    per_tray, per_rack = system.chips_per_tray.count, system.chips_per_rack
    chips = []
    for chip, stacks in enumerate(machine.hbm.usage()):
        place = partition.first_chip + chip
        held = by_owner(stack.owner_bytes for stack in stacks)
        chips.append(
            ProfiledChip(
                chip=chip,
                rack=place // per_rack,
                tray=place % per_rack // per_tray,
                position=place % per_tray,
                rank=partition.rank_of_chip(chip),
                hbm_capacity_bytes=sum(stack.capacity_bytes for stack in stacks),
                owner_bytes=held,
                idle_watts=ceilings.idle_watts,
            )
        )
    return tuple(chips)

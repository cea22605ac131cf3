"""Static description of an engine, for the control service and as the vendor's labels."""

from collections.abc import Mapping
from importlib.metadata import version
from typing import Final

import numpy as np

from emulator.errors import ConfigError
from emulator.memory.lnc import core_map
from emulator.specs.figure import NamedFigures
from emulator.specs.partition import Partition
from emulator.specs.placement import EMPTY
from emulator.specs.system import SystemSpec
from emulator.ultraserver.machine import Machine
from serving.engine.deployment import Deployment
from serving.telemetry.neuron_tools.server_processes import TAG_VARIABLE
from serving.telemetry.page.neuron_page import Instance
from serving.wire.machine_state import PartitionState
from serving.wire.placement_page import LayerPlacement, PlacementPage, RankPlacement
from serving.wire.system_description import (
    RackDescription,
    SpecFigure,
    SpecSheet,
    SystemDescription,
)


def describe_engine(
    deployment: Deployment, *, dilation: float, kv_blocks: int
) -> SystemDescription:
    """The engine's static description; `kv_blocks` are each rank's."""
    system, settings = deployment.system, deployment.settings
    return SystemDescription(
        ultraserve_version=version("ultraserve"),
        vllm_version=version("vllm"),
        system=_sheet(system.name, system.figures()),
        chip=_sheet(system.chip.name, system.chip.figures()),
        model=_sheet(deployment.time_model.name, deployment.time_model.figures()),
        weights=deployment.weights_name,
        routing=deployment.routing,
        topology=system.topology,
        switch_generation=system.switch_generation,
        partition=partition_state(deployment.partition),
        racks=_racks(system, deployment.partition),
        clock=settings.clock,
        dilation=dilation,
        calibration=settings.calibration,
        overlap=settings.overlap,
        kv_blocks=kv_blocks,
        ultraserver=settings.ultraserver,
    )


def instance_of(deployment: Deployment, environment: Mapping[str, str], *, pid: int) -> Instance:
    """The vendor's labels; a chip whose cores always form one logical core has no NeuronCores."""
    chip = deployment.system.chip
    has_cores = chip.lnc_sizes != (chip.cores.count,)
    return Instance(
        instance_type=deployment.system.name,
        runtime_tag=environment.get(TAG_VARIABLE) or str(pid),
        cores=core_map(chip, deployment.partition.lnc) if has_cores else None,
    )


def partition_state(partition: Partition) -> PartitionState:
    """The partition as the control service shows it."""
    return PartitionState(
        chips=partition.chips,
        tp=partition.tp,
        dp=partition.ranks,
        ep=partition.ep,
        lnc=partition.lnc,
        attention_split=partition.attention_split.value,
        first_chip=partition.first_chip,
        spares=partition.spares,
    )


def _sheet(name: str, figures: NamedFigures) -> SpecSheet:
    return SpecSheet(
        name=name,
        figures=tuple(
            SpecFigure(
                name=label,
                value=figure.value,
                unit=figure.unit,
                source=figure.source,
                assumed=figure.assumed,
            )
            for label, figure in figures
        ),
    )


def _racks(system: SystemSpec, partition: Partition) -> tuple[RackDescription, ...]:
    per_rack = system.chips_per_rack
    ours = range(partition.chips + partition.spares)
    return tuple(
        RackDescription(
            rack=rack,
            trays=system.trays_per_rack.count,
            chips_per_tray=system.chips_per_tray.count,
            switch_trays=system.switch_trays_per_rack.count,
            chips=tuple(chip for chip in ours if (partition.first_chip + chip) // per_rack == rack),
        )
        for rack in range(system.racks.count * system.units)
    )


NUMBERS_PER_PAGE: Final = 65_536
"""Slots and experts of a page, at most 6 bytes each in JSON and 3 on the wire: below half a
megabyte. One layer has fewer: 144 chips of 256 slots and 512 experts."""


def placement_page(machine: Machine, first_layer: int) -> PlacementPage:
    """Layers from `first_layer` on; raises ConfigError for one beyond the last."""
    placement, partition = machine.placement, machine.partition
    if not 0 <= first_layer <= placement.layers:
        raise ConfigError("first_layer", first_layer, f"0 to {placement.layers}")
    per_layer = placement.chips * placement.slots + placement.experts
    count = max(1, NUMBERS_PER_PAGE // max(1, per_layer))
    end = min(first_layer + count, placement.layers)
    return PlacementPage(
        layers=placement.layers,
        experts=placement.experts,
        positions=placement.chips,
        slots=placement.slots,
        ep=placement.ep,
        chips=tuple(machine.seating.chip_of_position.tolist()),
        ranks=tuple(
            RankPlacement(rank=rank, up=bool(up), positions=tuple(partition.chips_of_rank(rank)))
            for rank, up in enumerate(machine.ranks_up.tolist())
        ),
        placements=tuple(_layer(machine, layer) for layer in range(first_layer, end)),
        next_layer=end,
    )


def _layer(machine: Machine, layer: int) -> LayerPlacement:
    placement = machine.placement
    slots = placement.expert_of_slot[layer].ravel()  # [positions x slots]
    held = slots[slots != EMPTY]
    return LayerPlacement(
        layer=layer,
        expert_of_slot=tuple(slots.tolist()),
        copies=tuple(np.bincount(held, minlength=placement.experts).tolist()),
    )

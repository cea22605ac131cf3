"""A machine's devices as neuron-ls lists them: of a running engine, or of the catalog.

They are numbered as in the partition, spares last; without an engine as in the system. A lost one
is neither listed nor connected, as a driver would not find it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from emulator.errors import ConfigError
from emulator.fabric.connected_chips import connected_chips
from emulator.memory.lnc import CoreMap, core_map
from emulator.specs.chips import chip_by_name
from emulator.specs.system import SystemSpec
from emulator.specs.systems import system_by_name
from serving.wire.machine_state import ChipHealth, MachineState
from serving.wire.system_description import SystemDescription

_CLUSTER: Final = " x "


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProcess:
    """A process that uses a device; not `runtime`: only looks."""

    pid: int
    command: str
    runtime: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class NeuronDevice:
    """One chip.

    Attributes:
        connected_to: devices joined by its links or its tray's switch; None for none.
        core_ids: its logical cores, numbered over all devices.
    """

    device: int
    connected_to: tuple[int, ...] | None
    core_ids: tuple[int, ...]
    memory_bytes: int
    processes: tuple[DeviceProcess, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInventory:
    """All devices; `missing`: health of lost ones; `first_chip`: device 0's place in the system."""

    system: SystemSpec
    lnc: int
    first_chip: int
    devices: tuple[NeuronDevice, ...]
    missing: Mapping[int, str]


def catalog_inventory(name: str, *, lnc: int | None, chips: int | None) -> DeviceInventory:
    """The first `chips` devices of a system, by default all; raises ConfigError, NeuronError."""
    system = system_by_name(name)
    count = system.chips.count if chips is None else chips
    if not 1 <= count <= system.chips.count:
        raise ConfigError("chips", count, f"1 to {system.chips.count} for {system.name}")
    cores = core_map(system.chip, system.chip.default_lnc.count if lnc is None else lnc)
    connections = _connections(system, first_chip=0, there=range(count))
    devices = tuple(
        _device(chip, connections[chip], cores, system.chip.hbm_bytes) for chip in range(count)
    )
    return DeviceInventory(system=system, lnc=cores.lnc, first_chip=0, devices=devices, missing={})


def server_inventory(
    state: MachineState,
    description: SystemDescription,
    processes: Mapping[int, tuple[DeviceProcess, ...]],
) -> DeviceInventory:
    """The devices of an engine; `processes` by device. Raises ConfigError for a system or a chip
    that this program's catalog lacks.
    """
    system = system_of(state.system)
    lnc, first = state.partition.lnc, state.partition.first_chip
    cores = core_map(chip_by_name(description.chip.name), lnc)
    there = [chip for chip in state.chips if chip.health is not ChipHealth.LOST]
    connections = _connections(system, first_chip=first, there=[chip.chip for chip in there])
    devices = tuple(
        _device(
            chip.chip,
            connections[chip.chip],
            cores,
            sum(stack.capacity_bytes for stack in chip.stacks),
            processes.get(chip.chip, ()),
        )
        for chip in there
    )
    missing = {
        chip.chip: str(chip.health) for chip in state.chips if chip.health is ChipHealth.LOST
    }
    return DeviceInventory(
        system=system, lnc=lnc, first_chip=first, devices=devices, missing=missing
    )


def system_of(name: str) -> SystemSpec:
    """The system that an engine names, of one or several units; raises ConfigError."""
    units, cluster, one = name.partition(_CLUSTER)
    return system_by_name(one).cluster(int(units)) if cluster else system_by_name(name)


def _connections(
    system: SystemSpec, *, first_chip: int, there: Sequence[int]
) -> dict[int, tuple[int, ...] | None]:
    """Connected devices of each that is `there`, among these; None for no connection."""
    known = connected_chips(system)
    present = set(there)
    found: dict[int, tuple[int, ...] | None] = {}
    for device in there:
        others = (other - first_chip for other in known[first_chip + device])
        found[device] = tuple(other for other in others if other in present) or None
    return found


def _device(
    chip: int,
    connected_to: tuple[int, ...] | None,
    cores: CoreMap,
    memory_bytes: int,
    processes: tuple[DeviceProcess, ...] = (),
) -> NeuronDevice:
    ids = (cores.global_core(chip=chip, core=core.core) for core in cores.cores)
    return NeuronDevice(
        device=chip,
        connected_to=connected_to,
        core_ids=tuple(ids),
        memory_bytes=memory_bytes,
        processes=processes,
    )

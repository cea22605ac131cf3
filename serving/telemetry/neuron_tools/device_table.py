"""neuron-ls' tables and its JSON, of an inventory.

Source of the columns, titles, centring and the JSON's fields and their order: AWS Neuron SDK docs,
neuron-ls.rst (the tables of a trn2n.48xlarge); `null` for no connection: a public sample of a
trn2.3xlarge. PCI BDF, CPU affinity and NUMA node, of real instances alone, are "NA" in a table,
null in JSON.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from serving.telemetry.neuron_tools.device_inventory import (
    DeviceInventory,
    DeviceProcess,
    NeuronDevice,
)
from serving.telemetry.neuron_tools.neuron_names import NOT_THERE

ABSENT: Final = "NA"
"""neuron-ls' word for a missing runtime version."""

_GIB: Final = 2**30
_COMMAND_WIDE: Final = 80
_COMMAND_NARROW: Final = 40

_DEVICE: Final = (("NEURON", "DEVICE"), ("NEURON", "CORES"))
_CORE_IDS: Final = ("NEURON", "CORE IDS")
_MEMORY: Final = (("NEURON", "MEMORY"), ("CONNECTED", "DEVICES"), ("PCI", "BDF"))
_PLACE: Final = (("CPU", "AFFINITY"), ("NUMA", "NODE"))
_PROCESS: Final = (("PID", ""), ("COMMAND", ""), ("RUNTIME", "VERSION"))

Titles = tuple[tuple[str, str], ...]


def device_json(inventory: DeviceInventory) -> list[dict[str, Any]]:
    """The devices with neuron-ls' fields."""
    return [
        {
            "instance_type": inventory.system.name,
            "instance_id": NOT_THERE,
            "neuron_device": device.device,
            "bdf": None,
            "cpu_affinity": None,
            "numa_node": None,
            "connected_to": None if device.connected_to is None else list(device.connected_to),
            "nc_count": len(device.core_ids),
            "logical_neuroncore_config": inventory.lnc,
            "memory_size": device.memory_bytes,
            "neuroncore_ids": list(device.core_ids),
            "neuron_processes": [
                {
                    "pid": process.pid,
                    "command": process.command,
                    "neuron_runtime_version": ABSENT,
                }
                for process in device.processes
                if process.runtime
            ],
        }
        for device in inventory.devices
    ]


def header_lines(inventory: DeviceInventory) -> list[str]:
    """Lines above every table."""
    return [
        f"instance-type: {inventory.system.name}",
        f"instance-id: {NOT_THERE}",
        f"logical-neuroncore-config: {inventory.lnc}",
    ]


def plain_table(inventory: DeviceInventory) -> list[str]:
    """A line per device, with its cores' numbers."""
    rows = [
        (
            *_first_cells(device),
            _range(device.core_ids),
            *_memory_cells(device),
            ABSENT,
            ABSENT,
        )
        for device in inventory.devices
    ]
    return _table((*_DEVICE, _CORE_IDS, *_MEMORY, *_PLACE), [[row] for row in rows])


def topology_table(inventory: DeviceInventory) -> list[str]:
    """The table above the drawing."""
    rows = [(*_first_cells(device), *_memory_cells(device)) for device in inventory.devices]
    return _table((*_DEVICE, *_MEMORY), [[row] for row in rows])


def process_table(
    inventory: DeviceInventory, *, wide: bool, everybody: bool, looking: DeviceProcess
) -> list[str]:
    """Devices with the processes that use them, a line each, as neuron-ls prints them.

    `everybody` adds those that only look, `looking` (this program) last, and a rule below each
    device; `wide` gives the command 80 columns instead of 40.
    """
    width = _COMMAND_WIDE if wide else _COMMAND_NARROW
    groups = []
    for device in inventory.devices:
        shown = [process for process in device.processes if process.runtime or everybody]
        if everybody:
            shown.append(looking)
        cells = (*_first_cells(device), *_memory_cells(device))
        rows = [
            (*(cells if number == 0 else ("",) * len(cells)), *_process_cells(process, width))
            for number, process in enumerate(shown)
        ]
        groups.append(rows or [(*cells, "", "", "")])
    return _table((*_DEVICE, *_MEMORY, *_PROCESS), groups, ruled=everybody)


def _first_cells(device: NeuronDevice) -> tuple[str, str]:
    return str(device.device), str(len(device.core_ids))


def _memory_cells(device: NeuronDevice) -> tuple[str, str, str]:
    """In GiB, which the vendor's tool calls GB."""
    connected = ", ".join(map(str, device.connected_to or ()))
    return f"{device.memory_bytes / _GIB:g} GiB", connected, ABSENT


def _process_cells(process: DeviceProcess, width: int) -> tuple[str, str, str]:
    command = process.command
    if len(command) > width:
        command = f"{command[: width - 3]}..."
    return str(process.pid), command, ABSENT


def _range(ids: Sequence[int]) -> str:
    return f"{ids[0]}-{ids[-1]}" if len(ids) > 1 else str(ids[0])


def _table(
    titles: Titles, groups: Sequence[Sequence[Sequence[str]]], *, ruled: bool = False
) -> list[str]:
    """Rows under two lines of titles; `ruled`: a rule after every group of rows."""
    columns = range(len(titles))
    widths = [
        max(*map(len, titles[column]), *(len(row[column]) for rows in groups for row in rows), 0)
        for column in columns
    ]
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"

    def lines() -> Iterator[str]:
        yield rule
        for line in (0, 1):
            yield _line([_centred(titles[at][line], widths[at]) for at in columns])
        yield rule
        for number, rows in enumerate(groups):
            for row in rows:
                yield _line([cell.ljust(width) for cell, width in zip(row, widths, strict=True)])
            if ruled or number == len(groups) - 1:
                yield rule

    return list(lines())


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _centred(text: str, width: int) -> str:
    """Centre `text`; an odd blank goes to the right."""
    return (" " * ((width - len(text)) // 2) + text).ljust(width)

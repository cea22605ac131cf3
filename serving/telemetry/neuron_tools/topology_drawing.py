"""The connections of devices, drawn under neuron-ls' table.

A torus of two dimensions is drawn as neuron-ls draws it; one of three as its layers, one of one as
a ring. The vendor has no drawing of switched and meshed systems: trays are lines, racks side by
side. A place without a device is "-".

Source of the torus' drawing: AWS Neuron SDK docs, neuron-ls.rst.
"""

from collections.abc import Iterator, Sequence
from math import prod

from emulator.specs.system import SystemSpec, Topology
from serving.telemetry.neuron_tools.device_inventory import DeviceInventory

_INDENT = "  "
_WRAP_LEGEND = "          *––► = Wrap-around link"


def topology_lines(inventory: DeviceInventory) -> list[str]:
    """Title, drawing, legend."""
    system = inventory.system
    drawn = _torus if system.topology is Topology.TORUS else _trays
    return ["Neuron Device Topology", *drawn(inventory), "", "Legend:", "", *_legend(system)]


def _label(inventory: DeviceInventory, place: int) -> str:
    """Label of the device at a place, numbered like the system's chips."""
    device = place - inventory.first_chip
    there = any(each.device == device for each in inventory.devices)
    return f"[{device if there else '-':^3}]"


def _torus(inventory: DeviceInventory) -> Iterator[str]:
    torus = inventory.system.torus
    width, height = torus[0], torus[1] if len(torus) > 1 else 1
    per_layer = width * height
    layers = prod(torus) * inventory.system.units // per_layer
    for layer in range(layers):
        if layers > 1:
            yield f"{_INDENT}layer {layer}"
        places = range(layer * per_layer, (layer + 1) * per_layer)
        labels = [_label(inventory, place) for place in places]
        yield from _layer([labels[at : at + width] for at in range(0, per_layer, width)])


def _layer(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """One square; a single row has no links down."""
    ring = len(rows) == 1
    columns = len(rows[0])

    def between(sign: str) -> str:
        return f"{_INDENT}      " + (" " * 8).join(sign * columns)

    if not ring:
        yield from (between(sign) for sign in "*│▼")
    for number, row in enumerate(rows):
        yield f"{_INDENT}*––►{'◄––►'.join(row)}◄––*"
        if not ring:
            yield from (between(sign) for sign in ("▲│*" if number == len(rows) - 1 else "▲│▼"))


def _trays(inventory: DeviceInventory) -> Iterator[str]:
    """A line for every tray number with a device in some rack."""
    system = inventory.system
    per_tray, per_rack = system.chips_per_tray.count, system.chips_per_rack
    racks = range(system.racks.count * system.units)
    used = {
        (inventory.first_chip + device.device) % per_rack // per_tray
        for device in inventory.devices
    }
    cell_width = per_tray * 6 - 1  # "[  0]" and what joins it
    titles = "   ".join(f"{f'rack {rack}':<{cell_width}}" for rack in racks)
    yield f"{_INDENT}{'':8}{titles}".rstrip()
    for tray in sorted(used):
        cells = []
        for rack in racks:
            first = rack * per_rack + tray * per_tray
            cells.append("–".join(_label(inventory, first + at) for at in range(per_tray)))
        yield f"{_INDENT}tray {tray:<3}" + "   ".join(cells)


def _legend(system: SystemSpec) -> Iterator[str]:
    match system.topology:
        case Topology.TORUS:
            yield _WRAP_LEGEND
            if len(system.torus) > 2:
                yield "          devices of one place in neighbouring layers are linked"
        case Topology.MESH:
            yield "          – = a link between every two devices of a tray"
        case Topology.SWITCHED:
            yield "          – = devices of a tray meet at its switch"
            trays = system.switch_trays_per_rack.count
            if system.trays_per_rack.count > 1:
                yield f"          trays of a rack meet at its {trays} switch trays"
            if system.racks.count > 1:
                yield "          devices of one position in two racks are linked"

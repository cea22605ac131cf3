"""Chips that share links with a chip, as a machine's tools list them.

Torus: in the order of neuron-ls, a step down in every dimension, the last dimension first, then a
step up in every dimension. Mesh: the others of the tray. Switched: the others of the tray, at its
switch, then the linked chips of the same position in the other racks (*assumed*: no output of
neuron-ls there is published).

Source of the order: AWS Neuron SDK docs, neuron-ls.rst, a trn2n.48xlarge: "12, 3, 4, 1" for device
0 of a 4 x 4 torus.
"""

from emulator.fabric.tiers import Tier, tiers_there
from emulator.fabric.wiring import neighbours
from emulator.specs.system import SystemSpec, Topology


def connected_chips(system: SystemSpec) -> tuple[tuple[int, ...], ...]:
    """The connected chips of each chip of `system`, in the tools' order."""
    if system.topology is Topology.TORUS:
        return _in_torus(system)
    return tuple(
        (*_of_tray(system, chip), *_across_racks(system, chip))
        for chip in range(system.chips.count)
    )


def _in_torus(system: SystemSpec) -> tuple[tuple[int, ...], ...]:
    per_unit = system.chips.count // system.units
    dimensions = range(len(system.torus))
    ways = [neighbours(system, dimension) for dimension in reversed(dimensions)]
    ordered = [way[:, 1].tolist() for way in ways] + [way[:, 0].tolist() for way in ways]
    connected = []
    for chip in range(system.chips.count):
        first, inside = chip - chip % per_unit, chip % per_unit
        found = dict.fromkeys(first + way[inside] for way in ordered if way[inside] != inside)
        connected.append(tuple(found))
    return tuple(connected)


def _of_tray(system: SystemSpec, chip: int) -> tuple[int, ...]:
    per_tray = system.chips_per_tray.count
    first = chip - chip % per_tray
    return tuple(other for other in range(first, first + per_tray) if other != chip)


def _across_racks(system: SystemSpec, chip: int) -> tuple[int, ...]:
    if system.topology is not Topology.SWITCHED or Tier.CROSS_RACK not in tiers_there(system):
        return ()
    per_rack, racks = system.chips_per_rack, system.racks.count
    unit, inside = divmod(chip, per_rack * racks)
    first = unit * per_rack * racks
    position = inside % per_rack
    return tuple(
        first + rack * per_rack + position for rack in range(racks) if rack != inside // per_rack
    )

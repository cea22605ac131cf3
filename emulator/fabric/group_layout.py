"""Layout of a collective's chips: levels, hypercube, rings.

A level is one coordinate: the place in the tray, the tray, the rack, the unit; in a torus, a
dimension. A hierarchical collective takes one phase per level; recursive doubling uses levels of
two chips.
"""

import numpy as np

from emulator.arrays import Float64s, Int64s
from emulator.fabric.tiers import rack_of, tray_of
from emulator.fabric.wiring import neighbours, places
from emulator.specs.system import SystemSpec, Topology


def levels(system: SystemSpec, group: Int64s) -> Int64s | None:
    """Place of each chip of a group on each level, the nearest first: int64[chips, levels].

    Without constant levels. None when the chips do not fill their levels, such as three of one tray
    and two of another.
    """
    per_unit = system.chips.count // system.units
    if system.topology is Topology.TORUS:
        inside = places(system)[group % per_unit]
    else:
        tray, rack = tray_of(system, group), rack_of(system, group)
        inside = np.stack(
            [group % system.chips_per_tray.count, tray % system.trays_per_rack.count, rack], axis=1
        )
        inside[:, 2] %= system.racks.count
    raw = np.concatenate([inside, (group // per_unit)[:, None]], axis=1)
    columns = [np.unique(column, return_inverse=True)[1] for column in raw.T]
    dense = np.stack([column for column in columns if column.max() > 0] or columns[:1], axis=1)
    full = int(np.prod(dense.max(axis=0) + 1)) == len(group)
    return dense if full and len(np.unique(dense, axis=0)) == len(group) else None


def hypercube(system: SystemSpec, group: Int64s) -> Int64s | None:
    """Levels of two chips each, int64[chips, log2(chips)]; None for no power of two.

    In a torus the two are neighbours: a dimension of 4 is a square of two levels (Gray code).
    """
    count = len(group)
    if count & (count - 1):
        return None
    dense = levels(system, group)
    if dense is None or ((sizes := dense.max(axis=0) + 1) & (sizes - 1)).any():
        dense, sizes = np.arange(count)[:, None], np.array([count])
    bits = []
    for column, size in zip(dense.T, sizes.tolist(), strict=True):
        code = column ^ (column >> 1) if system.topology is Topology.TORUS else column
        bits += [(code >> bit) & 1 for bit in range(size.bit_length() - 1)]
    return np.stack(bits, axis=1)


def level_meshes(coordinates: Int64s) -> Float64s:
    """Bytes of a chip's part to those that differ in one level: float64[levels, chips, chips]."""
    same = coordinates[:, None, :] == coordinates[None, :, :]  # [chips, chips, levels]
    others = same.sum(axis=2) == coordinates.shape[1] - 1
    return np.moveaxis(others[:, :, None] & ~same, 2, 0).astype(np.float64)


def level_rings(coordinates: Int64s) -> Float64s:
    """The same parts on rings, float64[levels, chips, chips]: half to each of a level's neighbours.

    All steps of a ring together, with own and forwarded parts. A level of two is a mesh.
    """
    sizes = coordinates.max(axis=0) + 1
    apart = (coordinates[None] - coordinates[:, None]) % sizes  # [chips, chips, levels]
    ways = (apart == 1) * 1.0 + (apart == sizes - 1)
    parts = np.moveaxis(ways * (sizes - 1) / 2, 2, 0)
    rings: Float64s = parts * (level_meshes(coordinates) > 0)
    return rings


def ring_shares(system: SystemSpec, group: Int64s) -> Float64s:
    """Share of a chip's bytes to each other on the rings: float64[chips, chips], rows add to 1.

    A whole torus, or a tray with a link per pair of chips, has as many rings as links, each in both
    directions, none over the same wires (the vendor runs so many on a 4 x 4 torus; tori of any
    dimensions can be divided so). Otherwise one ring through all chips, both ways.
    """
    count = len(group)
    joined = np.zeros((count, count))
    if system.topology is Topology.MESH and len(set(tray_of(system, group).tolist())) == 1:
        joined[:] = 1.0
    elif system.topology is Topology.TORUS and _whole_torus(system, group):
        for dimension, size in enumerate(system.torus):
            if size > 1:
                ways = neighbours(system, dimension)[group % count]
                position = np.argsort(group)
                np.add.at(joined, (np.arange(count)[:, None], position[ways]), 1.0)
    else:
        order = _snake(system, group)
        for way in (1, -1):
            joined[order, np.roll(order, way)] += 1.0
    np.fill_diagonal(joined, 0.0)
    shares: Float64s = joined / joined.sum(axis=1, keepdims=True)
    return shares


def _whole_torus(system: SystemSpec, group: Int64s) -> bool:
    per_unit = system.chips.count // system.units
    return len(group) == per_unit and len(set((group // per_unit).tolist())) == 1


def _snake(system: SystemSpec, group: Int64s) -> Int64s:
    """Positions in an order of near chips, int64[chips]: as given, or winding through a torus."""
    if system.topology is not Topology.TORUS:
        return np.arange(len(group))
    per_unit = system.chips.count // system.units
    place = places(system)[group % per_unit]
    keys = [group // per_unit]
    turns = np.zeros(len(group), dtype=np.int64)
    for dimension in reversed(range(len(system.torus))):
        along = place[:, dimension]
        keys.append(np.where(turns % 2, -along, along))
        turns += along
    order: Int64s = np.lexsort(keys[::-1])
    return order

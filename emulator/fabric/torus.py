"""Places and neighbours in a torus: two neighbours per dimension.

A unit's chips fill the first dimension first. The first dimensions lie inside a tray.
"""

import numpy as np

from emulator.arrays import Int64s
from emulator.errors import ConfigError
from emulator.specs.system import SystemSpec


def places(system: SystemSpec) -> Int64s:
    """The place of each chip of a unit, int64[chips of a unit, dimensions]."""
    chips = system.chips.count // system.units
    place: Int64s = np.stack(np.unravel_index(np.arange(chips), system.torus, order="F"), axis=1)
    return place


def tray_dimensions(system: SystemSpec) -> int:
    """Number of dimensions, the first ones, inside a tray; ConfigError when they are not whole."""
    inside: list[int] = np.cumprod(system.torus).tolist()
    chips = system.chips_per_tray.count
    if chips not in inside:
        raise ConfigError(
            f"{system.name}.torus",
            system.torus,
            f"first dimensions that make the {chips} chips of a tray",
        )
    return inside.index(chips) + 1


def neighbours(system: SystemSpec, dimension: int) -> Int64s:
    """Each chip's neighbours in a dimension, up and down: int64[chips of a unit, 2].

    In a dimension of 2 they are the same chip, over two links; in one of 1 the chip itself.
    """
    place = places(system)
    size = system.torus[dimension]
    both = np.repeat(place[:, None], 2, axis=1)  # [chips, 2, dimensions]
    both[:, 0, dimension] = (place[:, dimension] + 1) % size
    both[:, 1, dimension] = (place[:, dimension] - 1) % size
    found: Int64s = np.ravel_multi_index(tuple(np.moveaxis(both, 2, 0)), system.torus, order="F")
    return found


def links_in(system: SystemSpec, dimensions: range) -> int:
    """Links of a chip in some of the dimensions, one for each direction."""
    return 2 * sum(system.torus[dimension] > 1 for dimension in dimensions)

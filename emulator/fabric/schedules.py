"""The algorithms of collectives as schedules: which chips send how much to which, step by step.

Every schedule is an all-gather's; a reduce-scatter runs it backwards, with sums in place of copies.
The algorithms are those of the AWS Neuron SDK docs, neuron-runtime/explore/
intranode-collective-comm.rst and internode-collective-comm.rst:

- mesh: each chip sends its part to all others at once.
- ring: parts go round, a neighbour at a time; kangaring: two of a chip's ranks take a step at once.
- rdh: recursive doubling, each time with a partner one level away, as much as both have by then.
- hierarchical: one mesh per level of the fabric, the farthest first.
- striped: the same with the bytes cut into as many stripes as there are levels, each in another
  order, so that all links are at work at once; the stripe that ends with a level is as large as the
  level is fast. Recursive doubling is striped likewise, as the vendor's groups of ranks with one
  place on their chips can each start in another direction (how they do is not published).
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from emulator.fabric.group_layout import level_peers

Bools = NDArray[np.bool_]
Int64s = NDArray[np.int64]
Float64s = NDArray[np.float64]


class Algorithm(StrEnum):
    """SINGLE_STEP is an all-reduce's alone: each chip sends all it has to all others."""

    SINGLE_STEP = "single-step mesh"
    MESH = "mesh"
    RING = "ring"
    KANGARING = "kangaring"
    RDH = "rdh"
    HIERARCHICAL = "hierarchical"
    STRIPED = "striped"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schedule:
    """Steps, one after the other, of one group of chips.

    `moved` is float64[steps, chips, chips]: what sender sends receiver in the step, of a byte of
    the whole result. Step s is run `times[s]` times.
    """

    moved: Float64s
    times: Int64s


def mesh(chips: int) -> Schedule:
    """One step: each chip's part, 1 / chips of the whole, to every other."""
    moved = np.full((1, chips, chips), 1 / chips)
    moved[0][np.diag_indices(chips)] = 0.0
    return Schedule(moved=moved, times=np.ones(1, dtype=np.int64))


def ring(shares: Float64s) -> Schedule:
    """Chips - 1 steps: a part each time, divided over a chip's neighbours as `shares` says."""
    chips = len(shares)
    return Schedule(moved=shares[None] / chips, times=np.array([chips - 1]))


def last_phases(coordinates: Int64s) -> Schedule:
    """For every level the mesh that would end an all-gather with it: as many steps as levels.

    No schedule to run: it tells how fast each level is.
    """
    sizes = coordinates.max(axis=0) + 1
    moved = level_peers(coordinates) / sizes[:, None, None]
    return Schedule(moved=moved, times=np.ones(len(sizes), dtype=np.int64))


def phases(coordinates: Int64s, stripe: Float64s) -> Schedule:
    """One step per level of `coordinates`, int64[chips, levels], for stripes float64[levels].

    The stripe that ends with a level starts with the one before it, and goes down from there and
    round: that which ends with the nearest level starts with the farthest.
    """
    chips, count = coordinates.shape
    sizes = coordinates.max(axis=0) + 1
    peers = level_peers(coordinates)
    moved = np.zeros((count, chips, chips))
    for last in range(count):
        gathered = 1.0  # parts that a chip has of this stripe by now
        for step in range(count):
            level = (last - 1 - step) % count
            moved[step] += stripe[last] * gathered / chips * peers[level]
            gathered *= sizes[level]
    return Schedule(moved=moved, times=np.ones(count, dtype=np.int64))

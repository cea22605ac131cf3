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
- striped rings: the same with a ring per level instead of a mesh, in a torus: no part passes a link
  twice, which a mesh's to farther chips do. Not the vendor's; known as the bucket algorithm.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from emulator.arrays import Float64s, Int64s


class Algorithm(StrEnum):
    """SINGLE_STEP is an all-reduce's alone: each chip sends its whole content to all others."""

    SINGLE_STEP = "single-step mesh"
    MESH = "mesh"
    RING = "ring"
    KANGARING = "kangaring"
    RDH = "rdh"
    HIERARCHICAL = "hierarchical"
    STRIPED = "striped"
    STRIPED_RINGS = "striped rings"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CollectiveSchedule:
    """Steps, one after the other, of one group of chips.

    `moved` is float64[steps, chips, chips]: what sender sends receiver in the step, of a byte of
    the whole result. Step s is run `times[s]` times.
    """

    moved: Float64s
    times: Int64s


def mesh(chips: int) -> CollectiveSchedule:
    """One step: each chip's part, 1 / chips of the whole, to every other."""
    moved = np.full((1, chips, chips), 1 / chips)
    moved[0][np.diag_indices(chips)] = 0.0
    return CollectiveSchedule(moved=moved, times=np.ones(1, dtype=np.int64))


def ring(shares: Float64s) -> CollectiveSchedule:
    """Chips - 1 steps: a part each time, divided over a chip's neighbours as `shares` says."""
    chips = len(shares)
    return CollectiveSchedule(moved=shares[None] / chips, times=np.array([chips - 1]))


def last_phases(coordinates: Int64s, moves: Float64s) -> CollectiveSchedule:
    """For every level the phase that would end an all-gather with it: as many steps as levels.

    Not to be run: it measures how fast each level is. `moves` is as in `phases`.
    """
    sizes = coordinates.max(axis=0) + 1
    return CollectiveSchedule(
        moved=moves / sizes[:, None, None], times=np.ones(len(sizes), dtype=np.int64)
    )


def phases(
    coordinates: Int64s, stripe: Float64s, moves: Float64s, *, steps: int = 1
) -> CollectiveSchedule:
    """A phase per level of `coordinates`, int64[chips, levels], for stripes float64[levels].

    In a phase every chip sends all that it has of a stripe as `moves`, float64[levels, chips,
    chips], says of one part, in `steps` equal steps. The stripe that ends with a level starts with
    the one before it, and goes down from there and round: that which ends with the nearest level
    starts with the farthest.
    """
    chips, count = coordinates.shape
    sizes = coordinates.max(axis=0) + 1
    moved = np.zeros((count, chips, chips))
    for last in range(count):
        gathered = 1.0  # parts that a chip has of this stripe by now
        for phase in range(count):
            level = (last - 1 - phase) % count
            moved[phase] += stripe[last] * gathered / chips / steps * moves[level]
            gathered *= sizes[level]
    return CollectiveSchedule(moved=moved, times=np.full(count, steps, dtype=np.int64))

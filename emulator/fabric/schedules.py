"""The algorithms of collectives as schedules: bytes between chips, step by step.

Every schedule is an all-gather's; a reduce-scatter runs it backwards, with sums in place of copies.
As in the AWS Neuron SDK docs, neuron-runtime/explore/intranode-collective-comm.rst and
internode-collective-comm.rst:

- mesh: each chip sends its part to all others at once.
- ring: parts go round, a neighbour at a time; kangaring: two of a chip's ranks step at once.
- rdh: recursive doubling, each time with a partner one level away, as much as both have by then.
- hierarchical: one mesh per level of the fabric, the farthest first.
- striped: the same in as many stripes as levels, each in another order, so that all links work at
  once; a stripe is as large as its last level is fast. Recursive doubling is striped likewise, as
  the vendor's groups of ranks can each start in another direction (the mechanism is unpublished).
- striped rings: with a ring per level of a torus: no part passes a link twice, as a mesh's to
  farther chips does. Not the vendor's; known as the bucket algorithm.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from emulator.arrays import Float64s, Int64s


class Algorithm(StrEnum):
    """SINGLE_STEP is only an all-reduce's: each chip sends its whole content to all others."""

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
    """Consecutive steps of one group of chips; step s runs `times[s]` times.

    `moved`, float64[steps, chips, chips]: sender to receiver in a step, per byte of the whole
    result.
    """

    moved: Float64s
    times: Int64s


def mesh(chips: int) -> CollectiveSchedule:
    """One step: each chip's part, 1 / chips of the whole, to every other."""
    moved = np.full((1, chips, chips), 1 / chips)
    moved[0][np.diag_indices(chips)] = 0.0
    return CollectiveSchedule(moved=moved, times=np.ones(1, dtype=np.int64))


def ring(shares: Float64s) -> CollectiveSchedule:
    """Chips - 1 steps of one part each, divided over a chip's neighbours by `shares`."""
    chips = len(shares)
    return CollectiveSchedule(moved=shares[None] / chips, times=np.array([chips - 1]))


def last_phases(coordinates: Int64s, moves: Float64s) -> CollectiveSchedule:
    """Each level's last phase of an all-gather, to measure its speed; `moves` as in `phases`."""
    sizes = coordinates.max(axis=0) + 1
    return CollectiveSchedule(
        moved=moves / sizes[:, None, None], times=np.ones(len(sizes), dtype=np.int64)
    )


def phases(
    coordinates: Int64s, stripe: Float64s, moves: Float64s, *, steps: int = 1
) -> CollectiveSchedule:
    """A phase per level of `coordinates`, int64[chips, levels], for stripes float64[levels].

    In a phase every chip sends all that it has of a stripe, by `moves`, float64[levels, chips,
    chips] of one part, in `steps` equal steps. A stripe that ends with a level starts with the
    level before it and goes down and round: one that ends with the nearest starts with the
    farthest.
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

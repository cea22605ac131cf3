"""The fewest machines that hold replicas of several kinds, each within one machine.

Largest first is the answer wherever it takes no more machines than all chips together do; else an
integer program over all ways to fill a machine. Knows chips alone, and no model.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

Fill = tuple[int, ...]
"""Replicas of each kind on one machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedMachines:
    """So many machines with the same replicas, and the chips that each has left."""

    machines: int
    replicas: Fill  # [kinds]
    free_chips: int


def packed(
    sizes: Sequence[int], counts: Sequence[int], *, room: int, most: Sequence[int] | None = None
) -> tuple[PackedMachines, ...]:
    """The fewest machines of `room` chips for `counts` replicas of `sizes` chips, full ones first.

    With `most`, above 0, each machine has at most so many of a kind. Chips of a replica need not be
    next to each other. Sizes are 1 to `room`, counts at least 0.
    """
    assert all(1 <= size <= room for size in sizes), (sizes, room)
    limits = [*map(min, counts, counts if most is None else most)]
    fills = _largest_first(sizes, counts, room, limits)
    enough = [ceil(count / limit) for count, limit in zip(counts, limits, strict=True) if count]
    if len(fills) > max([ceil(_chips(sizes, counts) / room), *enough]):
        fills = _by_program(sizes, counts, room, limits)
    groups = [
        PackedMachines(machines=count, replicas=fill, free_chips=room - _chips(sizes, fill))
        for fill, count in Counter(fills).items()
    ]
    return tuple(sorted(groups, key=lambda each: (each.free_chips, [-n for n in each.replicas])))


def _chips(sizes: Sequence[int], counts: Sequence[int]) -> int:
    return sum(size * count for size, count in zip(sizes, counts, strict=True))


def _largest_first(
    sizes: Sequence[int], counts: Sequence[int], room: int, limits: Sequence[int]
) -> list[Fill]:
    """Machine by machine, what first-fit decreasing gives."""
    left, fills = [*counts], list[Fill]()
    by_size = sorted(range(len(sizes)), key=lambda kind: -sizes[kind])
    while any(left):
        fill, free = [0] * len(sizes), room
        for kind in by_size:
            fill[kind] = min(left[kind], limits[kind], free // sizes[kind])
            left[kind] -= fill[kind]
            free -= fill[kind] * sizes[kind]
        fills.append(tuple(fill))
    return fills


def _by_program(
    sizes: Sequence[int], counts: Sequence[int], room: int, limits: Sequence[int]
) -> list[Fill]:
    """As few machines as hold at least all replicas; those too many are then left out."""
    from scipy.optimize import (  # type: ignore[import-untyped]  # takes 0.3 s
        LinearConstraint,
        milp,
    )

    ways = [*_full(sizes, limits, room)]
    enough = LinearConstraint(np.array(ways).T, lb=counts)
    found = milp(np.ones(len(ways)), constraints=enough, integrality=1)
    assert found.success, found.message
    left, fills = [*counts], list[Fill]()
    for way, machines in zip(ways, np.rint(found.x).astype(int).tolist(), strict=True):
        for _ in range(machines):
            fill = tuple(map(min, way, left))
            left = [have - taken for have, taken in zip(left, fill, strict=True)]
            fills.append(fill)
    assert not any(left)
    return fills


def _full(sizes: Sequence[int], limits: Sequence[int], room: int) -> Iterator[Fill]:
    """Ways to fill a machine; of the last kind as many as there is room for."""
    most = min(limits[0], room // sizes[0])
    if len(sizes) == 1:
        yield (most,)
        return
    for count in range(most, -1, -1):
        for rest in _full(sizes[1:], limits[1:], room - count * sizes[0]):
            yield (count, *rest)

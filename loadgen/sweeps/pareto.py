"""Which operating points no other beats in two figures at once."""

from collections.abc import Sequence


def pareto_front(values: Sequence[tuple[float, float] | None]) -> tuple[int, ...]:
    """Return the positions of the points that no other beats, by the first figure, rising.

    More is better in both. A point is beaten by one that is at least as good in both and better in
    one; of equal points the first stays. None is a point that lacks a figure: it is left out.
    """
    known = [(value, position) for position, value in enumerate(values) if value is not None]
    front: list[int] = []
    best = float("-inf")
    # From the best of the first figure downward, each has to bring more of the second.
    for (_, second), position in sorted(known, key=lambda each: (-each[0][0], -each[0][1])):
        if second > best:
            front.append(position)
            best = second
    return tuple(reversed(front))

"""The search for a plan's size: which settings race, and in which order.

First any size that keeps the target, by a few partitions; then, among all, by halves between what
is certainly too few and what passes; at last every size below the answer, from large to small.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import ceil, floor
from typing import Final

from serving.analysis.plan.plan_options import NEAR, Option
from serving.analysis.plan.plan_race import Race

FAR: Final = 1.41
"""Ratio of sizes, for the first answer."""
MOST: Final = 6
"""Times the chips of the steady state, up to which sizes are tried."""
A_FEW_CHIPS: Final = 8


def first_answer(race: Race, options: Sequence[Option]) -> None:
    """Any size that keeps the target, soon; of those below the best one, if there is one."""
    likely = min((each.chips for each in options if each.meets), default=None)
    if likely is None:
        return
    most_chips = MOST * likely if race.best is None else race.best.chips - 1
    for above, most in pairwise(size_ends(likely - 1, most_chips, ratio=FAR)):
        if race.run(race.settings(options, above, most, first=True), first=True):
            _fewer_replicas(race)
            break


def _fewer_replicas(race: Race) -> None:
    """Of the best setting fewer and fewer, as long as they keep the target."""
    best = race.best
    while best is not None and best.replicas > 1:
        fewer = min(best.replicas - 1, floor(best.replicas / NEAR))
        if not race.run([replace(best, replicas=fewer)], first=True):
            return
        best = race.best


def search(race: Race, options: Sequence[Option]) -> None:
    """The fewest chips that keep the target."""
    able = [each for each in options if each.meets]
    if not able:
        return
    least = min(
        ceil(race.rate_per_s / each.most_requests_per_s) * each.replica_chips for each in able
    )
    most = MOST * min(each.chips for each in able) + A_FEW_CHIPS
    first_answer(race, [each for each in able if each.is_pooled])
    ends = size_ends(least - 1, most if race.best is None else race.best.chips, ratio=NEAR)
    sizes = [*pairwise(ends)]
    if race.best is None and not any(
        race.run(race.settings(able, above, most)) for above, most in sizes
    ):
        return
    tried = _halved(race, able, sizes)
    for number in reversed(range(len(sizes))):
        if number not in tried:
            _run_size(race, able, sizes[number])
    _fewer_replicas(race)


def _halved(race: Race, options: Sequence[Option], sizes: Sequence[tuple[int, int]]) -> set[int]:
    """Places of the sizes that were tried."""
    assert race.best is not None
    tried: set[int] = set()
    low, high = -1, sum(above + 1 < race.best.chips for above, _ in sizes)
    while high - low > 1:
        middle = (low + high) // 2
        tried.add(middle)
        if _run_size(race, options, sizes[middle]):
            high = middle
        else:
            low = middle
    return tried


def _run_size(race: Race, options: Sequence[Option], size: tuple[int, int]) -> bool:
    """Race what has fewer chips than the best one, if anything has."""
    assert race.best is not None
    above, most = size
    return race.run(race.settings(options, above, min(most, race.best.chips - 1)))


def size_ends(least: int, most: int, *, ratio: float) -> list[int]:
    """Numbers of chips from `least` on, each about `ratio` times the one before, to `most`."""
    ends = [least]
    while ends[-1] < most:
        ends.append(min(most, max(ends[-1] + 1, floor(ends[-1] * ratio))))
    return ends

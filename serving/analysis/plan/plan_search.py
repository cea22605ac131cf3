"""The search for a plan's size: which settings race, and in which order.

First any size that keeps the target, by a few partitions; then, among all, by halves between what
is certainly too few and what passes; at last every size below the answer, from large to small.
Where not chips are minimised, larger sizes may cost less: they race before the sizes below. What
comes nearest to the target is tried under other batch limits, once the first sizes are known.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from math import ceil
from typing import Final

from serving.analysis.plan.plan_options import NEAR, size_ends
from serving.analysis.plan.plan_race import Race
from serving.analysis.plan.plan_setting import Setting

FAR: Final = 1.41
"""Ratio of sizes, for the first answer."""
MOST: Final = 6
"""Times the chips of the steady state, up to which sizes are tried."""
A_FEW_CHIPS: Final = 8
DEEPER: Final = 4
"""Times as many partitions and pools of each size, where there is time."""
NOT_FAR: Final = 0.8
"""Of the answer's chips, from which on there are so many."""
SAID_S: Final = 5.0
"""Between two lines of how far a search is."""


def first_answer(race: Race) -> None:
    """Any size that keeps the target, soon."""
    likely = [each.chips for each in race.options if each.meets]
    if race.pools is not None and race.pools.can_meet:
        likely.append(race.pools.least_chips)
    if not likely:
        return
    ends = size_ends(min(likely) - 1, MOST * min(likely), ratio=FAR)
    for above, most in pairwise(ends):
        if race.run(race.settings(above, most, first=True), first=True):
            break


def fewer_replicas(race: Race) -> None:
    """Of the best setting the fewest replicas that keep the target."""
    best = race.best
    if best is None:
        return
    least = ceil(race.rate_per_s / best.option.most_requests_per_s)
    counts = size_ends(least, best.replicas, ratio=NEAR)[:-1]
    _halve(
        race, len(counts), lambda at: race.heats([replace(best, replicas=counts[at])], first=True)
    )


def fewer_to_decode(race: Race) -> None:
    """Of the best units the fewest chips that decode beside the same engines for prompts.

    What is found is only confirmed, which is a choice that spares time: to judge it by new seeds
    too takes 8 s of a minute at 500 requests/s of gpt-oss-120b.
    """
    best = race.best
    if best is None or race.pools is None:
        return
    options = race.pools.with_fewer_to_decode(best.option, best.replicas)
    fewer = [replace(best, option=option) for option in options]
    _halve(race, len(fewer), lambda at: race.heats([fewer[at]], first=True))


def search(race: Race, *, refuted_chips: int = 0) -> None:
    """The cheapest that keeps the target.

    Where new seeds refuted what an earlier search found, sizes up to so many chips come last, from
    large to small; what the halves above them find is judged by such seeds as it comes.
    """
    able = [each for each in race.options if each.meets]
    least = [ceil(race.rate_per_s / each.most_requests_per_s) * each.replica_chips for each in able]
    most = [each.chips for each in able]
    if race.pools is not None and race.pools.can_meet:
        least.append(race.pools.least_chips)
        most.append(race.pools.least_chips)
    if not least:
        return
    last = MOST * min(most) + A_FEW_CHIPS
    ends = size_ends(min(least) - 1, last if race.fewest is None else race.fewest.chips, ratio=NEAR)
    sizes = [*pairwise(ends)]
    if race.best is None and not any(race.run(race.settings(above, most)) for above, most in sizes):
        _under_other_limits(race)
        if race.best is None:
            return
    tried = _halved(race, sizes, refuted_chips)
    if not race.only_chips:
        _larger(race, last)
    _under_other_limits(race)
    left = [size for number, size in enumerate(sizes) if number not in tried][::-1]
    begun_s = time.monotonic()
    said_s = begun_s
    for number, size in enumerate(left):
        race.run(_settings_below(race, size))
        now_s = time.monotonic()
        if now_s - said_s >= SAID_S:
            said_s, each_s = now_s, (now_s - begun_s) / (number + 1)
            to_go = f"about {each_s * (len(left) - number - 1):.0f} s to go"
            race.say(f"{number + 1} of {len(left)} sizes below, {to_go}")
    fewer_replicas(race)
    _under_other_limits(race)


def search_deeper(race: Race) -> None:
    """Race more settings of each of the sizes that are not far below the fewest chips; none is out
    because others are better.
    """
    if race.fewest is None:
        return
    race.tries *= DEEPER
    chips = race.fewest.chips
    race.say(f"searching more settings of sizes from {ceil(NOT_FAR * chips):,} chips on")
    try:
        for size in reversed([*pairwise(size_ends(ceil(NOT_FAR * chips) - 1, chips, ratio=NEAR))]):
            race.confirm(race.heats(_settings_below(race, size), every=True))
    finally:
        race.tries //= DEEPER


def _under_other_limits(race: Race) -> None:
    """Race them as long as one passes."""
    while race.run_under_other_limits():
        fewer_replicas(race)


def _halved(race: Race, sizes: Sequence[tuple[int, int]], refuted_chips: int) -> set[int]:
    """Places of the sizes that were tried."""
    assert race.fewest is not None
    most = sum(above + 1 < race.fewest.chips for above, _ in sizes)

    def heats(number: int, *, by_hardest: bool = True) -> list[Setting]:
        return race.heats(_settings_below(race, sizes[number]), by_hardest=by_hardest)

    if not refuted_chips:
        return _halve(race, most, heats)
    tried = set[int]()

    def stands(number: int) -> bool:
        tried.add(number)
        seeming = heats(number, by_hardest=False)
        return any(race.confirm([each]) and race.stands(each) for each in seeming)

    first_that_holds(sum(upto <= refuted_chips for _, upto in sizes) - 1, most, stands)
    return tried


def _halve(race: Race, count: int, heats: Callable[[int], list[Setting]]) -> set[int]:
    """Look by halves for the first of `count` places where something seems to keep the target, and
    from there on, by halves, for the first where it surely does; returns the places that were
    tried.
    """
    tried: dict[int, list[Setting]] = {}

    def seems(place: int) -> bool:
        tried[place] = tried.get(place) or heats(place)
        return bool(tried[place])

    first = first_that_holds(-1, count, seems)
    if first < count and not race.confirm(tried[first]):
        first_that_holds(first, count, lambda place: seems(place) and race.confirm(tried[place]))
    return {*tried}


def first_that_holds(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """By halves, the first place after `low` where it holds, if it then does on; else `high`."""
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return high


def _settings_below(race: Race, size: tuple[int, int]) -> list[Setting]:
    """What has fewer chips than all that passed; all, where new seeds refuted what had."""
    above, most = size
    return race.settings(above, most if race.fewest is None else min(most, race.fewest.chips - 1))


def _larger(race: Race, most: int) -> None:
    """Race sizes from the fewest chips on, up to `most`: of each what may cost less than the best
    one; none where nothing passes.
    """
    if race.fewest is None:
        return
    for above, upto in pairwise(size_ends(race.fewest.chips, most, ratio=NEAR)):
        if settings := race.settings(above, upto):
            race.run(settings)

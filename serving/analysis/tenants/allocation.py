"""Which tenant gets which number of the groups that no served model needs. Pure.

Priorities are strict: a tenant has groups that none of a higher priority makes use of. Within a
priority, work that would be late if it waited for another look comes first, by deadline; the rest
goes, group by group, to the tenant whose output gains the most value. A tenant whose number changes
pauses, and that is counted against what it gains in `keep_s`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from emulator.arrays import Float64s
from emulator.errors import ConfigError

KEEP_S: Final = 3_600.0
"""Assumed: how long a division lasts that pauses are weighed against."""
HOLD_S: Final = 3_600.0
"""Assumed: spare time at which work that pressed may be put off again."""
UNCERTAIN_SHARE: Final = 0.1
"""Assumed: of the groups foretold to be free, those that deadlines do not count on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DueWork:
    """Work that is to be done `in_s` seconds from now."""

    in_s: float
    work: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupClaim:
    """A tenant at a look.

    Attributes:
        groups: that it has, or that are on their way to it.
        work_per_s: by its number of groups, [groups + 1]; never falls.
        value_per_s: the same, of its work beyond what the groups cost.
        work_left: infinite without an end.
        due: by deadline; work without one is in `work_left` alone.
        pause_s: in which it does nothing when its number of groups changes.
        join_s: until a new group works.

    Raises ConfigError for tables of two lengths, and work that falls with more groups.
    """

    priority: int
    groups: int
    work_per_s: Float64s
    value_per_s: Float64s
    work_left: float = float("inf")
    due: tuple[DueWork, ...] = ()
    pause_s: float = 0.0
    join_s: float = 0.0

    def __post_init__(self) -> None:
        if self.work_per_s.shape != self.value_per_s.shape or self.work_per_s[0] != 0:
            raise ConfigError("value_per_s", self.value_per_s.shape, "as work_per_s, from 0 on")
        if (np.diff(self.work_per_s) < 0).any():
            raise ConfigError("work_per_s", "less work of more groups", "work that never falls")

    def most(self, look_s: float) -> int:
        """Groups beyond which more are of no use until the next look. With little left to do, a
        tenant that would pause for fewer keeps those that it has.
        """
        if not self.work_left > 0:
            return 0
        enough = int(np.minimum(self.work_per_s, self.work_left / look_s).argmax())
        return max(enough, min(self.groups, self.widest)) if self.pause_s else enough

    @property
    def widest(self) -> int:
        """Groups beyond which more never are."""
        return int(self.work_per_s.argmax())

    def group_seconds(self, work: float) -> float:
        """Of some work, on as many groups as it can use, with a pause."""
        widest = self.widest
        if not widest:
            return float("inf")
        pause_s = self.pause_s + self.join_s
        return widest * (work / float(self.work_per_s[widest]) + pause_s)

    def gain(self, groups: int, keep_s: float) -> float:
        """Value in `keep_s` of so many groups, the change to them counted."""
        rate = float(self.value_per_s[groups])
        if groups == self.groups or not groups or keep_s == float("inf"):
            return rate
        joining = max(0, groups - self.groups) / groups
        return rate * (1 - (self.pause_s + joining * self.join_s) / keep_s)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AllocationTerms:
    """Groups foretold to be free in each look from now on, repeated after the last: `ahead`."""

    look_s: float
    ahead: Float64s  # [looks], at least one
    keep_s: float = KEEP_S
    uncertain_share: float = UNCERTAIN_SHARE

    def free_group_s(self, in_s: float, most: float = float("inf")) -> float:
        """Group-seconds until then that can be counted on, of at most so many groups at once."""
        sure = np.minimum(self.ahead * (1 - self.uncertain_share), most)
        rounds, rest_s = divmod(in_s, len(sure) * self.look_s)
        looks, part_s = divmod(rest_s, self.look_s)
        whole = rounds * float(sure.sum()) + float(sure[: int(looks)].sum())
        part = float(sure[int(looks)]) * part_s if part_s else 0.0
        return whole * self.look_s + part


def allocate(claims: Sequence[GroupClaim], free: int, terms: AllocationTerms) -> tuple[int, ...]:
    """Groups of each claim, at most `free` in all."""
    given = [0] * len(claims)
    for priority in sorted({claim.priority for claim in claims}, reverse=True):
        level = [number for number, claim in enumerate(claims) if claim.priority == priority]
        for number in urgent([claims[each] for each in level], free, terms):
            given[level[number]] = min(claims[level[number]].most(terms.look_s), free)
            free -= given[level[number]]
        others = [each for each in level if not given[each]]
        division = _Division([claims[each] for each in others], free, terms)
        for number, groups in zip(others, division.best(), strict=True):
            given[number] = groups
            free -= groups
    return tuple(given)


def urgent(claims: Sequence[GroupClaim], free: int, terms: AllocationTerms) -> list[int]:
    """Claims that may not wait for the next look, by deadline.

    One may wait while what is due until each deadline, its own and all earlier work together, fits
    the groups that are left until then without those of this look. One that has groups keeps them
    until it could wait for `HOLD_S`.
    """
    due = sorted(
        (work.in_s, number, work.work) for number, claim in enumerate(claims) for work in claim.due
    )
    together, late = 0.0, -1
    own = [0.0] * len(claims)
    pressed: set[int] = set()
    for place, (in_s, number, work) in enumerate(due):
        claim = claims[number]
        needs = claim.group_seconds(work)
        together += needs
        own[number] += needs
        left = terms.free_group_s(in_s) - together
        if left < free * terms.look_s:
            late = place
        usable = min(free, claim.widest)
        wait_s = max(HOLD_S, terms.look_s) if claim.groups else terms.look_s
        if min(left, terms.free_group_s(in_s, claim.widest) - own[number]) < usable * wait_s:
            pressed.add(number)
    in_order = dict.fromkeys(number for _, number, _ in due)
    pressed |= {number for _, number, _ in due[: late + 1]}
    return [number for number in in_order if number in pressed]


@dataclass
class _Division:
    """Groups divided by value among claims of one priority."""

    claims: Sequence[GroupClaim]
    free: int
    terms: AllocationTerms
    most: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.most = [min(claim.most(self.terms.look_s), self.free) for claim in self.claims]

    def best(self) -> list[int]:
        """The better of a division from nothing, and one that begins with what each has."""
        found = [self._grown([0] * len(self.claims)), self._grown(self._kept())]
        return max(found, key=self._value)

    def _value(self, given: Sequence[int]) -> float:
        return sum(
            claim.gain(groups, self.terms.keep_s)
            for claim, groups in zip(self.claims, given, strict=True)
        )

    def _kept(self) -> list[int]:
        """What each has, less what is not free: first of those that lose the least value."""
        kept = [min(claim.groups, most) for claim, most in zip(self.claims, self.most, strict=True)]
        while sum(kept) > self.free:
            having = [number for number, groups in enumerate(kept) if groups]
            kept[min(having, key=lambda number: self._loss(number, kept[number]))] -= 1
        return kept

    def _loss(self, number: int, groups: int) -> float:
        """Value of the last of its groups."""
        rates = self.claims[number].value_per_s
        return float(rates[groups] - rates[groups - 1])

    def _grown(self, given: list[int]) -> list[int]:
        """Free groups where each adds the most, several at once where fewer do nothing."""
        left = self.free - sum(given)
        while left > 0:
            steps = [self._step(number, groups, left) for number, groups in enumerate(given)]
            gain, more, number = max(steps, default=(0.0, 0, 0), key=lambda step: step[0])
            if gain <= 0:
                break
            given[number] += more
            left -= more
        return given

    def _step(self, number: int, groups: int, left: int) -> tuple[float, int, int]:
        """The highest gain of a group, and of how many of them."""
        claim, keep_s = self.claims[number], self.terms.keep_s
        most = min(self.most[number], groups + left)
        # From nothing, the number that it has costs no pause; growth beyond pays for one.
        before = claim.gain(groups, keep_s)
        gains = [
            ((claim.gain(groups + more, keep_s) - before) / more, more)
            for more in range(1, most - groups + 1)
        ]
        gain, more = max(gains, default=(0.0, 0), key=lambda each: each[0])
        return gain, more, number


def divided(wanted: Sequence[int], groups: int) -> tuple[int, ...]:
    """Groups of each served model, of those that it wants: one at a time to the one with the
    smallest part of what it wants. Each has one at least; raises ConfigError for fewer groups.
    """
    if groups < len(wanted):
        raise ConfigError("models", len(wanted), f"at most one for each of {groups} groups")
    given = [1] * len(wanted)
    for _ in range(groups - len(wanted)):
        short = [number for number, each in enumerate(wanted) if given[number] < each]
        if not short:
            break
        given[min(short, key=lambda number: given[number] / wanted[number])] += 1
    return tuple(given)

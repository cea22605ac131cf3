"""What a wish of a policy does to a machine's groups until the next look.

Requests do not change it, so that it is found once for each state of the groups and each number of
serving groups, and every walk of every policy and load reads it from here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from serving.analysis.day.leased_groups import GroupTimes, HandoverTotals, LeasedGroups
from serving.analysis.day.training_yield import GroupHandover, TrainingYield

_SAME_S = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsLeft:
    """`count` groups were empty in an interval of the look, and began to leave `looks_ago`."""

    interval: int
    looks_ago: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LookOutcome:
    """From one look until the next.

    Attributes:
        after: the state then, by its number; 0 after a part of a look, which ends the day.
        changed: whether another number of serving groups was wanted than before.
        times: by interval.
    """

    after: int
    changed: bool
    times: tuple[GroupTimes, ...]
    totals: HandoverTotals
    left: tuple[GroupsLeft, ...]


class LookOutcomes:
    """States by number, from 0 (all groups serve), and what every wish makes of them."""

    def __init__(
        self,
        *,
        trained: TrainingYield,
        handover: GroupHandover,
        group_idle_watts: float,
        interval_s: float,
        look_s: float,
    ) -> None:
        self.trained = trained
        self.handover = handover
        self.interval_s = interval_s
        self._look_s = look_s
        self._states: list[LeasedGroups] = []
        self._numbers: dict[tuple[object, ...], int] = {}
        self._known: dict[tuple[int, int, int], LookOutcome] = {}
        self._number(
            LeasedGroups(trained=trained, handover=handover, group_idle_watts=group_idle_watts)
        )

    @property
    def groups(self) -> int:
        """Of the machine."""
        return self.trained.groups

    @property
    def job_groups_min(self) -> int:
        """Fewest leased groups that train."""
        return self.trained.job_groups_min

    @property
    def look_intervals(self) -> int:
        """Intervals of a whole look."""
        return round(self._look_s / self.interval_s)

    def serving_or_coming(self, state: int) -> int:
        """Groups that serve or return."""
        return self._states[state].serving_or_coming

    def save_s(self, state: int) -> float:
        """Seconds that its job needs before a group returns."""
        return float(self.trained.save_s[len(self._states[state].state.job.chips)])

    def outcome(self, state: int, serving: int, intervals: int) -> LookOutcome:
        """Of `serving` groups wanted in a state, for `intervals`: a look, or what is left of it."""
        asked = (state, max(serving, self.handover.groups_min), intervals)
        if asked not in self._known:
            self._known[asked] = self._found(*asked)
        return self._known[asked]

    def reachable(self, most: int) -> int | None:
        """How many states wishes can lead to; None for more than `most`."""
        number = 0
        while number < len(self._states):
            if len(self._states) > most:
                return None
            for serving in range(1, self.trained.groups + 1):
                self.outcome(number, serving, self.look_intervals)
            number += 1
        return number

    def _found(self, state: int, serving: int, intervals: int) -> LookOutcome:
        groups = self._states[state].begin()
        begin_s = groups.now_s
        changed = groups.want(serving)
        times: list[GroupTimes] = []
        left: list[GroupsLeft] = []
        for interval in range(intervals):
            times.append(groups.advance(begin_s + (interval + 1) * self.interval_s))
            left += self._left(groups, interval, begin_s)
        return LookOutcome(
            after=self._number(groups) if intervals == self.look_intervals else 0,
            changed=changed,
            times=tuple(times),
            totals=groups.totals,
            left=tuple(left),
        )

    def _left(self, groups: LeasedGroups, interval: int, begin_s: float) -> Iterator[GroupsLeft]:
        for began_s, count in groups.left:
            looks_ago = ceil((begin_s - began_s - _SAME_S) / self._look_s)
            yield GroupsLeft(interval=interval, looks_ago=max(0, looks_ago), count=count)
        groups.left.clear()

    def _number(self, groups: LeasedGroups) -> int:
        number = self._numbers.setdefault(groups.key, len(self._states))
        if number == len(self._states):
            self._states.append(groups)
        return number

"""The groups of a day: which serve, leave, train and come back, and for how long each.

Time runs in pieces between events (a group is empty, a job has begun, a group is ready), so that
nothing depends on how long the intervals are in which the day is walked. Every group is in one
place at any time.

The job has all lent groups. When groups come or go it saves its state, and starts again on those
that it then has; a save is over before any group goes.
"""

from dataclasses import dataclass, fields
from typing import Final

from emulator.errors import ConfigError
from serving.analysis.day.training_yield import GroupHandover, TrainingYield

_NEVER: Final = float("inf")


@dataclass(slots=True, kw_only=True)
class GroupTimes:
    """Group-seconds by what groups did, and what came of it. `paused_s` is saving and starting.

    `idle_s` are groups that are lent and too few for a job. `joules` are of all chips that do not
    serve, leaving ones left out, which work on as those that serve do.
    """

    serving_s: float = 0.0
    leaving_s: float = 0.0
    restoring_s: float = 0.0
    paused_s: float = 0.0
    training_s: float = 0.0
    idle_s: float = 0.0
    chips_at_work_s: float = 0.0
    tokens: float = 0.0
    joules: float = 0.0

    def total_s(self) -> float:
        """Of all groups, whatever they did."""
        return float(sum(getattr(self, each.name) for each in fields(self)[:6]))


@dataclass(slots=True, kw_only=True)
class HandoverTotals:
    """Hand-overs so far: groups that left and came back, jobs that had to begin again.

    `seconds` are group-seconds on the way, `joules` those of them, `tokens_lost` what the lent
    groups would have trained while the job saved and started.
    """

    left: int = 0
    came_back: int = 0
    job_starts: int = 0
    seconds: float = 0.0
    joules: float = 0.0
    tokens_lost: float = 0.0


@dataclass(slots=True)
class _Batch:
    """Groups that are on their way together, until a time."""

    groups: int
    until_s: float
    watts: float = 0.0


class LentGroups:
    """Mutable: all groups serve at first. Times ascend; nothing happens but in `advance`."""

    def __init__(
        self, *, trained: TrainingYield, handover: GroupHandover, group_idle_watts: float
    ) -> None:
        self._trained = trained
        self._handover = handover
        self._idle_watts = group_idle_watts
        self._now_s = 0.0
        self._leaving: list[_Batch] = []
        self._restoring: list[_Batch] = []
        self.groups = trained.groups
        self.serving = trained.groups
        self.lent = 0
        self._going_back = 0  # of the lent, those that wait for the job to save
        self._saved_at_s = _NEVER  # when a save is over
        self._ready_at_s = _NEVER  # when the job works again
        self._working = False
        self._pausing_groups = 0  # of the lent, those that save or start
        self._pause_watts = 0.0  # of those
        self.totals = HandoverTotals()

    @property
    def coming(self) -> int:
        """Groups on their way back, those that wait for the job's state to be saved among them."""
        return sum(batch.groups for batch in self._restoring) + self._going_back

    @property
    def serving_or_coming(self) -> int:
        """What a policy counts as serving."""
        return self.serving + self.coming

    def want(self, serving: int) -> tuple[int, int]:
        """Begin what brings the number of serving groups to this; returns those that leave and
        those that are called back now.

        Groups that still leave are lent first; a call that comes meanwhile waits for the next.
        """
        if not 0 <= serving <= self.groups:
            expected = f"0 to {self.groups} groups"
            raise ConfigError(field="serving", value=serving, expected=expected)
        less = min(self.serving, max(0, self.serving_or_coming - serving))
        if less:
            self.serving -= less
            self.totals.left += less
            self._leaving.append(_Batch(less, self._now_s + self._handover.drain_s))
        more = min(self.lent - self._going_back, max(0, serving - self.serving_or_coming))
        if more:
            self.totals.came_back += more
            self._going_back += more
            self._save()
        return less, more

    def advance(self, to_s: float) -> GroupTimes:
        """Let time pass, with all that happens in it; returns what groups did meanwhile."""
        times = GroupTimes()
        while True:
            at_s = min(self._next_s(), to_s)
            self._pass(max(0.0, at_s - self._now_s), times)
            self._now_s = max(self._now_s, at_s)
            if self._next_s() > to_s:
                break
            self._happen()
        placed = self.serving + self.lent
        placed += sum(batch.groups for batch in self._leaving + self._restoring)
        assert placed == self.groups, "every group is in one place"
        return times

    def _next_s(self) -> float:
        on_way = [batch.until_s for batch in self._leaving + self._restoring]
        return min([self._saved_at_s, self._ready_at_s, *on_way])

    def _pass(self, seconds: float, times: GroupTimes) -> None:
        if not seconds:
            return
        trained, lent, totals = self._trained, self.lent, self.totals
        leaving = sum(batch.groups for batch in self._leaving)
        restoring = sum(batch.groups for batch in self._restoring)
        times.serving_s += self.serving * seconds
        times.leaving_s += leaving * seconds
        times.restoring_s += restoring * seconds
        joules = sum(batch.watts for batch in self._restoring) * seconds
        pausing = self._saved_at_s < _NEVER or self._ready_at_s < _NEVER
        on_way_s = (leaving + restoring) * seconds
        if pausing:
            times.paused_s += lent * seconds
            on_way_s += lent * seconds
            joules += self._pause_watts * seconds
            joules += (lent - self._pausing_groups) * self._idle_watts * seconds
            totals.tokens_lost += float(trained.tokens_per_s[lent]) * seconds
        totals.seconds += on_way_s
        totals.joules += joules
        if self._working and not pausing:
            times.training_s += lent * seconds
            times.chips_at_work_s += float(trained.chips_at_work[lent]) * seconds
            times.tokens += float(trained.tokens_per_s[lent]) * seconds
            joules += float(trained.watts[lent]) * seconds
        elif not pausing:
            times.idle_s += lent * seconds
            joules += lent * self._idle_watts * seconds
        times.joules += joules

    def _happen(self) -> None:
        """All events of this moment."""
        now_s = self._now_s
        if self._saved_at_s <= now_s:
            self._saved_at_s = _NEVER
            self._restore(self._going_back)
            self._start()
        if self._ready_at_s <= now_s:
            self._ready_at_s = _NEVER
            self._working = True
        for batch in [each for each in self._restoring if each.until_s <= now_s]:
            self._restoring.remove(batch)
            self.serving += batch.groups
        empty = [each for each in self._leaving if each.until_s <= now_s]
        if empty:
            self._leaving = [each for each in self._leaving if each.until_s > now_s]
            self._save()  # before the new ones: the state lies on the old ones
            self.lent += sum(each.groups for each in empty)

    def _save(self) -> None:
        """Stop the job; what it has done since its start is written first."""
        if self._saved_at_s < _NEVER:
            return
        self._ready_at_s = _NEVER
        seconds = float(self._trained.save_s[self.lent]) if self._working else 0.0
        self._pausing_groups = self.lent if seconds else 0
        self._pause_watts = float(self._trained.save_joules[self.lent]) / seconds if seconds else 0
        self._working = False
        self._saved_at_s = self._now_s + seconds

    def _start(self) -> None:
        """Begin on the groups that are lent now, if they are enough."""
        if not self._trained.tokens_per_s[self.lent]:
            return
        seconds = float(self._trained.start_s[self.lent])
        self._pausing_groups = self.lent if seconds else 0
        self._pause_watts = float(self._trained.start_joules[self.lent]) / seconds if seconds else 0
        self._ready_at_s = self._now_s + seconds
        self.totals.job_starts += 1

    def _restore(self, groups: int) -> None:
        """Give groups back to serving, which read their weights first."""
        if not groups:
            return
        handover = self._handover
        self._going_back = 0
        self.lent -= groups
        watts = groups * (handover.restore_joules / handover.restore_s if handover.restore_s else 0)
        self._restoring.append(_Batch(groups, self._now_s + handover.restore_s, watts))

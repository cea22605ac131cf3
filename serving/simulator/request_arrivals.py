"""The times at which requests of a traffic arrive, some of them known only when others end."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from math import ceil

import numpy as np

from emulator.arrays import Float64s, Int32s, Int64s
from emulator.units import NS_PER_S
from loadgen.arrivals.closed_loop import ClosedLoop
from loadgen.errors import OptionError
from loadgen.workloads.traffic import Sessions, Traffic
from serving.simulator.scheduler_arrays import NEVER_NS, NONE, Records
from serving.simulator.session_pauses import pause_ns
from serving.simulator.step_run_record import Coming


class RequestArrivals:
    """Requests in order of arrival; of two at one time, the lower number first.

    Arrivals and deadlines of REQUEST records are filled in when requests arrive that wait for
    others. A request that takes longer than `timeout_ns` is aborted.
    """

    def __init__(self, traffic: Traffic, requests: Records, timeout_ns: int | None) -> None:
        sessions = traffic.sessions
        self._arrival_ns: Int64s = requests["arrival_ns"]
        self._deadline_ns: Int64s = requests["deadline_ns"]
        self._timeout_ns = timeout_ns
        if timeout_ns is not None:
            self._deadline_ns[:] = self._arrival_ns + timeout_ns
        self._later: list[tuple[int, int]] = []  # times and requests, a heap
        heads = np.arange(len(traffic))
        self._session_of = heads if sessions is None else sessions.heads
        if sessions is not None:
            heads = np.flatnonzero(sessions.after == NONE)
            self._think_ns = np.rint(sessions.think_s * NS_PER_S).astype(np.int64)
        self._turns = None if sessions is None else SessionTurns(sessions)
        self._loops: list[LoopSessions] = []
        self._loop_of = None if traffic.loops is None else traffic.loops.of
        if traffic.loops is not None:
            of = traffic.loops.of[heads]
            self._loops = [
                LoopSessions(pacer, heads[of == number].tolist(), self._arrival_ns)
                for number, pacer in enumerate(traffic.loops.pacers)
            ]
            heads = heads[of < 0]
        self._heads = heads  # requests with arrivals of their own
        self._waiting = np.ones(len(traffic), dtype=np.bool_)  # for the end of another
        self._waiting[self._heads] = False
        self.unsent = np.zeros(len(traffic), dtype=np.bool_)
        """Whose sessions never begin, as the time of their loop is over: [requests]."""
        self._arrival_s = traffic.arrival_s
        self.output_tokens = traffic.output_tokens
        self._taken_later = 0
        self.coming = 0
        """The next of those with an arrival of their own."""
        self.in_order = sessions is None and traffic.loops is None
        """Whether request numbers are the order of arrival, whatever happens."""
        self.pause_ns = pause_ns(traffic)
        """`session_pauses.pause_ns`."""

    def next_ns(self) -> int:
        """The next arrival, as far as is known now; `NEVER_NS` without any."""
        return min((self._next[0], *(loop.due_ns for loop in self._loops)))

    @property
    def _next(self) -> tuple[int, int]:
        """Time and number of the next request."""
        first = (NEVER_NS, NONE)
        if self.coming < len(self._heads):
            own = int(self._heads[self.coming])
            first = (int(self._arrival_ns[own]), own)
        return min(first, self._later[0]) if self._later else first

    @property
    def taken(self) -> int:
        """Requests that have arrived and were taken."""
        return self.coming + self._taken_later

    def own_ns(self, number: int) -> int:
        """Of those with an arrival of their own, that of the next one but so many; 0 if there are
        fewer.
        """
        place = self.coming + number
        return int(self._arrival_ns[self._heads[place]]) if place < len(self._heads) else 0

    def hand_over(self, before_ns: float = NEVER_NS) -> Coming:
        """Requests that arrive before then, as far as is known, for others to take."""
        if not self.in_order:
            request = np.fromiter(self.take(ceil(before_ns) - 1), dtype=np.int64)
            return Coming(request=request, at_ns=self._arrival_ns[request])
        first, last = self.coming, len(self._heads)
        if before_ns < NEVER_NS:  # few of many: no copy of the whole column is made
            last = bisect_left(self._arrival_ns, before_ns, lo=first)
        self.coming = last
        return Coming(request=self._heads[first:last], at_ns=self._arrival_ns[first:last].copy())

    def take(self, now_ns: int) -> Iterator[int]:
        """Requests that have arrived by now and were not taken before."""
        for loop in self._loops:
            self._begin_due(loop, now_ns)
        while (coming := self._next)[0] <= now_ns:
            arrival_ns, request = coming
            if self._later and coming == self._later[0]:
                heappop(self._later)
                self._taken_later += 1
                self._arrival_ns[request] = arrival_ns
                self._waiting[request] = False
                if self._timeout_ns is not None:
                    self._deadline_ns[request] = arrival_ns + self._timeout_ns
            else:
                self.coming += 1
            yield request

    def after(self, ended: Int32s | Int64s, now_ns: int) -> None:
        """Let those come that waited for `ended` requests, which have their last tokens now."""
        if self.in_order:
            return
        for request in ended.tolist():
            for turn in self._turns.freed(request) if self._turns else ():
                heappush(self._later, (now_ns + int(self._think_ns[turn]), turn))
            self._close(request, now_ns)

    def after_each(self, ended: Int64s, ends_ns: Int64s) -> None:
        """`after`, of requests that have ended each at its time."""
        for place in () if self.in_order else ends_ns.argsort(kind="stable").tolist():
            self.after(ended[place : place + 1], int(ends_ns[place]))

    def lost_with(self, failed: Sequence[int] | Int32s, now_ns: int) -> list[int]:
        """Requests that never come, as one before them in their session has failed now."""
        lost: list[int] = []
        for request in () if self.in_order else map(int, failed):
            turns = self._turns.lost(request) if self._turns else []
            for each in (request, *turns):
                self._close(each, now_ns)
            lost += turns
        return lost

    def _close(self, request: int, now_ns: int) -> None:
        """Let the next session of a closed loop begin, if this was the last of another."""
        is_last = self._turns is None or self._turns.closes(request)
        if is_last and self._loop_of is not None and self._loop_of[request] >= 0:
            loop = self._loops[self._loop_of[request]]
            self._begin_due(loop, now_ns)
            loop.open -= 1
            loop.due_ns = now_ns
            self._begin_due(loop, now_ns)
            if loop.is_over(now_ns):
                self._leave(loop)

    def end(self) -> None:
        """Send no more: what time would have ended has not begun."""
        for loop in self._loops:
            if loop.ends_by_time:
                self._leave(loop)

    def _leave(self, loop: LoopSessions) -> None:
        if rest := loop.left():
            self.unsent |= np.isin(self._session_of, rest)

    def _begin_due(self, loop: LoopSessions, now_ns: int) -> None:
        while (due_ns := loop.due_ns) <= now_ns:
            for first in loop.begun_at(due_ns):
                heappush(self._later, (due_ns, first))

    def arrival_s(self) -> Float64s:
        """Of each request, [requests]; NaN for those that still wait for another's end."""
        own = np.zeros(len(self._arrival_s), dtype=np.bool_)
        own[self._heads] = True
        came_s = np.where(own, self._arrival_s, self._arrival_ns / NS_PER_S)
        return np.where(self._waiting, np.nan, came_s)


class SessionTurns:
    """What waits for what, and how many requests of each session have yet to end."""

    def __init__(self, sessions: Sessions) -> None:
        count = len(sessions.after)
        waiting, before = sessions.waits
        order = before.argsort(kind="stable")
        self._waiting: list[int] = waiting[order].tolist()
        self._begin: list[int] = before[order].searchsorted(np.arange(count + 1)).tolist()
        self._missing: list[int] = np.bincount(waiting, minlength=count).tolist()
        self._session: list[int] = sessions.heads.tolist()
        self._open: list[int] = np.bincount(sessions.heads, minlength=count).tolist()
        self._lost: set[int] = set()

    def _behind(self, request: int) -> list[int]:
        return self._waiting[self._begin[request] : self._begin[request + 1]]

    def freed(self, request: int) -> list[int]:
        """Requests that waited for this one, which ended, and for no other any more."""
        freed = []
        for turn in self._behind(request):
            self._missing[turn] -= 1
            if not self._missing[turn]:
                freed.append(turn)
        return freed

    def lost(self, request: int) -> list[int]:
        """Requests that wait for this one, which failed, in turn; each is named once."""
        found: list[int] = []
        seen = [request]
        while seen:
            for turn in self._behind(seen.pop()):
                if turn not in self._lost:
                    self._lost.add(turn)
                    found.append(turn)
                    seen.append(turn)
        return found

    def closes(self, request: int) -> bool:
        """Count a request as over; returns whether its session is."""
        session = self._session[request]
        self._open[session] -= 1
        return not self._open[session]


class LoopSessions:
    """The sessions of a closed loop: how many are open, and when the next one begins.

    A pool of them where time alone ends the loop; to begin the last of a pool raises OptionError.
    """

    def __init__(self, pacer: ClosedLoop, heads: Sequence[int], arrival_ns: Int64s) -> None:
        self._pacer = pacer
        self._heads = heads  # the first request of each session
        self._begun = 0
        self.open = 0
        self._start_ns = int(arrival_ns[heads[0]]) if heads else NEVER_NS
        self.due_ns = self._start_ns
        """When one may begin next; `NEVER_NS` if not before another's end."""

    def begun_at(self, now_ns: int) -> Iterator[int]:
        """Begin what is due now; yields the first request of each."""
        self.due_ns = NEVER_NS
        while self._begun < len(self._heads):
            elapsed_ns = now_ns - self._start_ns
            due_ns = self._pacer.pace(elapsed_ns=elapsed_ns, sent=self._begun, in_flight=self.open)
            if due_ns is None:
                return
            if due_ns > elapsed_ns:
                self.due_ns = self._start_ns + due_ns
                return
            yield self._heads[self._begun]
            self._begun += 1
            self.open += 1
            if self.ends_by_time and self._begun == len(self._heads):
                ends_ns, within = self._pacer.ends_ns or 0, f"{elapsed_ns / NS_PER_S:g} s"
                expected = f"--requests beside it: {self._begun:,} begin in {within}"
                raise OptionError("--duration", f"{ends_ns / NS_PER_S:g}", expected=expected)

    @property
    def ends_by_time(self) -> bool:
        """Whether nothing else ends it."""
        return self._pacer.ends_ns is not None and self._pacer.sessions is None

    def is_over(self, now_ns: int) -> bool:
        """Whether its time is."""
        return self._pacer.ends_ns is not None and now_ns - self._start_ns >= self._pacer.ends_ns

    def left(self) -> Sequence[int]:
        """The first requests of the sessions that have not begun, and from now on do not."""
        rest, self._heads = self._heads[self._begun :], self._heads[: self._begun]
        return rest

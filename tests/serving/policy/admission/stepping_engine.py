"""A slow, obvious engine in virtual time behind an admission.

Like vLLM's it works in steps, each as long as its computing: a request needs a seat, its prompt is
computed in chunks within a step's tokens, oldest interactive work first, then it has a token a
step.
"""

import heapq
from collections import defaultdict, deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from serving.policy.admission.admission import Admission
from serving.policy.admission.capacity import BacklogTimes, Capacity
from serving.policy.admission.entry import Counted, Entry, Outcome
from serving.policy.admission.refusal import Refused
from serving.policy.admission.work import PRIORITY, Client, Work, WorkClass


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A step takes `step_s` plus tokens of prompts and running sequences, each at its price."""

    seats: int = 64
    kv_tokens: int = 1_000_000
    step_tokens: int = 2_048
    step_s: float = 0.010
    prompt_token_s: float = 20e-6
    sequence_s: float = 0.1e-3

    def capacity(self) -> Capacity:
        beside_s = self.step_s + self.seats * self.sequence_s  # of a step without prompts
        return Capacity(
            seats=self.seats,
            kv_tokens=self.kv_tokens,
            prefill_tokens_per_step=self.step_tokens,
            backlog_times=BacklogTimes.linear(
                step_s=beside_s, token_s=self.prompt_token_s, step_tokens=self.step_tokens
            ),
        )


@dataclass(frozen=True, kw_only=True)
class Arrivals:
    """Requests in time; arrays of one length."""

    at_s: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    answer_tokens: NDArray[np.int64]
    asked_tokens: NDArray[np.int64]
    work_class: WorkClass = WorkClass.INTERACTIVE


@dataclass(kw_only=True)
class Lived:
    """One class's outcome: times and waits of first tokens, and ends."""

    at_s: list[float] = field(default_factory=list)
    ttft_s: list[float] = field(default_factory=list)
    ended_at_s: list[float] = field(default_factory=list)
    made_tokens: int = 0
    refused: int = 0

    def p99_s(self, since_s: float = 0.0) -> float:
        waits_s = np.array(self.ttft_s)[np.array(self.at_s) >= since_s]
        return float(np.percentile(waits_s, 99))


@dataclass
class _Running:
    entry: Entry
    prompt_left: int
    answer_tokens: int
    at_s: float


class SteppingEngine:
    """Serves arrivals; without an admission all enter."""

    def __init__(self, machine: Machine, admission: Admission | None) -> None:
        self.machine = machine
        self.admission = admission
        self.lived = {each: Lived() for each in WorkClass}
        self.now_s = 0.0
        self.told_s: list[tuple[float, float]] = []
        self._waiting: list[tuple[int, float, int, _Running]] = []
        self._prefills: deque[_Running] = deque()
        self._decoding: dict[int, _Running] = {}
        self._ends: defaultdict[int, list[_Running]] = defaultdict(list)
        self._asleep: dict[int, _Running] = {}
        self._steps = 0

    def run(self, loads: list[Arrivals], until_s: float) -> None:
        events = sorted(
            (float(at_s), index, number)
            for number, load in enumerate(loads)
            for index, at_s in enumerate(load.at_s)
            if at_s < until_s
        )
        place = 0
        while self.now_s < until_s:
            while place < len(events) and events[place][0] <= self.now_s:
                at_s, index, number = events[place]
                self._arrive(loads[number], index, at_s)
                place += 1
            if not (self._waiting or self._prefills or self._decoding):
                if place == len(events):
                    return
                self.now_s = events[place][0]
                continue
            # What comes within the step is known at the gateway when it comes, and to the engine
            # next.
            end_s = self._step()
            while place < len(events) and events[place][0] < end_s:
                at_s, index, number = events[place]
                self._arrive(loads[number], index, at_s)
                place += 1
            self.now_s = end_s
            self._finish_step()

    def _arrive(self, load: Arrivals, index: int, at_s: float) -> None:
        work = Work(
            client=Client(),
            work_class=load.work_class,
            sequences=1,
            prompt_tokens=int(load.prompt_tokens[index]),
            new_tokens_max=int(load.asked_tokens[index]),
        )
        if self.admission is None:
            entry = Entry.of(work, number=len(self.lived[load.work_class].at_s), now_s=at_s)
        else:
            try:
                entry = self.admission.enter(work, at_s)
            except Refused as refused:
                self.told_s.append((at_s, refused.retry_after_s))
                self.lived[load.work_class].refused += 1
                return
        running = _Running(entry, work.prompt_tokens, int(load.answer_tokens[index]), at_s)
        if load.work_class is WorkClass.BATCH and self.admission is not None:
            self._asleep[entry.number] = running
            self._wake(at_s)
        else:
            self._send(running)

    def _wake(self, at_s: float) -> None:
        assert self.admission is not None
        for entry in self.admission.turns(at_s):
            self._send(self._asleep.pop(entry.number))

    def _send(self, running: _Running) -> None:
        entry = running.entry
        if self.admission is not None:
            counted = Counted(
                sequences=1,
                prompt_tokens=entry.work.prompt_tokens,
                new_tokens_max=entry.work.new_tokens_max,
            )
            self.admission.begin(entry, counted, self.now_s)
        place = (PRIORITY[entry.work_class], running.at_s, id(running), running)
        heapq.heappush(self._waiting, place)

    def _step(self) -> float:
        """Begin a step; returns its end."""
        machine = self.machine
        tokens_left = machine.step_tokens - len(self._decoding)
        self._first: list[_Running] = []
        still: deque[_Running] = deque()
        computed = 0
        while tokens_left > 0:
            if self._prefills:
                running = self._prefills.popleft()
            elif self._waiting and self._seats_taken(still) < machine.seats:
                running = heapq.heappop(self._waiting)[-1]
            else:
                break
            chunk = min(tokens_left, running.prompt_left)
            running.prompt_left -= chunk
            tokens_left -= chunk
            computed += chunk
            (still if running.prompt_left else self._first).append(running)
        self._prefills.extendleft(reversed(still))
        length_s = machine.step_s + computed * machine.prompt_token_s
        return self.now_s + length_s + len(self._decoding) * machine.sequence_s

    def _seats_taken(self, still: deque[_Running]) -> int:
        return len(self._decoding) + len(self._first) + len(still)

    def _finish_step(self) -> None:
        self._steps += 1
        for running in self._decoding.values():
            self._made(running)
        for running in self._first:
            lived = self.lived[running.entry.work_class]
            lived.at_s.append(self.now_s)
            lived.ttft_s.append(self.now_s - running.at_s)
            if self.admission is not None:
                self.admission.first_token(running.entry, self.now_s)
            self._made(running)
            self._decoding[id(running)] = running
            self._ends[self._steps + running.answer_tokens - 1].append(running)
        for running in self._ends.pop(self._steps, ()):
            del self._decoding[id(running)]
            self.lived[running.entry.work_class].ended_at_s.append(self.now_s)
            if self.admission is not None:
                self.admission.end(
                    running.entry,
                    made_tokens=running.answer_tokens,
                    by_itself=running.answer_tokens < running.entry.work.new_tokens_max,
                    now_s=self.now_s,
                )
                self.admission.leave(running.entry, Outcome.FINISHED, self.now_s)
        if self.admission is not None:
            self._wake(self.now_s)

    def _made(self, running: _Running) -> None:
        self.lived[running.entry.work_class].made_tokens += 1
        if self.admission is not None:
            self.admission.made(running.entry, 1)

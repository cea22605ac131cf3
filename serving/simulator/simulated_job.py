"""A training job in virtual time: it reads its checkpoint, steps, finishes a step and saves."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from emulator.units import NS_PER_S
from serving.policy.day_night.handover import HandoverLimits, JobEvent
from serving.simulator.job_cost import JobCost

LIMITS: Final = HandoverLimits(stop_s=float("inf"), silent_s=float("inf"))
"""Emulated seconds; a simulated job is never silent, and saves as soon as its step has ended: a
server's limit is that time and a minute of the host's, which virtual time does not have.
"""

_NEVER: Final = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWork:
    """What a job has done since its first start: `undone` work was lost when it was killed.

    `joules` are of its chips, idle power included, in the `alive_ns` that it had them.
    """

    starts: int = 0
    steps: int = 0
    tokens: int = 0
    undone_steps: int = 0
    undone_tokens: int = 0
    joules: float = 0.0
    alive_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """A part of its life, at one power; the steps of the one in which it trains."""

    begin_ns: int
    end_ns: float
    watts: float
    trains: bool = False


class SimulatedJob:
    """Mutable; times ascend. `cost_of` chips is None where no training state fits them."""

    def __init__(
        self,
        cost_of: Callable[[Sequence[int]], JobCost | None],
        *,
        start_s: float,
        idle_chip_watts: float,
    ) -> None:
        self._cost_of = cost_of
        self._start_ns = round(start_s * NS_PER_S)
        self._idle_chip_watts = idle_chip_watts
        self._cost: JobCost | None = None  # of the chips that it has
        self._chips = 0
        self._stages: list[_Stage] = []  # the present one first
        self._now_ns = 0
        self._unsaved_steps = 0
        self._steps = self._tokens = self._starts = self._alive_ns = 0
        self._undone_steps = self._undone_tokens = 0
        self._joules = 0.0

    @property
    def ready_ns(self) -> int | None:
        """When its start or its save is over; None without one."""
        ends_ns = [stage.end_ns for stage in self._stages if stage.end_ns != _NEVER]
        return int(ends_ns[-1]) if ends_ns else None

    @property
    def watts(self) -> float:
        """Of its chips, now."""
        return self._stages[0].watts if self._stages else 0.0

    @property
    def work(self) -> JobWork:
        """Until the last `advance`."""
        return JobWork(
            starts=self._starts,
            steps=self._steps,
            tokens=self._tokens,
            undone_steps=self._undone_steps,
            undone_tokens=self._undone_tokens,
            joules=self._joules,
            alive_ns=self._alive_ns,
        )

    def advance(self, now_ns: int) -> JobEvent | None:
        """Pass time, at most until `ready_ns`; returns what happens then."""
        starts = len(self._stages) > 1 and self._stages[-1].end_ns == _NEVER
        while self._stages and self._now_ns < now_ns:
            stage = self._stages[0]
            self._pass(stage, int(min(stage.end_ns, now_ns)))
            if stage.end_ns <= self._now_ns:
                self._stages.pop(0)
        while self._stages and self._stages[0].end_ns <= now_ns:
            self._stages.pop(0)
        self._now_ns = now_ns
        if self._cost is None:
            return None
        if not self._stages:
            self._cost, self._unsaved_steps = None, 0
            return JobEvent.STOPPED
        return JobEvent.STEPPED if starts and len(self._stages) == 1 else None

    def _pass(self, stage: _Stage, end_ns: int) -> None:
        passed_ns = end_ns - self._now_ns
        self._alive_ns += passed_ns
        self._joules += stage.watts * passed_ns / NS_PER_S
        if stage.trains and self._cost is not None:
            step_ns, begin_ns = self._cost.step_ns, stage.begin_ns
            steps = (end_ns - begin_ns) // step_ns - (self._now_ns - begin_ns) // step_ns
            self._steps += steps
            self._unsaved_steps += steps
            self._tokens += steps * self._cost.step_tokens
        self._now_ns = end_ns

    def start(self, chips: Sequence[int]) -> bool:
        """Start on chips of the machines; False, with no effect, where no training state fits."""
        assert self._cost is None, "it runs"
        cost = self._cost_of(chips)
        if cost is None:
            return False
        self._cost, self._chips = cost, len(chips)
        self._starts += 1
        length_ns = self._start_ns + cost.read.duration_ns
        begin_ns = self._now_ns + length_ns
        self._stages = [
            _Stage(
                begin_ns=self._now_ns,
                end_ns=begin_ns,
                watts=self._watts(cost.read.joules, length_ns),
            ),
            _Stage(
                begin_ns=begin_ns,
                end_ns=_NEVER,
                watts=cost.watts + self._idle_chip_watts * (len(chips) - cost.chips),
                trains=True,
            ),
        ]
        return True

    def stop(self) -> None:
        """Finish the step and save, or end at once where it has not begun to train."""
        cost = self._cost
        assert cost is not None, "it does not run"
        trains = self._stages[0]
        if not trains.trains:
            self._stages = [_Stage(begin_ns=self._now_ns, end_ns=self._now_ns, watts=0.0)]
            return
        steps = -(-(self._now_ns - trains.begin_ns) // cost.step_ns)
        saves_ns = trains.begin_ns + steps * cost.step_ns
        length_ns = cost.save.duration_ns
        self._stages = [
            _Stage(begin_ns=trains.begin_ns, end_ns=saves_ns, watts=trains.watts, trains=True),
            _Stage(
                begin_ns=saves_ns,
                end_ns=saves_ns + length_ns,
                watts=self._watts(cost.save.joules, length_ns),
            ),
        ]

    def kill(self) -> None:
        """End now: what is after the newest checkpoint is lost."""
        if self._cost is not None:
            self._undone_steps += self._unsaved_steps
            self._undone_tokens += self._unsaved_steps * self._cost.step_tokens
        self._cost, self._stages, self._unsaved_steps = None, [], 0

    def _watts(self, joules: float, length_ns: int) -> float:
        """Of chips that draw `joules` beyond idle power in a time."""
        beyond = joules * NS_PER_S / length_ns if length_ns else 0.0
        return beyond + self._idle_chip_watts * self._chips

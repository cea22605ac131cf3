"""What engines did: their steps and tokens, of one engine or merged in the order of time."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import numpy as np

from emulator.arrays import Float64s, Int32s, Int64s
from emulator.ultraserver.step_cost import StepCost
from emulator.ultraserver.step_parts import THROTTLE
from emulator.units import NS_PER_S
from serving.simulator.scheduler_arrays import Records
from serving.simulator.step_run_record import STEP
from serving.traffic.serving_run import ServedTotals


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepLog:
    """Each step of a run: its begin, what it lasts and costs, all [steps].

    `throttled_ns`: by how much a power limit lengthens it; `joules` are the chips', and
    `idle_joules` what they would draw without it.
    """

    begin_ns: Int64s
    duration_ns: Int64s
    throttled_ns: Float64s
    joules: Float64s
    idle_joules: Float64s

    def within(self, begin_ns: int, end_ns: int) -> "StepSums":
        """Of steps that begin from `begin_ns` to before `end_ns`."""
        within = (self.begin_ns >= begin_ns) & (self.begin_ns < end_ns)
        return StepSums(
            busy_ns=int(self.duration_ns[within].sum()),
            throttled_ns=float(self.throttled_ns[within].sum()),
            joules=float((self.joules - self.idle_joules)[within].sum()),
            are_all=bool(within.all()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSums:
    """Sums over steps, `joules` above idle; `are_all`: over all steps of a run."""

    busy_ns: int
    throttled_ns: float
    joules: float
    are_all: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenLog:
    """The tokens of a run, by the ends of its steps: as in `ServingRun`, in nanoseconds."""

    end_ns: Int64s  # [steps]
    step_tokens: Int64s  # [steps]
    token_request: Int32s  # [tokens]


class Logs(Enum):
    """What a run keeps: each step and token, each step, or totals alone."""

    ALL = "all"
    STEPS = "steps"
    TOTALS = "totals"


_STEPS_TO_ADD: Final = 1 << 15
_FIRST_STEPS: Final = 1 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTotals:
    """Steps of an engine, the tokens that they gave, and the end of the last one."""

    steps: int = 0
    tokens: int = 0
    busy_ns: int = 0
    throttled_ns: float = 0.0
    end_ns: int = 0

    @property
    def sums(self) -> StepSums:
        """Without joules, which a run without logs has from its engines."""
        return StepSums(
            busy_ns=self.busy_ns, throttled_ns=self.throttled_ns, joules=0.0, are_all=True
        )

    @property
    def served(self) -> ServedTotals:
        """What a run shows of them."""
        return ServedTotals(steps=self.steps, tokens=self.tokens, emulated_s=self.end_ns / NS_PER_S)


NO_TOKENS: Final = TokenLog(
    end_ns=np.zeros(0, dtype=np.int64),
    step_tokens=np.zeros(0, dtype=np.int64),
    token_request=np.zeros(0, dtype=np.int32),
)


LogRoom = tuple[Records, Int64s]
"""Of `EngineLog`: `steps` and `counts`."""


def log_room(*engines: int, keeps: bool) -> LogRoom:
    """For first steps to keep or to add up, of one engine or of so many on a first axis."""
    steps = _FIRST_STEPS if keeps else _STEPS_TO_ADD
    return np.zeros((*engines, steps), dtype=STEP), np.zeros((*engines, 2), dtype=np.int64)


class EngineLog:
    """One engine's steps and tokens; a step under way is behind those that have ended.

    `tokens_max`: of all its requests; memory is taken as they come. None logs no tokens, but how
    they are; none are where clients do not see them. A log that does not keep steps has sums.
    One without tokens may have its `room`, as of `log_room`, beside others.
    """

    def __init__(
        self,
        *,
        tokens_max: int | None,
        idle_watts: float,
        keeps: bool = True,
        clients_see: bool = True,
        room: "LogRoom | None" = None,
    ) -> None:
        self.idle_watts = idle_watts
        self.keeps = keeps
        self.steps, self.counts = room or log_room(keeps=keeps)
        """The counts are of steps in `steps` that have ended, and of tokens in `given`."""
        self.keeps_tokens = keeps and tokens_max is not None
        self.given: Int32s = np.empty(tokens_max or 0 if keeps else 0, dtype=np.int32)
        self._clients_see = clients_see
        self.forgotten = StepTotals()

    @property
    def ended(self) -> int:
        """Steps that have ended."""
        return self.forgotten.steps + int(self.counts[0])

    @property
    def has_room(self) -> bool:
        """For half as many steps as there are."""
        return 3 * int(self.counts[0]) < 2 * len(self.steps)

    def make_room(self) -> None:
        """For half as many steps as there are, at least; those that are not kept are added up."""
        kept = int(self.counts[0])
        if self.has_room:
            return
        if not self.keeps:
            self.forgotten = self.totals
            self.steps[0] = self.steps[kept]
            self.counts[0] = 0
            return
        longer = np.empty(2 * len(self.steps), dtype=STEP)
        longer[: kept + 1] = self.steps[: kept + 1]
        self.steps = longer

    @property
    def totals(self) -> "StepTotals":
        """Of all steps that have ended."""
        steps, before = self.all_steps, self.forgotten
        if not len(steps):
            return before
        return StepTotals(
            steps=before.steps + len(steps),
            tokens=before.tokens + int(steps["tokens"].sum()),
            busy_ns=before.busy_ns + int(steps["duration_ns"].sum()),
            throttled_ns=before.throttled_ns + float(steps["throttled_ns"].sum()),
            end_ns=int(steps[-1]["begin_ns"] + steps[-1]["duration_ns"]),
        )

    def begin(self, begin_ns: int, cost: StepCost) -> None:
        """Note a step that begins."""
        self.make_room()
        throttled_ns = cost.parts_ns.get(THROTTLE, 0.0)
        self.steps[self.counts[0]] = (begin_ns, cost.duration_ns, throttled_ns, cost.chip_joules, 0)

    def end(self, given: Int32s) -> None:
        """Note its end, and the requests that got a token by it."""
        given = given if self._clients_see else given[:0]
        steps, tokens = self.counts.tolist()
        self.steps[steps]["tokens"] = len(given)
        self.counts[0] += 1
        if self.keeps_tokens:
            self.given[tokens : tokens + len(given)] = given
            self.counts[1] += len(given)

    def hide_unseen(self, first: int) -> None:
        """Of steps from `first` on, forget the tokens that no clients see."""
        if not self._clients_see:
            self.steps["tokens"][first : int(self.counts[0])] = 0

    def last_step(self) -> tuple[Int32s, int]:
        """The requests that got a token by the last step that ended, and its end."""
        step = self.all_steps[-1]
        first = int(self.counts[1] - step["tokens"])
        return self.given[first : self.counts[1]], int(step["begin_ns"] + step["duration_ns"])

    @property
    def all_steps(self) -> Records:
        """Those that have ended and are kept, STEP [steps]."""
        return self.steps[: int(self.counts[0])]

    @property
    def tokens(self) -> Int32s:
        """Of these, [tokens]."""
        return self.given[: int(self.counts[1])]


def totals_of(logs: Sequence[EngineLog]) -> StepTotals:
    """Of all engines."""
    each = [log.totals for log in logs]
    return StepTotals(
        steps=sum(of.steps for of in each),
        tokens=sum(of.tokens for of in each),
        busy_ns=sum(of.busy_ns for of in each),
        throttled_ns=sum(of.throttled_ns for of in each),
        end_ns=max(of.end_ns for of in each),
    )


def step_log(logs: Sequence[EngineLog]) -> StepLog:
    """All steps that have ended and are kept, by their begins; of several at one time the first
    engine's.
    """
    begin_ns = _of_all(logs, "begin_ns")
    watts = np.repeat([log.idle_watts for log in logs], [log.ended for log in logs])
    order = slice(None) if len(logs) == 1 else np.argsort(begin_ns, kind="stable")
    duration_ns = _of_all(logs, "duration_ns")[order]
    return StepLog(
        begin_ns=begin_ns[order],
        duration_ns=duration_ns,
        throttled_ns=_of_all(logs, "throttled_ns")[order],
        joules=_of_all(logs, "joules")[order],
        idle_joules=watts[order] * duration_ns / NS_PER_S,
    )


def _of_all(logs: Sequence[EngineLog], field: str) -> Any:
    """A field of STEP, engine by engine: sorted several times as fast as whole records."""
    return np.concatenate([log.all_steps[field] for log in logs])


def token_log(logs: Sequence[EngineLog]) -> TokenLog:
    """All tokens, by the ends of their steps; of several at one time the first engine's."""
    end_ns = _of_all(logs, "begin_ns") + _of_all(logs, "duration_ns")
    counts, tokens = _of_all(logs, "tokens"), logs[0].tokens
    if len(logs) > 1:
        order = np.argsort(end_ns, kind="stable")
        first = (counts.cumsum() - counts)[order]  # token of each step
        end_ns, counts = end_ns[order], counts[order]
        places = np.repeat(first - (counts.cumsum() - counts), counts)
        places += np.arange(len(places))
        tokens = np.concatenate([log.tokens for log in logs])[places]
    return TokenLog(end_ns=end_ns, step_tokens=counts, token_request=tokens)

"""What engines did: their steps and tokens, of one engine or merged in the order of time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from emulator.arrays import Float64s, Int32s, Int64s
from emulator.ultraserver.step_cost import StepCost
from emulator.ultraserver.step_parts import THROTTLE
from emulator.units import NS_PER_S
from serving.simulator.scheduler_arrays import Records
from serving.simulator.step_run_kernel import STEP


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenLog:
    """The tokens of a run, by the ends of its steps: as in `ServingRun`, in nanoseconds."""

    end_ns: Int64s  # [steps]
    step_tokens: Int64s  # [steps]
    token_request: Int32s  # [tokens]


class EngineLog:
    """One engine's steps and tokens; a step under way is behind those that have ended.

    `tokens_max`: of all its requests; memory is taken as they come. None logs no tokens.
    """

    def __init__(self, *, tokens_max: int | None, idle_watts: float) -> None:
        self.idle_watts = idle_watts
        self.steps: Records = np.zeros(1_024, dtype=STEP)
        self.given: Int32s = np.empty(tokens_max or 0, dtype=np.int32)
        self._has_tokens = tokens_max is not None
        self.counts = np.zeros(2, dtype=np.int64)
        """Steps that have ended, and tokens."""

    @property
    def ended(self) -> int:
        """Steps that have ended."""
        return int(self.counts[0])

    def make_room(self) -> None:
        """For half as many steps as there are, at least."""
        if 3 * self.ended >= 2 * len(self.steps):
            longer = np.empty(2 * len(self.steps), dtype=STEP)
            longer[: self.ended + 1] = self.steps[: self.ended + 1]
            self.steps = longer

    def begin(self, begin_ns: int, cost: StepCost) -> None:
        """Note a step that begins."""
        self.make_room()
        throttled_ns = cost.parts_ns.get(THROTTLE, 0.0)
        self.steps[self.ended] = (begin_ns, cost.duration_ns, throttled_ns, cost.chip_joules, 0)

    def end(self, given: Int32s) -> None:
        """Note its end, and the requests that got a token by it."""
        given = given if self._has_tokens else given[:0]
        steps, tokens = self.counts.tolist()
        self.steps[steps]["tokens"] = len(given)
        self.given[tokens : tokens + len(given)] = given
        self.counts += (1, len(given))

    def last_step(self) -> tuple[Int32s, int]:
        """The requests that got a token by the last step that ended, and its end."""
        step = self.all_steps[-1]
        first = int(self.counts[1] - step["tokens"])
        return self.given[first : self.counts[1]], int(step["begin_ns"] + step["duration_ns"])

    @property
    def all_steps(self) -> Records:
        """Those that have ended, STEP [steps]."""
        return self.steps[: self.ended]

    @property
    def tokens(self) -> Int32s:
        """Of these, [tokens]."""
        return self.given[: int(self.counts[1])]


def step_log(logs: Sequence[EngineLog]) -> StepLog:
    """All steps that have ended, by their begins; of several at one time the first engine's."""
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

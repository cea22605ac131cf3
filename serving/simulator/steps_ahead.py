"""Runs an engine ahead: all its steps up to the next thing that comes from outside, in one call."""

from dataclasses import dataclass
from math import ceil

import numpy as np

from emulator.arrays import Bools
from emulator.specs.batch import StepBatch
from emulator.ultraserver.cost_kernel import StepTables, nothing_kept
from emulator.ultraserver.step_cost import StepCostModel
from serving.policy.prefill_throttle import EvenLevel
from serving.simulator import compiled_schedulers as kernel
from serving.simulator.lockstep_schedulers import LockstepSchedulers
from serving.simulator.run_log import EngineLog
from serving.simulator.scheduler_arrays import NEVER_NS, NONE, Records
from serving.simulator.standing_decodes import PATIENCE, nothing_stands
from serving.simulator.step_run_record import (
    EMPTY,
    FULL,
    NOTHING_COMES,
    RUN,
    UNKNOWN,
    Coming,
    StepRules,
    StepRunRecord,
    Stops,
    step_room,
)

_STEPS_MAX = 8_192
"""Of one call, which nothing interrupts: a fraction of a second."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunStops:
    """What ends a run of steps before its time, after a step: as many as `steps` in all, the last
    of `judged_left` requests of the mask `judged` [requests], or any request's end if `at_ends`.
    """

    judged: Bools
    judged_left: int
    steps: int
    at_ends: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsDone:
    """Where an engine is after a run: at `now_ns`, or in a step that ends at `end_ns`.

    `is_empty`: its schedulers decided a step in which no rank computes. `busy_ns` and the requests
    with all their tokens, `done` and of them `judged`, are of this run; `joules` of all steps.
    """

    now_ns: int
    end_ns: int | None
    is_empty: bool
    busy_ns: int
    joules: float
    done: int
    judged: int


class StepsAhead:
    """Steps of `schedulers`, logged.

    They are those that `SimulatedEngine` would make one by one, to the nanosecond and the bit.
    """

    def __init__(
        self,
        schedulers: LockstepSchedulers,
        cost_model: StepCostModel,
        costs: StepTables,
        level: EvenLevel,
        log: EngineLog,
    ) -> None:
        self._schedulers = schedulers
        self.cost_model = cost_model
        self._log = log
        self._run = np.zeros(1, dtype=RUN)
        self._given = log.given
        if not log.keeps_tokens:
            self._given = np.zeros(len(schedulers.arrays.rows), dtype=np.int32)
        self._coming = NOTHING_COMES
        self._taken = 0
        self._first_step = self._judged_before = 0  # as a run was opened
        self.rules = StepRules(
            pending_enough=schedulers.policy.pending_tokens_max,
            level=level,
            costs=costs,
            keeps=nothing_kept(costs),
            room=step_room(len(schedulers.arrays.ranks), len(schedulers.arrays.rows)),
        )
        self._standing = None
        if schedulers.cache is None:
            numbers = costs.tables[0].heads.numbers
            self._standing = nothing_stands(numbers, schedulers.arrays, schedulers.bounds)

    @classmethod
    def of(
        cls, schedulers: LockstepSchedulers, cost_model: StepCostModel, log: EngineLog
    ) -> "StepsAhead | None":
        """None where steps need more: drafts, budgets that differ by rank, costs beyond tables."""
        costs, level = cost_model.step_tables(), schedulers.policy.even_level
        if costs is None or level is None or schedulers.acceptance is not None:
            return None
        return cls(schedulers, cost_model, costs, level, log)

    def at_costs(self, cost_model: StepCostModel) -> "StepsAhead":
        """The same on a machine that has changed, whose steps have costs in tables too."""
        changed = self.of(self._schedulers, cost_model, self._log)
        assert changed is not None, "another kind of costs"
        changed.expect(self.take_back())
        return changed

    def expect(self, more: Coming) -> None:
        """Let `more` come to this engine, after all that it expects already."""
        left = self._left
        self._coming = Coming(
            request=np.append(left.request, more.request), at_ns=np.append(left.at_ns, more.at_ns)
        )
        self._taken = 0

    def take_back(self) -> Coming:
        """What it expects, and from now on does not."""
        left, self._coming = self._left, NOTHING_COMES
        self._taken = 0
        return left

    @property
    def _left(self) -> Coming:
        return Coming(
            request=self._coming.request[self._taken :], at_ns=self._coming.at_ns[self._taken :]
        )

    @property
    def next_arrival_ns(self) -> int | None:
        """Of an expected request; None without any."""
        if self._taken == len(self._coming.at_ns):
            return None
        return int(self._coming.at_ns[self._taken])

    def run(self, now_ns: int, until_ns: float, stops: RunStops, *, joules: float) -> StepsDone:
        """Step from `now_ns` on until `until_ns`, before which only expected requests come.

        `joules` are those of the steps before, to which these add theirs.
        """
        self.open(self._run, now_ns, joules=joules, judged_left=stops.judged_left)
        self._run["taken"] = self._taken
        code = self._go(NEVER_NS if until_ns >= NEVER_NS else ceil(until_ns), stops)
        self._taken = int(self._run[0]["taken"])
        return self.close(self._run, is_empty=code == EMPTY)

    def open(
        self,
        run: Records,
        now_ns: int,
        *,
        joules: float,
        judged_left: int,
        end_ns: int | None = None,
    ) -> None:
        """Lay out a `run`, RUN [1], from `now_ns` on, or in the step under way until `end_ns`."""
        schedulers, log = self._schedulers, self._log
        schedulers.take_inbox()
        log.make_room()
        run[:] = 0
        row = run[0]
        row["now_ns"], row["end_ns"], row["joules"] = now_ns, NONE, joules
        if end_ns is not None:
            row["end_ns"], row["rows"] = end_ns, schedulers.rows
        row["requests"], row["free_blocks_min"] = schedulers.requests, schedulers.all_blocks
        row["judged_left"], row["patience"] = judged_left, PATIENCE
        row["lacks_cache"], row["logs_tokens"] = schedulers.lacks_cache, log.keeps_tokens
        self._first_step, self._judged_before = int(log.counts[0]), judged_left

    def close(self, run: Records, *, is_empty: bool) -> StepsDone:
        """Take over what a run has left; `is_empty`: no rank computes in the next step."""
        row, schedulers = run[0], self._schedulers
        self._log.hide_unseen(self._first_step)
        schedulers.went_ahead(
            rows=int(row["rows"]),
            requests=int(row["requests"]),
            free_blocks_min=int(row["free_blocks_min"]),
            empty_rank_steps=int(row["empty_rank_steps"]),
        )
        return StepsDone(
            now_ns=int(row["now_ns"]),
            end_ns=None if row["end_ns"] == NONE else int(row["end_ns"]),
            is_empty=is_empty,
            busy_ns=int(row["busy_ns"]),
            joules=float(row["joules"]),
            done=int(row["done"]),
            judged=self._judged_before - int(row["judged_left"]),
        )

    def _go(self, until_ns: int, stops: RunStops) -> int:
        schedulers, log = self._schedulers, self._log
        # One may be left under way.
        most = min(len(log.steps) - 1, int(log.counts[0]) + _STEPS_MAX)
        most = min(most, stops.steps - log.forgotten.steps)
        record = StepRunRecord(run=self._run, steps=log.steps, given=self._given, counts=log.counts)
        while True:
            code: int = kernel.run_steps(
                schedulers.arrays,
                schedulers.bounds,
                schedulers.cache,
                self.rules,
                self._standing if schedulers.cache is None else None,
                (self._coming, stops.judged),
                record,
                Stops(until_ns=until_ns, steps=most, at_ends=stops.at_ends),
            )
            if code == FULL:
                schedulers.make_cache()
                self._run["lacks_cache"] = False
            elif code == UNKNOWN:
                self.learn()
            else:
                return code

    def learn(self) -> None:
        """Make the tables know the tokens of the step that is decided."""
        room = self.rules.room
        (busy,) = room.pending.nonzero()
        batch = StepBatch(
            ranks=len(room.logit_rows),
            rank=busy,
            new_tokens=room.pending[busy],
            context_tokens=np.zeros_like(busy),
            logit_rows=room.logit_rows,
        )
        costs = self.cost_model.step_tables(batch)
        assert costs is not None
        self.rules = self.rules._replace(costs=costs)

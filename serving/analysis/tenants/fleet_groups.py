"""Groups of one fleet in virtual time: each serves a model, is in a tenant's hands, or is between.

Every tenant's groups go by its own state of the hand-over machine (see `tenant_pool`), so that a
job is saved before a chip of it goes. A group that serves another model afterwards drains as if it
were leased, and reads the other model's weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from emulator.errors import ConfigError
from serving.analysis.day.leased_groups import GroupTimes, HandoverTotals
from serving.analysis.day.training_yield import GroupHandover
from serving.analysis.tenants.batch_pool import BatchPool
from serving.analysis.tenants.tenant_pool import NEVER, TenantPool
from serving.policy.day_night.handover import (
    Action,
    HandoverEvent,
    HandoverPhase,
)
from serving.policy.day_night.handover_machine import (
    GroupHappened,
    HandoverStep,
    JobHappened,
    due,
    next_limit_s,
)
from serving.simulator.simulated_job import LIMITS

_S, _D, _T, _R = (
    HandoverPhase.SERVING,
    HandoverPhase.DRAINING,
    HandoverPhase.TRAINING,
    HandoverPhase.RESTORING,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What a group is for: a model that it serves, or a tenant, or, with neither, to idle."""

    model: int | None = None
    tenant: int | None = None


IDLE: Final = Use()


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetTimes:
    """Group-seconds, tokens and joules by served model and by tenant, those that idle last."""

    models: tuple[GroupTimes, ...]
    tenants: tuple[GroupTimes, ...]


class FleetGroups:
    """Mutable; times ascend. `first`: the model that each group serves at first."""

    def __init__(
        self,
        *,
        models: Sequence[GroupHandover],
        tenants: Sequence[TenantPool],
        first: Sequence[int],
        group_idle_watts: float,
    ) -> None:
        self.pools = [
            *tenants,
            TenantPool.idle(groups=len(first), group_idle_watts=group_idle_watts),
        ]
        self._handovers = models
        self.model = list(first)
        """That each group serves, served last, or reads the weights of."""
        self.bound: list[int | None] = [None] * len(first)
        """The pool that has each group, on its way or there; None for one that serves."""
        self._uses = [Use(model=model) for model in first]
        self._arrive_s: dict[int, float] = {}
        self.now_s = 0.0
        self._served = [GroupTimes() for _ in models]
        self.totals = [HandoverTotals() for _ in models]
        self.left: list[list[float]] = [[] for _ in models]
        """When groups of each model began to leave that have left."""

    @property
    def groups(self) -> int:
        """Of the fleet."""
        return len(self.model)

    def phase(self, group: int) -> HandoverPhase:
        """Of a group."""
        bound = self.bound[group]
        return _S if bound is None else self.pools[bound].phase(group)

    def serving(self, model: int) -> int:
        """Groups that serve it now."""
        return sum(of == model and self.phase(group) is _S for group, of in enumerate(self.model))

    def serving_or_coming(self, model: int) -> int:
        """Groups that serve it, return to it, or wait for a job to save before they do."""
        return sum(use.model == model for use in self._uses)

    def want(self, uses: Sequence[Use]) -> None:
        """Ask for these, by group. The last group that serves a model stays until another does, for
        as long as a refused drain is tried again.

        Raises ConfigError for a number of uses other than that of groups.
        """
        if len(uses) != self.groups:
            raise ConfigError("uses", len(uses), f"one for each of {self.groups} groups")
        self._uses = list(uses)
        self._settle()

    def advance(self, to_s: float) -> FleetTimes:
        """Advance the time with its events; returns what came of it."""
        while (at_s := self._next_s()) <= to_s:
            self._pass(at_s - self.now_s)
            self.now_s = max(self.now_s, at_s)
            self._happen()
            self._settle()
        self._pass(to_s - self.now_s)
        self.now_s = to_s
        served, self._served = self._served, [GroupTimes() for _ in self._served]
        return FleetTimes(models=tuple(served), tenants=tuple(p.counted() for p in self.pools))

    def _next_s(self) -> float:
        times = [*self._arrive_s.values()]
        for pool in self.pools:
            times.append(pool.next_s(self.now_s))
            times.append(next_limit_s(pool.state, now_s=self.now_s, limits=LIMITS))
        return min(times, default=NEVER)

    def _happen(self) -> None:
        """Everything that is due now."""
        for pool in self.pools:
            for event in pool.happened(self.now_s):
                assert isinstance(event, JobHappened)
                pool.take(event, now_s=self.now_s)
        for group in [group for group, at_s in self._arrive_s.items() if at_s <= self.now_s]:
            self._arrive(group)

    def _arrive(self, group: int) -> None:
        del self._arrive_s[group]
        model, bound = self.model[group], self.bound[group]
        assert bound is not None
        pool = self.pools[bound]
        if pool.phase(group) is _D:
            pool.take(GroupHappened(group=group, event=HandoverEvent.VACATED), now_s=self.now_s)
            self.totals[model].left += 1
            self.left[model].append(self.now_s - self._handovers[model].drain_s)
            if isinstance(pool, BatchPool):
                pool.arrives(group, now_s=self.now_s)
        else:
            pool.take(GroupHappened(group=group, event=HandoverEvent.RESTORED), now_s=self.now_s)
            self.totals[model].came_back += 1
            self._release(group)

    # What is asked for, and what is due.

    def _settle(self) -> None:
        """Carry out all that is due now."""
        while True:
            self._wish()
            steps = [
                (pool, step)
                for pool in self.pools
                for step in due(pool.state, now_s=self.now_s, limits=LIMITS)
            ]
            if not steps:
                return
            for pool, step in steps:
                if step.group is None:
                    pool.act(step, now_s=self.now_s)
                else:
                    self._act(pool, step, step.group)

    def _wish(self) -> None:
        """Bind groups to the pools that are to have them, and say what is desired of each."""
        for group, use in enumerate(self._uses):
            self._bind(group, use)
        for number, pool in enumerate(self.pools):
            phases = (
                _T if self.bound[group] == number and self._stays(group, number) else _S
                for group in range(self.groups)
            )
            pool.wish(tuple(phases), now_s=self.now_s)

    def _pool_of(self, use: Use) -> int:
        """Its tenant's, or the pool without work, also for a way from one model to another."""
        return len(self.pools) - 1 if use.tenant is None else use.tenant

    def _bind(self, group: int, use: Use) -> None:
        phase, bound, wanted = self.phase(group), self.bound[group], self._pool_of(use)
        serves_it = use.model is not None and use.model == self.model[group]
        if phase is _S:
            if serves_it and bound is not None:
                self._release(group)
            elif not serves_it and bound != wanted:
                self._enter(group, wanted, _S)
        elif phase is _D and not serves_it and bound != wanted:
            self._enter(group, wanted, _D)

    def _stays(self, group: int, pool: int) -> bool:
        """Whether a group of this pool is to be there; one on its way to another model too, until
        it is empty.
        """
        use, phase = self._uses[group], self.phase(group)
        if use.model is None:
            return self._pool_of(use) == pool
        return phase in (_S, _D) and use.model != self.model[group]

    def _enter(self, group: int, pool: int, phase: HandoverPhase) -> None:
        self._release(group)
        self.bound[group] = pool
        self.pools[pool].enter(group, phase, now_s=self.now_s)

    def _release(self, group: int) -> None:
        bound, self.bound[group] = self.bound[group], None
        if bound is not None:
            self.pools[bound].leave(group, now_s=self.now_s)

    def _act(self, pool: TenantPool, step: HandoverStep, group: int) -> None:
        model = self.model[group]
        match step.action:
            case Action.DRAIN:
                fits = self.serving(model) > 1
                event = HandoverEvent.DRAIN if fits else HandoverEvent.REFUSED
                pool.take(GroupHappened(group=group, event=event), now_s=self.now_s)
                if fits:
                    self._arrive_s[group] = self.now_s + self._handovers[model].drain_s
            case Action.CANCEL:
                pool.take(
                    GroupHappened(group=group, event=HandoverEvent.CANCELLED), now_s=self.now_s
                )
                del self._arrive_s[group]
                self._release(group)
            case Action.RESUME:
                self._resume(pool, group)

    def _resume(self, pool: TenantPool, group: int) -> None:
        """A group whose job is gone: to the next tenant at once, or back to serve."""
        use = self._uses[group]
        if not pool.is_done:
            pool.totals.came_back += 1
        if use.model is None:
            other = self._pool_of(use)
            self._uses[group] = use = IDLE if self.pools[other] is pool else use
            self._enter(group, self._pool_of(use), _T)
            return
        pool.take(GroupHappened(group=group, event=HandoverEvent.RESUME), now_s=self.now_s)
        self.model[group] = use.model
        self._enter(group, len(self.pools) - 1, _R)
        self._arrive_s[group] = self.now_s + self._handovers[use.model].restore_s

    def _pass(self, seconds: float) -> None:
        if seconds <= 0:
            return
        serving = [0] * len(self._served)
        for group, model in enumerate(self.model):
            times, totals = self._served[model], self.totals[model]
            match self.phase(group):
                case HandoverPhase.SERVING:
                    serving[model] += 1
                case HandoverPhase.DRAINING:
                    times.leaving_s += seconds
                    totals.seconds += seconds
                case HandoverPhase.RESTORING:
                    handover = self._handovers[model]
                    joules = handover.restore_joules * seconds / handover.restore_s
                    times.restoring_s += seconds
                    times.joules += joules
                    totals.seconds += seconds
                    totals.joules += joules
        for times, groups in zip(self._served, serving, strict=True):
            times.serve(groups, seconds)
        for pool in self.pools:
            pool.work(seconds, now_s=self.now_s)

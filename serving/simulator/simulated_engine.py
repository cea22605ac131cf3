"""One engine in virtual time: its schedulers, the step under way, and what its chips have drawn."""

from typing import TYPE_CHECKING, Final

from emulator.arrays import Int32s
from emulator.specs.batch import StepBatch
from emulator.units import NS_PER_S
from serving.engine.step_batch import StepWatcher
from serving.simulator import compiled_schedulers as kernel
from serving.simulator.lockstep_schedulers import LockstepSchedulers
from serving.simulator.machine_calls import MachineCall
from serving.simulator.prefill_ranks import PrefillRanks
from serving.simulator.run_log import EngineLog
from serving.simulator.scheduler_arrays import NEVER_NS, Records
from serving.simulator.simulated_deployment import SimulatedDeployment
from serving.simulator.step_run_record import Coming
from serving.simulator.steps_ahead import RunStops, StepsAhead, StepsDone

if TYPE_CHECKING:
    from serving.simulator.job_cost import JobTerms
    from serving.simulator.simulated_machine import (
        EngineHandovers,
        MachineStep,
        RankChange,
        SimulatedMachine,
    )
    from serving.wire.machine_state import LeaseState

EMPTY_STEPS_MAX: Final = 3
"""Steps without a token, one after another, after which nothing would ever change."""


class SimulatedEngine:
    """Steps follow each other; requests that come during one wait for its end.

    With `calls`, faults and hand-overs may come to its machine, whose chips have room for a `job`.
    """

    def __init__(
        self,
        deployment: SimulatedDeployment,
        schedulers: LockstepSchedulers,
        log: EngineLog,
        *,
        calls: bool,
        on_step: StepWatcher | None,
        job: "JobTerms | None",
    ) -> None:
        self.schedulers = schedulers
        self.log = log
        self.end_ns: int | None = None
        """Of the step under way."""
        self._begin_ns = 0
        self.paused_ns: int | None = None
        """Between two steps, when the next can begin."""
        self._roles: PrefillRanks | None = None
        if deployment.prefill_ranks:
            layout = deployment.cost_model.layout
            self._roles = PrefillRanks(schedulers, deployment.prefill_ranks, layout)
            if calls and schedulers.cache is None and deployment.limits.prefix_caching:
                # What has to come back from a rank that is lost finds its own blocks.
                schedulers.make_cache()
        self._ahead: StepsAhead | None = None
        if on_step is None and self._roles is None:
            self._ahead = StepsAhead.of(schedulers, deployment.cost_model, log)
        self._cost_model = deployment.cost_model
        self.idle_watts = deployment.idle_watts
        self._on_step = on_step
        self._busy_ns = 0
        self._step_joules = 0.0
        self._machine: SimulatedMachine | None = None
        self._step: MachineStep | None = None
        self._owes_change = False  # a call came in a step, at whose end ranks may close
        if calls:
            # It imports what drives live chips, which few simulations need.
            from serving.simulator import simulated_machine

            self._machine = simulated_machine.SimulatedMachine(deployment, job)

    @property
    def can_expect(self) -> bool:
        """Whether `expect` may be asked."""
        return self._ahead is not None and self.schedulers.has_builtin_choice

    def expect(self, more: Coming, now_ns: int) -> None:
        """Let `more` requests come, after those expected already. Steps then go ahead."""
        self.ahead.expect(more)
        if self.paused_ns is None and not self.is_busy:
            self.pause(now_ns)

    @property
    def can_begin(self) -> bool:
        """Whether it has requests, on ranks that could run them, and no step under way; or expects
        some.
        """
        schedulers = self.schedulers
        expects = self._ahead is not None and self._ahead.next_arrival_ns is not None
        return not self.is_busy and (expects or schedulers.requests > schedulers.turned_away)

    @property
    def is_busy(self) -> bool:
        """Whether a step is under way, or chips that came back compute their first."""
        return self.end_ns is not None or (self._machine is not None and self._machine.is_warming)

    def dismiss(self, *, others_serve: bool) -> list[int]:
        """Give up requests that came while no rank was up, or, where others serve, all left."""
        schedulers = self.schedulers
        if not schedulers.turned_away:
            return []
        if others_serve and self.is_leased:
            return schedulers.give_up_unsent()
        return schedulers.move()

    @property
    def is_leased(self) -> bool:
        """Whether all of it leaves, or has left, for a hand-over."""
        return self._machine is not None and self._machine.is_leased

    @property
    def leases(self) -> "tuple[LeaseState, ...]":
        """Chips that are on their way or out."""
        return () if self._machine is None else self._machine.leases

    def handovers(self, now_ns: int) -> "EngineHandovers":
        """All of them until now."""
        assert self._machine is not None, "an engine without a machine"
        return self._machine.handovers(now_ns)

    @property
    def has_steps_ahead(self) -> bool:
        """Whether it can go ahead but while its machine changes."""
        return self._ahead is not None

    @property
    def can_go_ahead(self) -> bool:
        """Whether `go_ahead` may be asked."""
        if self._ahead is None or self._machine is None:
            return self._ahead is not None
        costs = self._machine.steady_costs
        if costs is not None and costs is not self._ahead.cost_model:
            self._ahead = self._ahead.at_costs(costs)
        return costs is not None

    def alone_until_ns(self, arrival_ns: int) -> int:
        """Until when nothing that happens to its machine concerns other engines; a request may come
        at `arrival_ns`.
        """
        if self._machine is None or self._machine.steady_costs is not None:
            return NEVER_NS
        next_ns = self._machine.leaves_ns
        if self.end_ns is not None and self._owes_change:
            return self.end_ns
        if next_ns is None:  # a step may show what a fault took
            return arrival_ns + 1 if self.end_ns is None else self.end_ns
        return next_ns if self.end_ns is None else max(next_ns, self.end_ns)

    def take_expected(self, now_ns: int) -> None:
        """Take requests that it expects and that have come before now."""
        if self._ahead is None:
            return
        arrival_ns = self._ahead.next_arrival_ns
        if arrival_ns is None or arrival_ns >= now_ns:
            return
        left = self._ahead.take_back()
        come = int(left.at_ns.searchsorted(now_ns))
        self._ahead.expect(Coming(request=left.request[come:], at_ns=left.at_ns[come:]))
        for request in left.request[:come].tolist():
            self.schedulers.put(request, begins=not self.is_busy)

    def go_ahead(self, now_ns: int, until_ns: float, stops: RunStops) -> StepsDone:
        """Make all steps until `until_ns`, before which only expected requests come.

        Engines may do so in several threads; one then lets each have `gone_ahead`.
        """
        return self.ahead.run(now_ns, until_ns, stops, joules=self._step_joules)

    @property
    def ahead(self) -> StepsAhead:
        """Its steps, where it `can_go_ahead`."""
        assert self._ahead is not None, "steps go one by one"
        return self._ahead

    def open_run(self, run: Records, *, judged_left: int) -> None:
        """Lay out the steps that `close_run` takes over, RUN [1], which has those before."""
        now_ns = int(run["now_ns"][0]) if self.paused_ns is None else self.paused_ns
        joules, end_ns = self._step_joules, self.end_ns
        self.ahead.open(run, now_ns, joules=joules, judged_left=judged_left, end_ns=end_ns)

    def close_run(self, run: Records, *, is_empty: bool) -> None:
        """Go on after them; `is_empty`: the next one would be."""
        self.gone_ahead(self.ahead.close(run, is_empty=is_empty))

    def gone_ahead(self, done: StepsDone) -> None:
        """Go on after `go_ahead`."""
        self.end_ns = done.end_ns
        self._count(done.busy_ns, done.joules)
        if done.is_empty:
            self.begin(done.now_ns)
        self.pause(done.now_ns)

    def _count(self, busy_ns: int, joules: float) -> None:
        """Count steps that its machine's ledger has not; `joules` of all such steps."""
        self._busy_ns += busy_ns
        self._step_joules = joules

    def pause(self, now_ns: int) -> None:
        """Note when the next step can begin, from now on."""
        self.paused_ns = now_ns if self.can_begin else None
        if self.can_begin and self._ahead is not None and not self.schedulers.requests:
            self.paused_ns = max(now_ns, self._ahead.next_arrival_ns or 0)

    def abort_due(self, now_ns: int) -> Int32s:
        """Between two steps: `LockstepSchedulers.abort_due`."""
        aborted = self.schedulers.abort_due(now_ns)
        if self._roles is not None and len(aborted):
            self._roles.note_idle()
        return aborted

    def begin(self, now_ns: int) -> None:
        """Decide the next step, which begins now or after a standstill."""
        self.paused_ns = None
        if self._roles is not None:
            self._roles.receive(now_ns)
            self.paused_ns = self._roles.waits_until_ns
            if self.paused_ns is not None:
                return
        batch = self._decided(now_ns)
        if batch is None:
            return
        if self._roles is not None:
            self._roles.begin_step()
        begin_ns = now_ns
        if self._machine is None:
            cost = self._cost_model.cost(batch)
        else:
            self._step = step = self._machine.begin(batch, now_ns)
            begin_ns, cost, batch = now_ns + step.pause_ns, step.cost, step.batch
        if self._on_step is not None:
            self._on_step(cost, batch, begin_ns=begin_ns, queues=self.schedulers.queues)
        if self._machine is None:
            self._count(cost.duration_ns, self._step_joules + cost.chip_joules)
        self._begin_ns, self.end_ns = begin_ns, begin_ns + cost.duration_ns
        self.log.begin(begin_ns, cost)

    def _decided(self, now_ns: int) -> StepBatch | None:
        """The next step's work; None where ranks wait for KV on its way, or for its blocks."""
        for _ in range(EMPTY_STEPS_MAX):
            batch = self.schedulers.schedule(now_ns=now_ns)
            if len(batch.rank):
                return batch
        there_ns = int(kernel.next_kv_ns(self.schedulers.arrays, now_ns))
        if self._roles is not None and self._roles.next_ns is not None:
            there_ns = min(there_ns, self._roles.next_ns)
        self.paused_ns = None if there_ns == NEVER_NS else there_ns
        if self.paused_ns is None and not self.schedulers.unread:
            self.schedulers.refuse_own_policy()
            raise AssertionError("requests wait and no rank takes any")
        return None

    def give_tokens(self) -> Int32s:
        """The requests that get a token by the step, which ends; see `LockstepSchedulers`."""
        assert self.end_ns is not None, "no step is under way"
        given = self.schedulers.give_tokens(self.end_ns, self._step.silent if self._step else ())
        self.log.end(given)
        return given

    def finish(self) -> list[int]:
        """End the step; returns requests that it gives up, as no rank is left."""
        given_up: list[int] = []
        if self._machine is not None:
            assert self.end_ns is not None, "no step is under way"
            change = self._machine.end(self._step, self.end_ns, self.schedulers.queues)
            given_up = self._follow(change)
        if self._roles is not None:
            assert self.end_ns is not None, "no step is under way"
            self._roles.end_step(self._begin_ns, self.end_ns)
        self._step = self.end_ns = None
        self.schedulers.take_inbox()
        return given_up

    def take(self, call: MachineCall, now_ns: int, *, others_serve: bool) -> list[int]:
        """Carry out a call; returns requests that it gives up. Raises ConfigError and LeaseRefused.

        `others_serve`: other engines, so that all ranks of this one may leave.
        """
        assert self._machine is not None, "an engine without a machine"
        self._machine.take(call, now_ns, self.schedulers.queues, others_serve=others_serve)
        self._owes_change = True
        return self.go_on(now_ns)

    @property
    def waits_until_ns(self) -> int | None:
        """When an idle engine goes on with a hand-over, or has warmed up; None without one."""
        if self._machine is None or self.end_ns is not None:
            return None
        return self._machine.next_ns

    def go_on(self, now_ns: int) -> list[int]:
        """Go on with faults and hand-overs where no step is under way; as `take`."""
        if self._machine is None or self.end_ns is not None:
            return []
        return self._follow(self._machine.idle(now_ns, self.schedulers.queues))

    def _follow(self, change: "RankChange") -> list[int]:
        self._owes_change = False
        self.schedulers.set_ranks(change.up, change.closed)
        if self._roles is not None:
            self._roles.follow(change.up, change.closed, change.lost)
        return self.schedulers.move(change.lost)

    def joules(self, now_ns: int) -> float:
        """Of all chips until now, idle times and hand-overs included."""
        busy_joules = self.log.idle_watts * self._busy_ns
        step_joules = self._step_joules + (self._roles.joules if self._roles else 0.0)
        if self._machine is not None:
            above_idle = step_joules - busy_joules / NS_PER_S
            return self._machine.chip_joules(now_ns) + above_idle
        # Spares are idle all the time, the others between steps.
        return step_joules + (self.idle_watts * now_ns - busy_joules) / NS_PER_S

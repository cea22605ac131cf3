"""Serves traffic in virtual time: compiled schedulers decide each step, the cost model times it.

No chips run, tokens are synthetic, and the host takes no time, so a run depends on the emulated
machine alone and repeats exactly. Every step is scheduled. The clock counts whole ns; requests that
arrive during a step wait for its end.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Final

import numpy as np

from emulator.arrays import Bools, Int32s
from emulator.errors import ConfigError
from emulator.units import NS_PER_S
from loadgen.measures.slo import Bound
from loadgen.workloads.traffic import Traffic
from serving.engine.step_batch import StepWatcher
from serving.simulator.computed_prompts import ComputedPrompts
from serving.simulator.engine_pool import EnginePool
from serving.simulator.engine_threads import EngineThreads
from serving.simulator.lockstep_schedulers import ARRIVAL_S_MAX
from serving.simulator.machine_calls import TimedCall, check_replicas
from serving.simulator.machine_events import MachineEvents
from serving.simulator.pools_ahead import PoolsAhead, next_prompt_ns
from serving.simulator.request_arrivals import RequestArrivals
from serving.simulator.request_stream import RequestStream, StreamedArrivals
from serving.simulator.run_log import Logs, StepLog, StepSums, step_log, totals_of
from serving.simulator.run_result import in_seconds, serving_run
from serving.simulator.scheduler_arrays import NEVER_NS, NONE
from serving.simulator.simulated_deployment import SimulatedDeployment
from serving.simulator.simulated_engine import SimulatedEngine
from serving.simulator.steps_ahead import RunStops, StepsDone
from serving.simulator.unread_prompts import UnreadPrompts
from serving.traffic.serving_run import Ending, ServingRun, are_out_of_reach

if TYPE_CHECKING:
    from serving.simulator.day_night import SimulatedDayNight

HOPE_STEPS: Final = 32
"""Steps between two looks at whether a level can still be met, or one of so many before."""

PROGRESS_STEPS: Final = 64
"""Steps of an engine before the first look at the progress; later ones come after an eighth more.
"""


class StopSimulation(Exception):
    """Raised by a watcher of progress: the run ends with what there is."""


Progress = Callable[[int, float], None]
"""Called now and then with the requests that have all their tokens, and the emulated seconds."""


class VirtualServing:
    """One run: the engines' clocks and steps; about the `judged`, [requests], or all of a `stream`,
    for which `traffic` is its table.

    An engine takes what came during a step when it ends, as a live one does.
    """

    def __init__(  # noqa: PLR0913  as `simulate`
        self,
        deployment: SimulatedDeployment,
        traffic: Traffic,
        judged: Bools,
        *,
        calls: Sequence[TimedCall],
        timeout_s: float | None,
        seed: int,
        on_step: StepWatcher | None,
        progress: Progress | None,
        day_night: "SimulatedDayNight | None",
        logs: Logs,
        stream: RequestStream | None = None,
    ) -> None:
        self._traffic = traffic
        self._logged = logs
        check_replicas(calls, deployment.engines)
        called = {call.replica for call in calls}
        if day_night is not None:
            called |= {*range(deployment.replicas.count)}
        job = None if day_night is None else day_night.job
        pool_of = partial(EnginePool, on_step=on_step, logs=logs)
        self._pool = pool_of(deployment, traffic, called=called, seed=seed, job=job)
        self._engines = [*self._pool.engines]
        self._prefill: EnginePool | None = None
        self._computed: ComputedPrompts | None = None
        self._unread: list[UnreadPrompts] = []  # where engines make their steps one by one
        if deployment.prefill is not None:
            _, (_, prompts) = deployment.parts_of(traffic)
            there = {number - len(self._engines) for number in called}
            before = deployment.prefill
            self._prefill = pool_of(before, prompts, called=there, seed=seed, clients_see=False)
            self._engines += self._prefill.engines
            self._computed = ComputedPrompts(
                self._prefill.requests,
                self._pool.requests,
                np.rint(deployment.transfer_ns(traffic.prompt_tokens)).astype(np.int64),
            )
        pools = [self._pool] if self._prefill is None else [self._pool, self._prefill]
        self.machines = MachineEvents(pools, sorted(called), calls, fail=self._fail)
        self._logs = [engine.log for engine in self._engines]
        self._first = self._prefill or self._pool
        self._progress = progress
        self._requests = self._pool.requests
        if timeout_s is not None and not 0 < timeout_s < ARRIVAL_S_MAX:
            raise ConfigError(field="timeout_s", value=timeout_s, expected="seconds, above 0")
        self._timeout_ns = None if timeout_s is None else round(timeout_s * NS_PER_S)
        self._failed = np.zeros(len(traffic), dtype=np.bool_)
        self.arrivals: RequestArrivals | StreamedArrivals
        if stream is None:
            self.arrivals = RequestArrivals(traffic, self._first.requests, self._timeout_ns)
        else:
            self.arrivals = StreamedArrivals(
                stream,
                self._first.requests,
                self._failed,
                block_tokens=deployment.limits.block_tokens,
            )
        if day_night is not None:
            self.machines.follow(day_night, deployment, self.arrivals)
        self.now_ns = 0
        self._judged = judged.copy()
        self._judged_left = int(judged.sum()) if stream is None else stream.count
        self._judges_all = bool(judged.all())
        self._done = 0  # requests with all their tokens
        self._next_check = HOPE_STEPS

    def serve(
        self, levels: Sequence[Bound], *, until_ns: float, may_go_ahead: bool = True
    ) -> Ending:
        """Step until the end; levels concern the judged requests.

        Raises PromptsHeldUp where two pools that `may_go_ahead` of each other should not have.
        """
        self.machines.go_on(self.now_ns)  # calls at the start, before which nothing goes ahead
        if self._pools_go_ahead and may_go_ahead:
            return self._serve_in_pools(levels, until_ns)
        for engine in self._prefill.engines if self._prefill else ():
            unread = UnreadPrompts(engine.schedulers, self._requests, self._failed)
            engine.schedulers.unread = unread
            self._unread.append(unread)
        if self.goes_side_by_side(looks=bool(levels)):
            with EngineThreads() as threads:
                return self._serve(levels, until_ns=until_ns, threads=threads)
        ahead = self.arrivals.in_order and self._goes_ahead(looks=bool(levels))
        if ahead and self._first.can_expect:
            self._first.expect(self.arrivals.hand_over())
        return self._serve(levels, until_ns=until_ns)

    def goes_side_by_side(self, *, looks: bool) -> bool:
        """Whether engines that could wait for each other have nothing to do with each other but
        for what comes to their machines.
        """
        comes = looks or self._prefill or self._timeout_ns or not self._judges_all
        several = len(self._engines) > 1 or self.machines.called
        each_can = all(each.has_steps_ahead for each in self._engines)
        known = self._first.can_expect or not self.machines.called
        return bool(several and each_can and known and self.arrivals.in_order and not comes)

    def _serve(
        self, levels: Sequence[Bound], *, until_ns: float, threads: EngineThreads | None = None
    ) -> Ending:
        """In `threads`, if engines have nothing to do with each other between two arrivals."""
        while self._judged_left:
            ahead = self._prefill is not None and self._pools_go_ahead
            self._go_on_to_next(until_ns, ahead=ahead)
            if not self._judged_left:
                break
            if self._steps >= self._next_check:
                self._next_check += max(HOPE_STEPS, self._next_check // HOPE_STEPS)
                if self._is_seen_hopeless(levels):
                    return Ending.HOPELESS
            if self.now_ns < until_ns:
                if threads is None or not self._first.can_expect:
                    self._take_arrivals()
                elif not self._first.is_open:
                    self._put_arrivals(self.now_ns)
                if threads is None:
                    self._begin_steps(until_ns, looks=bool(levels), ahead=ahead)
                else:
                    self._go_ahead_side_by_side(until_ns, threads)
            elif not self._is_busy:
                return Ending.TIME_UP
        return Ending.JUDGED

    def _go_on_to_next(self, until_ns: float, *, ahead: bool) -> None:
        """Let happen what happens next, but for the beginning of steps.

        `ahead`: engines that decode go ahead of those that prefill. For one of these in a step it
        is soon enough at its end that prompts have arrived, or been read.
        """
        self.now_ns = self._next_ns(arrivals=self.now_ns < until_ns, ahead=ahead)
        if ahead:
            self._put_arrivals(ceil(min(self.now_ns, until_ns)) - 1)
        for unread in self._due_reads(ahead=ahead, end_ns=self.now_ns):
            unread.release(self.now_ns)
        self.machines.take_expected(self.now_ns)
        self._finish_due()
        self.machines.go_on(self.now_ns)
        self._wake_where_lost()

    @property
    def _pools_go_ahead(self) -> bool:
        """Whether prompts sent over, and a router's look at loads, are all that concerns them."""
        several = self._computed is not None or self._pool.shares_by_load
        alone = several and self.machines.is_over and not self._timeout_ns
        return alone and self.arrivals.in_order and all(e.can_go_ahead for e in self._engines)

    def _serve_in_pools(self, levels: Sequence[Bound], until_ns: float) -> Ending:
        """One pool ahead of the other if there are two, each some way too far at the end."""
        end_ns = NEVER_NS if until_ns >= NEVER_NS else ceil(until_ns)
        coming = self.arrivals.hand_over()
        both = [self._pool] if self._prefill is None else [self._prefill, self._pool]
        pools = PoolsAhead(both, self._computed, coming, self._judged)
        while self._judged_left and self.now_ns < end_ns:
            self.now_ns = min(pools.ahead_ns(self.now_ns), end_ns)
            ended = pools.go_ahead(self.now_ns, self._judged_left)
            self._done += len(ended)
            self._judged_left -= int(self._judged[ended].sum())
            if self._is_seen_hopeless(levels):
                return Ending.HOPELESS
            pools.check_unread(self.now_ns)
        self._finish_all()
        return Ending.TIME_UP if self._judged_left else Ending.JUDGED

    def ended(self, ending: Ending) -> Ending:
        """End the steps that are under way; returns SERVED where no request is left.

        Then, too, no more is sent.
        """
        self.now_ns = max(self.now_ns, totals_of(self._logs).end_ns)  # steps may have gone ahead
        self.machines.end(self.now_ns)
        self._finish_all()
        self.arrivals.end()
        is_over = (self._requests["last_token_ns"] != NONE) | self._failed | ~self.sent
        return Ending.SERVED if bool(is_over.all()) else ending

    def _finish_all(self) -> None:
        """End the steps that are under way."""
        while self._is_busy:
            self.now_ns = min(e.end_ns for e in self._engines if e.end_ns is not None)
            self._finish_due()

    @property
    def _is_busy(self) -> bool:
        return any(engine.end_ns is not None for engine in self._engines)

    def _next_ns(self, *, arrivals: bool, ahead: bool) -> int:
        """When a step ends, a call comes, or a request comes to an engine that could take it."""
        times_ns = [engine.end_ns for engine in self._engines if engine.end_ns is not None]
        alone = len(self._engines) == 1
        waits_for_all = (alone or ahead) and all(each.is_busy for each in self._first.engines)
        if self._computed:
            times_ns.append(self._computed.next_ns)
        if (machines_ns := self.machines.next_ns(self.now_ns)) < NEVER_NS:
            times_ns.append(machines_ns)
        if arrivals:  # or else no step begins any more
            times_ns += [each.paused_ns for each in self._engines if each.paused_ns is not None]
        if arrivals and not waits_for_all:
            times_ns += (each.next_ns for each in self._due_reads(ahead=ahead, end_ns=None))
            times_ns.append(max(self.now_ns, self.arrivals.next_ns()))
        return min(times_ns, default=self.now_ns)

    @property
    def _steps(self) -> int:
        """Those that have ended."""
        return sum(log.ended for log in self._logs)

    def _goes_ahead(self, *, looks: bool) -> bool:
        """Whether nothing but new requests concerns an engine between the steps of others."""
        # Others end the run, or sessions go on elsewhere.
        alone = len(self._engines) == 1
        apart = alone or (self._judges_all and self.arrivals.in_order and not looks)
        comes = not self.machines.is_over or self._prefill or self._timeout_ns
        # Those of an engine that leaves go to the others, when their grace is over.
        return apart and not comes and not self.machines.empties_engines

    def _begin_steps(self, until_ns: float, *, looks: bool, ahead: bool) -> None:
        """Begin steps of engines that have none; `looks`: levels are looked at meanwhile; `ahead`:
        those that decode go ahead of those that prefill.
        """
        goes_ahead = self._goes_ahead(looks=looks)
        self.machines.dismiss()
        for engine in reversed(self._engines) if ahead else self._engines:
            if self._timeout_ns is not None and engine.end_ns is None:
                self._fail(engine.abort_due(self.now_ns))
            if not engine.can_begin or (engine.paused_ns or 0) > self.now_ns:
                continue
            before_ns = self.now_ns
            if goes_ahead and engine.can_go_ahead:
                before_ns = self.arrivals.next_ns()
            elif ahead and engine in self._pool.engines:
                before_ns = next_prompt_ns(
                    self._first.engines, self.now_ns, self.arrivals.next_ns()
                )
            if before_ns > self.now_ns:
                self._go_ahead(engine, min(until_ns, before_ns), looks=looks and goes_ahead)
            else:
                engine.take_expected(self.now_ns + 1)
                self._begin_if_due(engine)

    def _go_ahead_side_by_side(self, until_ns: float, threads: EngineThreads) -> None:
        """Let engines make all their steps until something comes to one of them that it does not
        expect; those whose machines change hands make theirs one by one.
        """
        now_ns, machines = self.now_ns, self.machines
        self._expect(now_ns + 1)
        arrival_ns = self.arrivals.next_ns()
        self._begin_singly()
        before_ns = min(until_ns, machines.next_ns(now_ns), machines.others_until_ns(arrival_ns))
        if self._progress is not None:  # a look may end the run: none is much farther than others
            before_ns = min(before_ns, now_ns + max(now_ns // 8, NS_PER_S))
        if not self._expect(before_ns):
            before_ns = min(before_ns, arrival_ns)
        begins: list[tuple[SimulatedEngine, int]] = []
        for engine in self._engines:
            if not engine.can_go_ahead:
                continue
            begin_ns = now_ns if engine.paused_ns is None else engine.paused_ns
            if engine.end_ns is not None and engine.end_ns < before_ns:
                begin_ns = engine.end_ns
                self._finish(engine)
            if engine.can_begin and begin_ns < before_ns:
                begins.append((engine, begin_ns))

        stops = partial(self._stops, looks=False)
        for engine, done in threads.go_ahead(begins, before_ns, stops):
            self._count(engine, done)

    def _expect(self, before_ns: float) -> bool:
        """Have the first engine know what arrives before then, where it may; whether it may."""
        may = self._first.can_expect and self._first.is_open
        if may:
            self._first.expect(self.arrivals.hand_over(before_ns), self.now_ns)
        return may

    def _begin_singly(self) -> None:
        """Begin steps of engines that cannot go ahead."""
        singly = [each for each in self._engines if not each.can_go_ahead]
        for engine in singly:
            engine.take_expected(self.now_ns + 1)
        self.machines.dismiss()
        for engine in singly:
            self._begin_if_due(engine)

    def _begin_if_due(self, engine: SimulatedEngine) -> None:
        """Begin the next step, unless it waits for a request that is only expected."""
        engine.pause(self.now_ns)
        if engine.paused_ns is not None and engine.paused_ns <= self.now_ns:
            engine.begin(self.now_ns)

    def _count(self, engine: SimulatedEngine, done: StepsDone) -> None:
        engine.gone_ahead(done)
        self._done += done.done
        self._judged_left -= done.judged

    def _stops(self, engine: SimulatedEngine, *, looks: bool) -> RunStops:
        """Until all judged requests have their tokens, or something looks at the engine."""
        alone = len(self._pool.engines) == 1
        steps = NEVER_NS
        if looks:
            steps = self._next_check
        elif self._progress is not None:
            steps = engine.log.ended + max(PROGRESS_STEPS, engine.log.ended // 8)
        return RunStops(
            judged=self._judged,
            judged_left=self._judged_left if alone else len(self._judged) + 1,
            steps=steps,
            at_ends=not self.arrivals.in_order,
        )

    def _go_ahead(self, engine: SimulatedEngine, before_ns: float, *, looks: bool) -> None:
        """Let an engine make all its steps until something comes that it does not expect."""
        stops = self._stops(engine, looks=looks)
        done = engine.go_ahead(self.now_ns, before_ns, stops)
        self._count(engine, done)
        if stops.at_ends and done.done:
            given, end_ns = engine.log.last_step()
            self._go_on_after(given[self._requests["tokens_left"][given] == 0], end_ns)

    def _due_reads(self, *, ahead: bool, end_ns: int | None) -> Iterator[UnreadPrompts]:
        """Unread prompts that may be looked at: all, or `ahead` those of engines that are in no
        step, or in one that ends at `end_ns`.
        """
        for engine, unread in zip(self._first.engines, self._unread, strict=False):
            if not ahead or engine.end_ns in (None, end_ns):
                yield unread

    def _wake_where_lost(self) -> None:
        """Let engines no longer wait for KV of prompts that are lost."""
        for unread in self._unread:
            if unread.were_lost:
                unread.were_lost = False
                for engine in self._pool.engines:
                    if engine.paused_ns is not None:
                        engine.pause(self.now_ns)

    def _finish_due(self) -> None:
        for engine in self._engines:
            if engine.end_ns == self.now_ns:
                self._finish(engine)

    def _take_arrivals(self) -> None:
        """Send on what has arrived by now."""
        arrivals = self.arrivals
        if len(self._engines) == 1 and isinstance(arrivals, RequestArrivals) and arrivals.in_order:
            if self._engines[0].is_busy:  # a call came, and requests wait for the step's end
                return
            schedulers = self._pool.engines[0].schedulers
            arrivals.coming = schedulers.admit(arrivals.coming, self.now_ns)
            return
        self._put_arrivals(self.now_ns)
        if self._computed:
            for request in self._computed.due(self.now_ns + 1).request.tolist():
                self._pool.put(request)

    def _put_arrivals(self, now_ns: int) -> None:
        for request in self.arrivals.take(now_ns):
            self._first.put(request)

    def _finish(self, engine: SimulatedEngine) -> None:
        """Give out the tokens of an engine's step, which ends now."""
        given = engine.give_tokens()
        if self._computed is not None and engine in self._first.engines:
            self._computed.add(engine.schedulers.ended_among(given))
            self.machines.let_go(engine, engine.finish())
            return
        ended = engine.schedulers.ended_among(given)
        if self._timeout_ns is not None:
            is_late = self._first.requests["deadline_ns"][ended] < self.now_ns
            self._requests["last_token_ns"][ended[is_late]] = NONE
            self._fail(ended[is_late])
            ended = ended[~is_late]
        self._done += len(ended)
        self._judged_left -= int(self._judged[ended].sum())
        self._go_on_after(ended, self.now_ns)
        self.machines.let_go(engine, engine.finish())

    def _go_on_after(self, ended: Int32s, now_ns: int) -> None:
        """Let come what waited for `ended` requests; what never comes any more is not judged."""
        if not self.arrivals.in_order:
            self.arrivals.after(ended, now_ns)
            self._judge_sent()

    def _judge_sent(self) -> None:
        unsent = self._judged & self.arrivals.unsent
        self._judged_left -= int(unsent.sum())
        self._judged &= ~unsent

    @property
    def sent(self) -> Bools:
        """Requests that were sent or would have been, [requests]; see `RequestArrivals.unsent`."""
        return ~self.arrivals.unsent

    def _fail(self, requests: Sequence[int] | Int32s) -> None:
        """Note requests that end without their last tokens, and with them later turns."""
        if len(requests):
            over = [*map(int, requests), *self.arrivals.lost_with(requests, self.now_ns)]
            self._failed[over] = True
            self._judged_left -= int(self._judged[over].sum())
            self._judge_sent()

    def _is_seen_hopeless(self, levels: Sequence[Bound]) -> bool:
        """Show progress; whether more of the judged requests have missed a level than it allows."""
        if self._progress is not None:
            self._progress(self._done, self.now_ns / NS_PER_S)
        return bool(levels) and are_out_of_reach(
            levels,
            self._judged,
            self._traffic.output_tokens,
            arrival_s=self.arrivals.arrival_s(),
            first_token_s=in_seconds(self._requests["first_token_ns"]),
            last_token_s=in_seconds(self._requests["last_token_ns"]),
            now_s=self.now_ns / NS_PER_S,
        )

    def log(self) -> StepLog | StepSums:
        """The steps so far, or their sums."""
        sums = self._logged is Logs.TOTALS
        return totals_of(self._logs).sums if sums else step_log(self._logs)

    def result(self, ending: Ending) -> ServingRun:
        """The run so far, of a traffic that is known."""
        assert isinstance(self.arrivals, RequestArrivals), "a stream keeps no record of requests"
        return serving_run(
            self._traffic,
            self.arrivals,
            [self._pool] if self._prefill is None else [self._pool, self._prefill],
            failed=self._failed,
            ending=ending,
            has_tokens=self._logged is Logs.ALL,
        )

"""What concerns the machines of a run's engines: calls, a policy's looks, and what follows them."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from emulator.arrays import Int32s
from emulator.units import NS_PER_S
from serving.simulator.engine_pool import EnginePool
from serving.simulator.machine_calls import TimedCall
from serving.simulator.request_arrivals import RequestArrivals
from serving.simulator.request_stream import StreamedArrivals
from serving.simulator.scheduler_arrays import NEVER_NS
from serving.simulator.simulated_deployment import SimulatedDeployment
from serving.simulator.simulated_engine import SimulatedEngine
from serving.traffic.serving_run import ServingRun

if TYPE_CHECKING:
    from serving.simulator.day_night import DayNightController, SimulatedDayNight
    from serving.simulator.run import HandoverOutcome


class MachineEvents:
    """Of the engines in `pools` with numbers in `called`. Mutable; times ascend.

    The first pool's engines have the first numbers, and change hands by day and night. `fail` takes
    requests that end without their last tokens.
    """

    def __init__(
        self,
        pools: Sequence[EnginePool],
        called: Sequence[int],
        calls: Sequence[TimedCall],
        *,
        fail: Callable[[Sequence[int] | Int32s], None],
    ) -> None:
        self._pools = pools
        self._engines = [engine for pool in pools for engine in pool.engines]
        self.called = [self._engines[number] for number in called]
        self._calls = sorted(calls, key=lambda call: call.at_s)[::-1]  # the next one last
        self._day_night: DayNightController | None = None
        self._fail = fail

    def follow(
        self,
        day_night: "SimulatedDayNight",
        deployment: SimulatedDeployment,
        arrivals: RequestArrivals | StreamedArrivals,
    ) -> None:
        """Let a policy hand chips over too; raises ConfigError as `DayNightController`."""
        # It imports what drives live chips, which few simulations need.
        from serving.simulator.day_night import DayNightController

        self._day_night = DayNightController(day_night, deployment, self._pools[0], arrivals)

    @property
    def day_night(self) -> "DayNightController | None":
        """The policy's controller, if there is one."""
        return self._day_night

    @property
    def is_over(self) -> bool:
        """Whether no call comes any more."""
        return not self._calls and self._day_night is None

    def next_ns(self, now_ns: int) -> int:
        """When a call comes, a policy looks, or an idle engine goes on; `NEVER_NS` if never."""
        times_ns = [NEVER_NS]
        if self._calls:
            times_ns.append(self._calls[-1].at_ns)
        if self._day_night is not None:
            times_ns.append(max(now_ns, self._day_night.next_ns))
        waits_ns = (engine.waits_until_ns for engine in self.called)
        times_ns += [max(now_ns, each) for each in waits_ns if each is not None]
        return min(times_ns)

    def others_until_ns(self, arrival_ns: int) -> int:
        """Until when nothing that happens to one engine concerns others; a new request comes at
        `arrival_ns`.
        """
        return min((each.alone_until_ns(arrival_ns) for each in self.called), default=NEVER_NS)

    def take_expected(self, now_ns: int) -> None:
        """Let engines take what they expect and has come before now, ahead of what follows."""
        for engine in self._engines if self.called else ():
            engine.take_expected(now_ns)

    def go_on(self, now_ns: int) -> None:
        """Carry out the calls that have come, and what is due on idle engines.

        Raises ConfigError and LeaseRefused.
        """
        self._carry_out(now_ns)
        if self._day_night is not None and self._day_night.next_ns <= now_ns:
            self._day_night.look(now_ns, lambda call: self._call(call, now_ns))
        for engine in self.called:
            waits_ns = engine.waits_until_ns
            if waits_ns is not None and waits_ns <= now_ns:
                self.let_go(engine, engine.go_on(now_ns))

    def _carry_out(self, now_ns: int) -> None:
        while self._calls and self._calls[-1].at_ns <= now_ns:
            self._call(self._calls.pop(), now_ns)

    def _call(self, call: TimedCall, now_ns: int) -> None:
        """Carry out a call now; raises ConfigError and LeaseRefused."""
        engine = self._engines[call.replica]
        others_serve = self.pool_of(engine).others_open(engine)
        self.let_go(engine, engine.take(call.call, now_ns, others_serve=others_serve))

    def dismiss(self) -> None:
        """Let requests go that came while their engine had no open rank."""
        for engine in self.called:
            gone = engine.dismiss(others_serve=self.pool_of(engine).others_open(engine))
            self.let_go(engine, gone)

    def let_go(self, engine: SimulatedEngine, requests: Sequence[int]) -> None:
        """Route requests of an engine that leaves as a whole anew; those of another one fail."""
        pool = self.pool_of(engine)
        if not (requests and engine.is_leased and pool.others_open(engine)):
            self._fail(requests)
            return
        for request in requests:
            pool.put(request)

    def pool_of(self, engine: SimulatedEngine) -> EnginePool:
        """The pool that an engine is in."""
        return next(pool for pool in self._pools if engine in pool.engines)

    @property
    def empties_engines(self) -> bool:
        """Whether an engine that leaves as a whole has requests, for which others wait."""
        return any(each.is_leased and each.schedulers.requests for each in self.called)

    def end(self, now_ns: int) -> None:
        """Carry out the calls of the run's last moment, and note what a policy's job has done."""
        self._carry_out(now_ns)
        if self._day_night is not None:
            self._day_night.end(now_ns, lambda call: self._call(call, now_ns))

    def handovers(
        self, served: ServingRun, now_ns: int
    ) -> "tuple[HandoverOutcome, tuple[TimedCall, ...]] | None":
        """Those of a policy, if there is one, in a run that has ended, and its calls.

        Until its last step, or its last look after that.
        """
        if self._day_night is None:
            return None
        end_ns = max(round(served.emulated_s * NS_PER_S), now_ns)
        joules = sum(engine.joules(end_ns) for engine in self._engines)
        outcome = self._day_night.outcome(end_ns, joules=joules)
        return outcome, tuple(self._day_night.calls)

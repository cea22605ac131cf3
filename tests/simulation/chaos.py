"""Faults on an engine under load, with assertions on clients' answers and the accounts.

An episode begins on a whole machine: requests arrive, faults happen, requests go on arriving, and
in the end everything is repaired. The machine's outcome is computed beforehand by the pure
functions on a copy; the requests' outcome follows from it.
"""

import copy
import itertools
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from emulator.specs.fault import Fault, FaultKind
from emulator.specs.health import Health
from emulator.specs.placement import ExpertPlacement
from emulator.ultraserver.machine import Machine, RecoveryPlan
from serving.engine.live_machine import LiveStep
from serving.wire.control_call import FaultReport, HealReport, HealRequest, InjectRequest
from serving.wire.machine_state import FaultRecord, FaultStage
from tests.simulation.asks import Answer, make_asks
from tests.simulation.invariants import TimeAndEnergy, check_agreement, check_idle, check_memories
from tests.simulation.troubled_engine import TroubledEngine

WALL_S_MAX = 60.0
"""Of one step including all recoveries: chips start in about a second, and other programs share the
host's cores.
"""
TURNS_MAX = 400
"""An engine under this load is idle again after some fifty steps."""
ABORT_CHANCE = 0.01
"""Of each request in each step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blow:
    """One fault and its way: by the control service between two steps, or, for a lost or hanging
    chip, by a signal to its process `after_s` seconds into a step.
    """

    fault: Fault
    after_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Met:
    """Faults met together; `wall_s` is of the step or call that met them."""

    kinds: tuple[FaultKind, ...]
    survived: bool
    emulated_ns: int
    wall_s: float


class Chaos:
    """One engine, its load and its faults; all chance follows from `seed`."""

    def __init__(self, engine: TroubledEngine, *, seed: int, arrivals_per_step: float) -> None:
        self.engine = engine
        self.rng = np.random.default_rng(seed)
        self.met: list[Met] = []
        self.ends: Counter[str] = Counter()
        self.preemptions = 0
        self._rate = arrivals_per_step
        self._asks = make_asks(seed)
        self._expected: dict[str, Answer] = {}
        self._in_flight: dict[str, Answer] = {}
        self._names = itertools.count()
        self._books = TimeAndEnergy(engine)
        self._settled = len(engine.live_machine.faults)
        self._home = engine.machine.placement
        self._held_up_ns = self._books.pause_ns
        self._moved_bytes = self._moving_ns = 0
        self._before_settling: list[tuple[ExpertPlacement, int, list[int]]] = []
        self._note_settlements()
        self._count_repeats()
        self._count_preemptions()

    def _note_settlements(self) -> None:
        """Record at each recovery the experts' placement (moves may have been broken off), the
        remaining wait for a silent chip, and the numbers of the faults met.
        """
        machine, live_machine = self.engine.machine, self.engine.live_machine
        apply = machine.apply

        def noted(health: Health, recovery_plan: RecoveryPlan) -> None:
            numbers = [record.number for record in live_machine.faults.pending]
            silence_ns = live_machine._silence_ns()
            assert 0 <= silence_ns <= machine.hang_ns
            self._before_settling.append((machine.placement, silence_ns, numbers))
            apply(health, recovery_plan)

        machine.apply = noted  # type: ignore[method-assign]

    def _count_repeats(self) -> None:
        """Count broken-off attempts at a step; each takes as long as a whole one."""
        live_machine = self.engine.live_machine
        step = live_machine.step
        self._repeats = 0

        def counted(*arguments: Any, **named: Any) -> LiveStep:
            done = step(*arguments, **named)
            self._repeats += done.repeats
            return done

        live_machine.step = counted  # type: ignore[method-assign]

    def _twin(self) -> Machine:
        twin = copy.deepcopy(self.engine.machine)
        del twin.apply  # the copy's own
        return twin

    def _count_preemptions(self) -> None:
        for rank in self.engine.scheduler.ranks:
            preempt = rank._preempt_request

            def counted(*args: object, _preempt: object = preempt, **more: object) -> object:
                self.preemptions += 1
                return _preempt(*args, **more)  # type: ignore[operator]

            rank._preempt_request = counted

    # --- load -----------------------------------------------------------------------------------

    def take_reference(self) -> None:
        """Answer every kind of request once, undisturbed."""
        for ask in self._asks:
            self.engine.add(f"calm-{ask.name}", ask, 0)
            self._expected[ask.name] = Answer(ask)
        while not self.engine.is_idle():
            for output in self.engine.step():
                self._expected[output.request_id.removeprefix("calm-")].take(output)
            self._books.check()
        for answer in self._expected.values():
            assert answer.is_finished, answer.ask.name
            assert not answer.has_failed, answer.ask.name

    def arrive(self, count: int) -> None:
        for pick in self.rng.integers(len(self._asks), size=count).tolist():
            name = f"r{next(self._names)}"
            self._in_flight[name] = Answer(self._asks[pick])
            self.engine.add(name, self._asks[pick], int(self.rng.integers(3)))

    def _abort(self) -> None:
        for name in list(self._in_flight):
            if self.rng.random() < ABORT_CHANCE:
                self.engine.abort(name)
                answer = self._in_flight.pop(name)
                answer.check(self._expected[answer.ask.name])
                self.ends["aborted"] += 1

    def turn(self, *, arrivals: bool = True) -> None:
        """One step of the engine, and the invariants after it."""
        if arrivals:
            self.arrive(int(self.rng.poisson(self._rate)))
            self._abort()
        engine = self.engine
        if engine.is_idle():
            return
        could_serve = bool(engine.machine.ranks_up.any())
        started_s = time.monotonic()
        outputs = engine.step()
        assert time.monotonic() - started_s < WALL_S_MAX
        self._books.check()
        check_agreement(engine)
        repeats, self._repeats = self._repeats, 0
        if repeats:
            self._held_up_ns += repeats * self._books.step_ns
        can_serve = could_serve and bool(engine.machine.ranks_up.any())
        for output in outputs:
            answer = self._in_flight[output.request_id]
            answer.take(output)
            if not answer.is_finished:
                continue
            del self._in_flight[output.request_id]
            answer.check(self._expected[answer.ask.name])
            assert not (answer.has_failed and can_serve), f"{answer.ask.name} is lost"
            self.ends["failed" if answer.has_failed else "whole"] += 1
        if not engine.machine.ranks_up.any():
            assert not self._in_flight, "requests wait for ranks that are gone"

    def drain(self) -> None:
        """Let every request end; nothing may be held afterwards."""
        for _ in range(TURNS_MAX):
            if self.engine.is_idle():
                break
            self.turn(arrivals=False)
        assert not self._in_flight, "requests that never end"
        check_idle(self.engine)
        layers = self.engine.fleet.architecture.layers
        check_memories(self.engine, [int(self.rng.integers(layers))])

    # --- trouble --------------------------------------------------------------------------------

    def episode(self, blows: Sequence[Blow]) -> None:
        """Serve, be struck, go on, be repaired, and serve as before."""
        self.arrive(3 * self.engine.machine.partition.ranks)
        for _ in range(int(self.rng.integers(2, 9))):
            self.turn()
        self.strike(blows)
        for _ in range(int(self.rng.integers(3, 9))):
            self.turn()
        if self.rng.random() < 0.5:
            self.drain()
        self.heal(blows)
        self.arrive(self.engine.machine.partition.ranks)
        self.turn()
        self.drain()
        self._check_whole()

    def strike(self, blows: Sequence[Blow]) -> None:
        """Apply all `blows`, and turn until the engine has met them."""
        wanted = len(self.engine.live_machine.faults) + len(blows)
        timers = []
        for blow in blows:
            position = self.engine.position_of(blow.fault.chip)
            if blow.after_s is not None and position is not None:
                process = self.engine.processes()[position]
                timers.append(threading.Timer(blow.after_s, process.send_signal, [signal.SIGKILL]))
                continue
            with self._foreseen():
                report = self.engine.control(InjectRequest(fault=blow.fault))
            assert isinstance(report, FaultReport), report
            assert report.accepted
        for timer in timers:
            timer.start()
        try:
            for _ in range(TURNS_MAX):
                if self._settled == wanted:
                    break
                with self._foreseen():
                    self.turn()
        finally:
            for timer in timers:
                timer.join()
        assert self._settled == wanted, "a fault is never met"

    @contextmanager
    def _foreseen(self) -> Iterator[None]:
        """Assert that faults met within change the machine as they change a copy."""
        twin = self._twin()
        self._before_settling.clear()
        moved_bytes, started_s = self._bytes_moved(), time.monotonic()
        yield
        wall_s = time.monotonic() - started_s
        records = self.engine.live_machine.faults.records
        fresh = [r for r in records[self._settled :] if r.stage is not FaultStage.PENDING]
        by_number = {record.number: record for record in fresh}
        for placement, silence_ns, numbers in self._before_settling:
            together = [by_number[number] for number in numbers if number in by_number]
            if together:
                twin.place_experts(placement)
                self._judge(twin, together, silence_ns, wall_s)
        if fresh and moved_bytes == self._bytes_moved():
            assert_same(self.engine.machine, twin)

    def _judge(
        self, twin: Machine, together: list[FaultRecord], silence_ns: int, wall_s: float
    ) -> None:
        """Check faults met together against the pure functions on the machine's twin."""
        kinds = tuple(record.fault.kind for record in together)
        noticed = [kind for kind in kinds if kind is not FaultKind.HANG_CHIP]
        health = twin.after(record.fault for record in together)
        recovery_plan = twin.recovery_plan(health, noticed, silence_ns=silence_ns)
        twin.apply(health, recovery_plan)
        for record in together:
            took = record.recovery
            assert took is not None
            assert took.emulated_ns == recovery_plan.duration_ns
            assert took.experts_reloaded == len(recovery_plan.recovery.reloads)
            assert max(took.wall_s, wall_s) < WALL_S_MAX
        assert together[-1].survivable == recovery_plan.recovery.survivable
        self.met.append(
            Met(
                kinds=kinds,
                survived=recovery_plan.recovery.survivable,
                emulated_ns=recovery_plan.duration_ns,
                wall_s=wall_s,
            )
        )
        self._settled += len(together)
        self._held_up_ns += recovery_plan.duration_ns

    def heal(self, blows: Sequence[Blow]) -> None:
        requests = [HealRequest()]
        if self.rng.random() < 0.5:
            chips = sorted({blow.fault.chip for blow in blows if blow.fault.chip >= 0})
            racks = sorted({blow.fault.rack for blow in blows if blow.fault.rack >= 0})
            requests = [
                *(HealRequest(chip=chip) for chip in self.rng.permutation(chips).tolist()),
                *(HealRequest(rack=rack) for rack in racks),
            ]
        for request in requests:
            twin = self._twin()
            reply = self.engine.control(request)
            assert isinstance(reply, HealReport), reply
            recovery_plan = twin.recovery_plan(self.engine.machine.health)
            twin.apply(self.engine.machine.health, recovery_plan)
            if twin.chips_up.all() and self.engine.executor.deployment.eplb is None:
                twin.place_experts(self._home)
            assert_same(self.engine.machine, twin)
            self._held_up_ns += recovery_plan.duration_ns

    def _check_whole(self) -> None:
        """Assert a whole machine, and that the accounts have all its time."""
        engine, machine = self.engine, self.engine.machine
        assert_healthy(engine.live_machine.actual, Health.whole(machine.system, machine.partition))
        assert machine.ranks_up.all()
        assert machine.chips_up.all()
        stages = {record.stage for record in engine.live_machine.faults.records}
        assert stages <= {FaultStage.HEALED}
        moved_bytes, moving_ns = self._bytes_moved(), self._books.pause_ns - self._held_up_ns
        if moved_bytes == self._moved_bytes:  # no expert went to another chip: no time for that
            assert moving_ns == self._moving_ns
        assert moving_ns >= self._moving_ns
        self._moved_bytes, self._moving_ns = moved_bytes, moving_ns

    def _bytes_moved(self) -> int:
        return self.engine.live.state().expert_balance.moved_bytes

    def blows_of(self, faults: Sequence[Fault]) -> tuple[Blow, ...]:
        """The ways of `faults`: every other lost chip is killed in a step, or in a recovery."""
        return tuple(
            Blow(
                fault=fault,
                after_s=float(self.rng.exponential(0.05 if number == 0 else 0.3))
                if fault.kind is FaultKind.LOSE_CHIP and self.rng.random() < 0.5
                else None,
            )
            for number, fault in enumerate(faults)
        )


def assert_same(machine: Machine, twin: Machine) -> None:
    assert machine.seating.chip_of_position.tolist() == twin.seating.chip_of_position.tolist()
    assert machine.ranks_up.tolist() == twin.ranks_up.tolist()
    found, wanted = machine.placement.expert_of_slot, twin.placement.expert_of_slot
    assert found.shape == wanted.shape, (found.shape, wanted.shape)
    assert np.array_equal(found, wanted), np.argwhere(found != wanted)[:9]
    assert_healthy(machine.health, twin.health)


def assert_healthy(found: Health, wanted: Health) -> None:
    for name in Health.__dataclass_fields__:
        assert np.array_equal(getattr(found, name), getattr(wanted, name)), name

"""Chips leave for training and come back under load, with real processes and vLLM's schedulers."""

from collections.abc import Iterator

import numpy as np
import psutil
import pytest

from emulator.specs.fault import Fault, FaultKind
from serving.wire.control_call import (
    DrainRequest,
    HealRequest,
    InjectRequest,
    LeaseReport,
    ResumeRequest,
    StateReply,
    StateRequest,
)
from serving.wire.machine_state import LeaseState, MachineState
from tests.simulation.asks import Answer, make_asks
from tests.simulation.invariants import check_agreement, check_idle, check_memories
from tests.simulation.troubled_engine import TroubledEngine

pytestmark = [pytest.mark.engine, pytest.mark.fleet]

ASKS = make_asks(11)
TURNS_MAX = 400


class Load:
    """Requests that come and are answered, each of which has one right answer."""

    def __init__(self, engine: TroubledEngine) -> None:
        self.engine = engine
        self.whole = 0
        self._expected: dict[str, Answer] = {}
        self._in_flight: dict[str, Answer] = {}
        self._count = 0

    def take_reference(self) -> None:
        """Answer every kind once while every chip serves."""
        for ask in ASKS:
            self.engine.add(f"calm-{ask.name}", ask, 0)
            self._in_flight[f"calm-{ask.name}"] = Answer(ask)
        answers = dict(self._in_flight)
        self.finish()
        self._expected = {answer.ask.name: answer for answer in answers.values()}

    def turns(self, count: int, *, arrivals: int = 1) -> None:
        """Steps, before each of which requests come."""
        for _ in range(count):
            for _ in range(arrivals):
                ask = ASKS[self._count % len(ASKS)]
                name = f"r{self._count}"
                self._count += 1
                self._in_flight[name] = Answer(ask)
                self.engine.add(name, ask, 0)
            self._turn()

    def _turn(self) -> None:
        for output in self.engine.step():
            answer = self._in_flight[output.request_id]
            answer.take(output)
            if answer.is_finished:
                del self._in_flight[output.request_id]
                assert not answer.has_failed, answer.ask.name
                if self._expected:
                    answer.check(self._expected[answer.ask.name])
                self.whole += 1
        check_agreement(self.engine)

    def finish(self) -> None:
        """Let everything end; afterwards nobody holds anything."""
        for _ in range(TURNS_MAX):
            if self.engine.is_idle():
                break
            self._turn()
        assert not self._in_flight, "requests that never end"
        check_idle(self.engine)
        check_memories(self.engine, [0, 3])


@pytest.fixture(scope="module")
def load(two_blocks: TroubledEngine) -> Iterator[Load]:
    load = Load(two_blocks)
    load.take_reference()
    yield load
    load.engine.control(HealRequest())
    load.finish()
    assert load.engine.machine.ranks_up.all()


def lend(load: Load, *chips: int, grace_s: float) -> LeaseState:
    reply = load.engine.control(DrainRequest(chips=chips, grace_s=grace_s))
    assert isinstance(reply, LeaseReport), reply
    assert reply.lease is not None
    return reply.lease


def state_of(load: Load) -> MachineState:
    reply = load.engine.control(StateRequest())
    assert isinstance(reply, StateReply)
    return reply.state


def lease_of(load: Load, number: int) -> LeaseState:
    return next(lease for lease in state_of(load).leases if lease.number == number)


def until(load: Load, number: int, phase: str) -> LeaseState:
    for _ in range(TURNS_MAX):
        if lease_of(load, number).phase == phase:
            break
        load.turns(1)
    lease = lease_of(load, number)
    assert lease.phase == phase, lease
    return lease


def test_two_of_four_chips_leave_under_load_and_come_back_and_no_text_changes(load: Load) -> None:
    engine = load.engine
    load.turns(6, arrivals=3)
    processes = engine.processes()
    lease = lend(load, 2, 3, grace_s=0.0)
    lease = until(load, lease.number, "training")

    assert lease.moved_requests > 0
    assert sorted(engine.fleet.live_chips) == [0, 1]
    leaving = [processes[position] for position in (2, 3)]
    psutil.wait_procs(leaving, timeout=10)
    assert all(
        not process.is_running() or process.status() == psutil.STATUS_ZOMBIE for process in leaving
    )
    load.turns(8, arrivals=2)
    assert not any(rank.requests for rank in engine.scheduler.ranks[2:])

    engine.control(ResumeRequest(lease=lease.number))
    lease = until(load, lease.number, "serving")
    assert lease.reason == "all its ranks serve again"
    load.turns(8, arrivals=3)
    assert any(rank.requests for rank in engine.scheduler.ranks[2:])
    load.finish()
    assert engine.machine.ranks_up.all()


@pytest.mark.slow
def test_short_requests_end_on_their_rank_within_the_grace_time(load: Load) -> None:
    load.turns(4, arrivals=3)
    before = load.engine.scheduler._moved_requests
    lease = lend(load, 3, grace_s=1_000.0)
    load.turns(2, arrivals=2)
    lease = until(load, lease.number, "training")

    assert lease.drained_requests > 0
    assert lease.moved_requests == 0
    assert load.engine.scheduler._moved_requests == before
    load.engine.control(ResumeRequest(lease=lease.number))
    until(load, lease.number, "serving")
    load.finish()


@pytest.mark.slow
def test_chips_leave_and_come_back_while_nobody_asks_for_anything(load: Load) -> None:
    load.finish()
    lease = lend(load, 0, grace_s=5.0)
    assert lease.phase == "training"
    load.finish()
    assert load.engine.scheduler.ranks_up.tolist() == [False, True, True, True]
    load.turns(3, arrivals=2)
    assert not load.engine.scheduler.ranks[0].requests
    load.finish()
    load.engine.control(ResumeRequest(lease=lease.number))
    assert lease_of(load, lease.number).phase == "serving"
    load.turns(3, arrivals=4)
    load.finish()
    assert load.engine.scheduler.ranks_up.all()


@pytest.mark.slow
def test_a_paused_engine_lends_chips_out_and_its_requests_go_on_elsewhere(load: Load) -> None:
    engine = load.engine
    load.turns(4, arrivals=3)
    core = engine._engine.engine_core.engine_core
    core.pause_scheduler("keep", clear_cache=False)
    assert load.engine.is_idle()  # nobody is to be served now
    lease = lend(load, 2, 3, grace_s=0.0)
    lease = lease_of(load, lease.number)
    assert lease.phase == "training"
    core.resume_scheduler()
    load.turns(2, arrivals=1)
    assert not any(rank.requests for rank in engine.scheduler.ranks[2:])
    load.engine.control(ResumeRequest(lease=lease.number))
    until(load, lease.number, "serving")
    load.finish()


def test_the_last_chips_that_serve_die_and_those_that_are_lent_out_are_called_back(
    load: Load,
) -> None:
    load.turns(3, arrivals=2)
    lease = until(load, lend(load, 1, 2, 3, grace_s=0.0).number, "training")
    load.turns(2, arrivals=1)
    load.engine.control(InjectRequest(fault=Fault(kind=FaultKind.LOSE_CHIP, chip=0)))
    load.turns(3, arrivals=1)

    lease = lease_of(load, lease.number)
    assert lease.phase == "serving"
    assert lease.reason.startswith("called back")
    assert load.engine.machine.ranks_up.tolist() == [False, True, True, True]
    load.finish()
    assert np.flatnonzero(load.engine.live_machine.actual.lent).tolist() == []

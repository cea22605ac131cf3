"""A step that is under way: its decision is handed out again, and no rank decides anything."""

import time
from collections.abc import Callable

import pytest
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from serving.engine.scheduler_state import RankQueues
from serving.plugin import lockstep_scheduler
from serving.plugin.merge import LockstepOutput, queues_of
from serving.plugin.translate import StillHeld
from tests.serving.plugin.lockstep_machine import (
    Machine,
    expected_tokens,
    long_arrival,
    rank_of,
)

STILL_HELD = StillHeld(req_ids=[], req_id_to_index={})


class HeldMachine(Machine):
    """Each step is held for `turns` of the engine's loop; `meanwhile` is called in each of them."""

    def __init__(self, ranks: int, *, turns: int = 3) -> None:
        super().__init__(ranks)
        self.turns = turns
        self.meanwhile: Callable[[], object] = lambda: None
        self.abandoned: list[bool] = []
        self._schedule = self.scheduler.schedule
        self.scheduler.schedule = self._held_schedule  # type: ignore[method-assign]

    def _held_schedule(self, throttle_prefills: bool = False) -> LockstepOutput:
        output = self._schedule(throttle_prefills)
        if not output.total_num_scheduled_tokens:
            return output
        for _ in range(self.turns):
            assert self.scheduler.update_from_output(output, STILL_HELD) == {}
            self.meanwhile()
            assert self.scheduler.has_requests(), "the step has to end"
            assert self._schedule() is output
            assert self.scheduler.get_grammar_bitmask(output) is None
        self.abandoned.append(output.abandoned)
        return output


def once(act: Callable[[], object]) -> Callable[[], object]:
    left = [act]
    return lambda: left.pop()() if left else None


def test_a_held_step_changes_no_text() -> None:
    machine = HeldMachine(2)
    arrivals = [long_arrival(name) for name in ("one", "two", "three")]
    for arrival in arrivals:
        machine.scheduler.add_request(arrival.request())
    machine.finish()

    for arrival in arrivals:
        assert machine.received[arrival.name] == expected_tokens(arrival)
    assert not any(machine.abandoned)


def test_requests_that_come_in_a_hold_are_served_after_it() -> None:
    machine = HeldMachine(2)
    one, two = long_arrival("one"), long_arrival("two")
    machine.scheduler.add_request(one.request())
    machine.meanwhile = once(lambda: machine.scheduler.add_request(two.request()))
    machine.finish()

    assert machine.received["one"] == expected_tokens(one)
    assert machine.received["two"] == expected_tokens(two)


def test_a_request_that_comes_in_a_hold_gets_the_rank_that_it_gets_after_the_step() -> None:
    ending, long, later = (
        long_arrival("one", 40, max_tokens=1),
        long_arrival("two", 20),
        long_arrival("three"),
    )
    held, quick = HeldMachine(2, turns=1), Machine(2)
    for machine in (held, quick):
        for arrival in (ending, long):
            machine.scheduler.add_request(arrival.request())
    held.meanwhile = once(lambda: held.scheduler.add_request(later.request()))
    held.step()
    quick.step()
    quick.scheduler.add_request(later.request())

    # The longer one has the more loaded rank until the step has ended, and then it is empty.
    assert rank_of(quick, "three") != rank_of(quick, "two")
    assert rank_of(held, "three") == rank_of(quick, "three")


def test_a_request_that_is_aborted_in_a_hold_before_it_has_a_rank_is_gone() -> None:
    machine = HeldMachine(1)
    one, two = long_arrival("one"), long_arrival("two")
    scheduler = machine.scheduler
    scheduler.add_request(one.request())

    def come_and_go() -> None:
        scheduler.add_request(two.request())
        (gone,) = scheduler.finish_requests("two", RequestStatus.FINISHED_ABORTED)
        assert gone.is_finished()

    machine.meanwhile = once(come_and_go)
    machine.finish()
    assert machine.received["one"] == expected_tokens(one)
    assert "two" not in machine.received


def test_a_request_that_is_aborted_in_a_hold_gets_nothing_of_it_and_the_others_all() -> None:
    machine = HeldMachine(1)
    one, two = long_arrival("one"), long_arrival("two")
    for arrival in (one, two):
        machine.scheduler.add_request(arrival.request())
    abort = RequestStatus.FINISHED_ABORTED
    machine.meanwhile = once(lambda: machine.scheduler.finish_requests("one", abort))
    machine.finish()

    assert machine.received["one"] == []
    assert machine.received["two"] == expected_tokens(two)
    assert not any(machine.abandoned)


def test_a_step_of_which_every_request_has_gone_is_abandoned_and_the_engine_ends() -> None:
    machine = HeldMachine(2)
    for name in ("one", "two"):
        machine.scheduler.add_request(long_arrival(name).request())
    abort = RequestStatus.FINISHED_ABORTED
    machine.meanwhile = once(lambda: machine.scheduler.finish_requests(None, abort))
    machine.step()

    assert machine.abandoned == [True]
    machine.finish()
    assert machine.received["one"] == []


@pytest.mark.parametrize("state", [PauseState.PAUSED_NEW, PauseState.PAUSED_ALL])
def test_a_pause_in_a_hold_lets_the_step_end(state: PauseState) -> None:
    machine = HeldMachine(1)
    one = long_arrival("one")
    machine.scheduler.add_request(one.request())
    machine.meanwhile = once(lambda: machine.scheduler.set_pause_state(state))
    machine.step()
    assert machine.received["one"] == expected_tokens(one)[:1]

    machine.scheduler.set_pause_state(PauseState.UNPAUSED)
    machine.finish()
    assert machine.received["one"] == expected_tokens(one)


def test_the_ranks_are_shown_as_they_stand_in_a_hold_and_not_in_every_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    machine = Machine(1, max_num_seqs=1)
    scheduler = machine.scheduler
    scheduler.add_request(long_arrival("one").request())
    output = scheduler.schedule()
    scheduler.update_from_output(output, STILL_HELD)
    counted: list[int] = []

    def count(rank: Scheduler) -> RankQueues:
        counted.append(1)
        return queues_of(rank)

    monkeypatch.setattr(lockstep_scheduler, "queues_of", count)
    for name in ("two", "three"):
        scheduler.add_request(long_arrival(name).request())
    for _ in range(50):  # one second
        now_s[0] += 0.02
        assert scheduler.schedule() is output
    (queues,) = output.state.rank_states
    assert (queues.running, queues.waiting, output.state.arrived_requests) == (1, 0, 3)
    assert (output.state.unplaced_requests, output.state.waiting) == (2, 2)
    assert 1 < len(counted) < 10

    scheduler.finish_requests(None, RequestStatus.FINISHED_ABORTED)
    now_s[0] += 1.0
    assert scheduler.schedule() is output
    assert not output.state.has_requests


def test_no_cache_is_reset_in_a_hold() -> None:
    machine = HeldMachine(1)
    machine.scheduler.add_request(long_arrival("one").request())
    done: list[bool] = []
    machine.meanwhile = lambda: done.append(machine.scheduler.reset_prefix_cache(True))
    machine.finish()

    assert not any(done)
    assert machine.scheduler.reset_prefix_cache()


FOUR = ("one", "two", "three", "four")


def four_on_two_ranks() -> tuple[Machine, set[str]]:
    """A machine that has begun four requests, and those of its first rank."""
    machine = Machine(2)
    for name in FOUR:
        machine.scheduler.add_request(long_arrival(name).request())
    machine.step()
    return machine, {name for name in FOUR if rank_of(machine, name) == 0}


def test_requests_that_leave_a_rank_are_named_with_the_rank_that_they_left() -> None:
    machine, left = four_on_two_ranks()
    machine.step(lost=(0,))
    output = machine.step()

    assert {(each.rank, each.name, each.failed) for each in output.state.moved} == {
        (0, name, False) for name in left
    }
    assert machine.step().state.moved == ()

    machine.step(lost=(0, 1), up=(False, False))
    output = machine.scheduler.schedule()
    assert {each.name for each in output.state.moved if each.failed} == set(FOUR)


def test_a_request_that_waits_for_a_rank_is_named_when_its_fate_is_known() -> None:
    machine, left = four_on_two_ranks()
    machine.step(lost=(0,), up=(False, True), closed_ranks=(1,))
    output = machine.step(closed_ranks=(1,))
    assert (output.state.moved, output.state.moved_requests) == ((), 0)

    machine.step(lost=(1,), up=(False, False))
    output = machine.scheduler.schedule()
    assert {(each.rank, each.name, each.failed) for each in output.state.moved} == {
        (0 if name in left else 1, name, True) for name in FOUR
    }
    assert output.state.moved_requests == 0


def test_a_request_that_has_waited_for_a_rank_and_got_one_is_named_as_moved() -> None:
    machine = Machine(2)
    one = long_arrival("one")
    machine.scheduler.add_request(one.request())
    machine.step()
    machine.step(lost=(0,), up=(False, True), closed_ranks=(1,))
    machine.step(up=(False, True))
    output = machine.step()
    assert [(each.rank, each.name, each.failed) for each in output.state.moved] == [
        (0, "one", False)
    ]
    assert output.state.moved_requests == 1
    machine.finish()
    assert machine.received["one"] == expected_tokens(one)

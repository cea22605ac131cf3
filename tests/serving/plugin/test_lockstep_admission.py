"""Ranks that are closed, and ranks with other weights: where requests go, and what they say."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.engine import EngineCoreEventType
from vllm.v1.request import Request, RequestStatus

from serving.engine.step_report import StepReport
from tests.serving.plugin.lockstep_machine import (
    Machine,
    expected_tokens,
    long_arrival,
    rank_of,
)


def add(machine: Machine, *names: str, **arguments: Any) -> None:
    for name in names:
        machine.scheduler.add_request(long_arrival(name, **arguments).request())


def test_a_closed_rank_takes_no_new_request_and_keeps_those_that_it_has() -> None:
    machine = Machine(2)
    add(machine, "one")
    machine.step()
    assert rank_of(machine, "one") == 0
    machine.step(closed_ranks=(0,))
    add(machine, "two", "three")
    assert {rank_of(machine, name) for name in ("two", "three")} == {1}
    output = machine.step(closed_ranks=(0,))
    assert output.state.closed_ranks == (0,)
    machine.step()
    add(machine, "four")
    assert rank_of(machine, "four") == 0

    machine.finish()
    assert machine.received == {
        name: expected_tokens(long_arrival(name)) for name in ("one", "two", "three", "four")
    }


def test_requests_wait_in_their_order_while_all_ranks_are_closed() -> None:
    machine = Machine(1)
    machine.step(closed_ranks=(0,))
    names = ["one", "two", "three"]
    add(machine, *names)
    for _ in range(3):
        output = machine.step(closed_ranks=(0,))
        assert output.total_num_scheduled_tokens == 0
    assert machine.scheduler.get_num_unfinished_requests() == 3
    assert machine.scheduler.get_request_counts() == (0, 3)
    assert machine.ended == {}
    machine.step()
    assert [request.request_id for request in machine.scheduler.ranks[0].waiting] == names

    machine.finish()
    assert machine.received == {name: expected_tokens(long_arrival(name)) for name in names}


def test_a_request_that_waits_for_a_rank_can_be_aborted_and_its_name_comes_again() -> None:
    machine = Machine(1)
    machine.step(closed_ranks=(0,))
    add(machine, "one")
    (gone,) = machine.scheduler.finish_requests("one", RequestStatus.FINISHED_ABORTED)
    assert gone.request_id == "one"
    assert machine.scheduler.get_num_unfinished_requests() == 0
    add(machine, "one")
    machine.step()
    machine.finish()
    assert machine.received["one"] == expected_tokens(long_arrival("one"))


def test_requests_of_a_lost_rank_wait_where_all_others_are_closed_and_lose_nothing() -> None:
    machine = Machine(2)
    add(machine, "one")
    for _ in range(3):
        machine.step()
    machine.step(lost=(0,), up=(False, True), closed_ranks=(1,))
    assert not any(rank.requests for rank in machine.scheduler.ranks)
    for _ in range(3):
        machine.step(up=(False, True), closed_ranks=(1,))
    assert machine.ended == {}
    machine.step(up=(False, True))
    machine.finish()
    assert machine.received["one"] == expected_tokens(long_arrival("one"))


def test_in_a_pause_what_waits_for_a_rank_asks_for_no_step() -> None:
    machine = Machine(1)
    machine.step(closed_ranks=(0,))
    add(machine, "one")
    assert machine.scheduler.has_requests()
    machine.scheduler.set_pause_state(PauseState.PAUSED_NEW)
    assert not machine.scheduler.has_requests()
    machine.scheduler.set_pause_state(PauseState.UNPAUSED)
    machine.step()
    machine.finish()
    assert machine.received["one"] == expected_tokens(long_arrival("one"))


def test_an_engine_that_asks_for_a_step_is_given_one() -> None:
    machine = Machine(1)
    machine.step()
    wake = machine.scheduler._wake
    assert not machine.scheduler.has_requests()
    wake.make()
    assert machine.scheduler.has_requests()
    machine.step()
    assert not machine.scheduler.has_requests()


def test_a_rank_with_other_weights_knows_no_prefix_of_the_old_ones() -> None:
    machine = Machine(1)
    add(machine, "one", tokens=64)
    machine.finish()
    one = long_arrival("one", tokens=64)
    machine.scheduler.add_request(replace(one, name="two").request())
    assert machine.step().num_scheduled_tokens == {"two": 16}
    machine.finish()
    machine.step(renewed_ranks=(0,))
    machine.scheduler.add_request(replace(one, name="three").request())
    assert machine.step().num_scheduled_tokens == {"three": 64}


def test_each_output_names_the_weights_that_made_its_request_s_tokens() -> None:
    machine = Machine(2)
    weights = ("v1-a", "v1-a")
    machine.step(weights=weights)
    add(machine, "one")
    machine.step(weights=weights)
    assert machine.weights["one"] == ["v1-a"]
    # Its rank is lost, and there are other weights by now.
    machine.step(lost=(0,), up=(False, True), weights=("v2-b", "v2-b"))
    while "one" not in machine.ended:
        machine.step(up=(False, True), weights=("v2-b", "v2-b"))
    assert machine.weights["one"] == ["v1-a", "v2-b"]


def test_who_has_to_move_goes_where_the_same_weights_are() -> None:
    machine = Machine(3)
    weights = ("v1-a", "v2-b", "v1-a")
    machine.step(weights=weights)
    add(machine, "zero", "one", "two")
    before = {name: rank_of(machine, name) for name in ("zero", "one", "two")}
    assert sorted(before.values()) == [0, 1, 2]
    machine.step(weights=weights)
    moving = next(name for name, rank in before.items() if rank == 0)
    machine.step(lost=(0,), up=(False, True, True), weights=weights)
    assert rank_of(machine, moving) == 2
    while moving not in machine.ended:
        machine.step(up=(False, True, True), weights=weights)
    assert machine.weights[moving] == ["v1-a"]


@pytest.mark.long
@settings(max_examples=12)
@given(data=st.data())
def test_however_doors_open_and_close_each_request_ends_once_with_its_text(
    data: st.DataObject,
) -> None:
    ranks = 3
    machine = Machine(ranks)
    names = [f"r{number}" for number in range(data.draw(st.integers(1, 8), label="requests"))]
    left = list(names)
    for _ in range(25):
        if left and data.draw(st.booleans(), label="comes"):
            add(machine, left.pop(), max_tokens=6)
        closed = data.draw(st.sets(st.integers(0, ranks - 1)), label="closed")
        empty = [rank for rank in range(ranks) if not machine.scheduler.ranks[rank].requests]
        renewed = [rank for rank in empty if rank in closed]
        machine.step(closed_ranks=tuple(sorted(closed)), renewed_ranks=tuple(renewed))
    add(machine, *left, max_tokens=6)
    machine.step()
    machine.finish()
    assert machine.received == {
        name: expected_tokens(long_arrival(name, max_tokens=6)) for name in names
    }


@pytest.mark.parametrize("state", [PauseState.PAUSED_NEW, PauseState.PAUSED_ALL])
def test_a_pause_holds_all_ranks(state: PauseState) -> None:
    machine = Machine(2)
    machine.scheduler.set_pause_state(state)
    add(machine, "one", "two")
    assert machine.step().total_num_scheduled_tokens == 0
    machine.scheduler.set_pause_state(PauseState.UNPAUSED)
    machine.finish()
    assert len(machine.ended) == 2


def test_an_engine_that_waits_for_time_is_stepped_but_not_in_a_pause() -> None:
    machine = Machine(1)
    machine.step()
    wake = machine.scheduler._wake
    wake.wait()
    assert machine.scheduler.has_requests()
    machine.scheduler.set_pause_state(PauseState.PAUSED_ALL)
    assert wake.paused
    assert not machine.scheduler.has_requests()  # who paused waits for it to be idle
    machine.scheduler.set_pause_state(PauseState.UNPAUSED)
    assert not wake.paused
    machine.step()
    assert not machine.scheduler.has_requests()


def session(name: str, prompt: list[int], *, more: bool = True) -> Request:
    request = long_arrival(name, max_tokens=2).request()
    request.prompt_token_ids = list(prompt)
    request.resumable = more
    return request


def test_what_a_streaming_session_sends_while_it_waits_for_a_rank_is_kept() -> None:
    machine = Machine(1)
    machine.step(closed_ranks=(0,))
    first = session("one", [5, 6, 7])
    machine.scheduler.add_request(first)
    machine.scheduler.add_request(session("one", [8, 9]))
    machine.scheduler.add_request(session("one", [], more=False))
    assert machine.scheduler.get_request_counts() == (0, 1)
    machine.step()

    (kept,) = machine.scheduler.ranks[0].waiting
    assert kept is first
    assert kept.streaming_queue is not None
    more, end = kept.streaming_queue
    assert more is not None
    assert (more.prompt_token_ids, end) == ([8, 9], None)


def test_who_came_first_goes_first_when_a_rank_opens_wherever_it_waited() -> None:
    machine = Machine(2)
    add(machine, "old")
    machine.step(up=(True, True))
    number = rank_of(machine, "old")
    closed = (0, 1)
    machine.step(closed_ranks=closed)
    add(machine, "young")
    up = (number != 0, number != 1)
    machine.step(lost=(number,), up=up, closed_ranks=closed)
    machine.step(up=up)
    (rank,) = (rank for rank in machine.scheduler.ranks if rank.requests)
    assert [request.request_id for request in rank.waiting] == ["old", "young"]


def test_a_request_that_moves_before_it_ran_is_queued_once() -> None:
    machine = Machine(2)
    add(machine, "one")
    number = rank_of(machine, "one")
    request = machine.scheduler.ranks[number].requests["one"]
    for opened in ((0, 1), ()):  # with nowhere to go at first
        up = (number != 0, number != 1)
        machine.scheduler._closed[list(opened)] = True
        report = StepReport(begin_s=0.0, end_s=1.0, epochs=None, ranks_up=up)
        machine.scheduler._evacuate(report)
        machine.scheduler._closed[:] = False
        machine.scheduler._dismiss_turned_away()
    assert [event.type for event in request.events] == [EngineCoreEventType.QUEUED]
    assert rank_of(machine, "one") == 1 - number

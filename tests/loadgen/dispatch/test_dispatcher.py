import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.arrivals.schedule import ArrivalSchedule
from loadgen.clients.client import Reply
from loadgen.dispatch.dispatched_class import DispatchedClass
from loadgen.dispatch.dispatcher import Dispatcher
from loadgen.dispatch.sessions import SessionSource
from loadgen.dispatch.timetable import LoopTimer
from loadgen.errors import OptionError
from loadgen.records.request import Request
from loadgen.records.result import ABORTED, STREAM, Result
from loadgen.records.run_record import SendSummary
from tests.loadgen.dispatch.shaped_workload import (
    MS,
    ONE,
    TALK,
    Shape,
    ShapedWorkload,
    closed,
    even,
    traffic,
)
from tests.loadgen.dispatch.virtual_loop import VirtualLoop, run_virtually

LATE_NS = 20_000  # turns of the virtual loop; a due time is met to within this
NOTHING_SAID = np.array([], dtype=np.int64)


class FakeClient:
    """Answers each request after `service_ms` of the loop's time, and counts how many overlap.

    Every third request, from the second on, says that it went twice.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        service_ms: Callable[[Request], float],
        failing: Callable[[Request], bool] = lambda _: False,
        *,
        silent: bool = False,
    ) -> None:
        self._silent = silent
        self._loop = loop
        self._service_ms = service_ms
        self._failing = failing
        self.in_flight = 0
        self.most_in_flight = 0
        self.requests: list[Request] = []

    async def send(self, request: Request) -> Reply:
        self.requests.append(request)
        sent_ns = self._loop.now_ns()
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        error = STREAM if self._failing(request) else None
        try:
            await asyncio.sleep(self._service_ms(request) / 1e3)
        except asyncio.CancelledError:
            error = ABORTED
        self.in_flight -= 1
        return Reply(
            sent_ns=sent_ns,
            ended_ns=self._loop.now_ns(),
            chunk_ns=NOTHING_SAID if error else np.array([self._loop.now_ns()]),
            input_tokens=request.input_tokens,
            output_tokens=3,
            error=error,
            text=None if error or self._silent else f" said {request.request_id}",
            resent=request.request_id % 3 == 1,
        )


class Outcome:
    """What a dispatch in virtual time did."""

    def __init__(
        self,
        *traffics: DispatchedClass,
        service_ms: Callable[[Request], float] = lambda _: 5.0,
        failing: Callable[[Request], bool] = lambda _: False,
        stop_at_ms: float | None = None,
        silent: bool = False,
    ) -> None:
        loop = VirtualLoop()
        self.client = FakeClient(loop, service_ms, failing, silent=silent)
        self.results: list[Result] = []
        dispatcher = Dispatcher(
            [(each, self.client) for each in traffics],
            sink=self.results.append,
            now_ns=loop.now_ns,
            timer=partial(LoopTimer, now_ns=loop.now_ns),
        )
        if stop_at_ms is not None:
            loop.call_at(stop_at_ms / 1e3, dispatcher.stop)
            loop.call_at(stop_at_ms / 1e3 + 0.001, dispatcher.stop)  # pressed twice
        self.summaries: Mapping[str, SendSummary] = run_virtually(loop, dispatcher.run())
        self.lasted_ms = loop.now_ns() / MS

    @property
    def summary(self) -> SendSummary:
        (summary,) = self.summaries.values()
        return summary

    def ids(self) -> list[int]:
        return sorted(result.request_id for result in self.results)

    def sent_ms(self) -> dict[int, int]:
        return {result.request_id: round(result.sent_ns / MS) for result in self.results}

    def intended_ms(self) -> dict[int, float]:
        return {result.request_id: result.intended_ns / MS for result in self.results}


def test_an_open_loop_sends_at_the_due_times_however_long_replies_take() -> None:
    outcome = Outcome(traffic(even(5), sessions=[ONE] * 5), service_ms=lambda _: 1_000.0)

    assert outcome.intended_ms() == {0: 0, 1: 10, 2: 20, 3: 30, 4: 40}
    assert all(r.sent_ns - r.intended_ns < LATE_NS for r in outcome.results)
    assert outcome.client.most_in_flight == 5
    assert outcome.summary == SendSummary(held_back=0, unsent=0, interrupted=False)


def test_emulated_due_times_are_stretched_by_the_dilation() -> None:
    outcome = Outcome(traffic(even(3), sessions=[ONE] * 3, wall_per_pace=4.0))

    assert outcome.intended_ms() == {0: 0, 1: 40, 2: 80}


def test_a_request_that_went_twice_is_a_result_that_says_so() -> None:
    outcome = Outcome(traffic(closed((0, 1)), sessions=[ONE] * 4))

    assert [each.resent for each in outcome.results] == [False, True, False, False]


def test_a_class_begins_at_its_start() -> None:
    outcome = Outcome(traffic(even(2), sessions=[ONE] * 2, start_ms=300))

    assert outcome.intended_ms() == {0: 300, 1: 310}
    assert all(r.sent_ns - r.intended_ns < LATE_NS for r in outcome.results)


def test_a_closed_loop_keeps_its_number_in_flight_and_sends_when_a_reply_ends() -> None:
    outcome = Outcome(traffic(closed((0, 2)), sessions=[ONE] * 6), service_ms=lambda _: 100.0)

    assert outcome.sent_ms() == {0: 0, 1: 0, 2: 100, 3: 100, 4: 200, 5: 200}
    assert outcome.client.most_in_flight == 2
    assert all(r.sent_ns - r.intended_ns < LATE_NS for r in outcome.results)


def test_a_closed_loop_that_ramps_adds_when_its_number_rises_and_refills_before() -> None:
    # 1 in flight until it is 2, at 1 s; replies take 400 ms: the first ends before the ramp does.
    loop = traffic(closed((0, 1), (1, 2)), sessions=[ONE] * 6)
    outcome = Outcome(loop, service_ms=lambda _: 400.0)

    assert outcome.sent_ms() == {0: 0, 1: 400, 2: 800, 3: 1_000, 4: 1_200, 5: 1_400}


def test_a_closed_loop_with_an_end_takes_its_workload_up_again_under_new_numbers() -> None:
    # 100 ms each, one at a time, until 450 ms: five sessions of a workload of two.
    loop = traffic(closed((0, 1), ends_ms=450), sessions=[ONE] * 2)
    outcome = Outcome(loop, service_ms=lambda _: 100.0)

    assert outcome.ids() == [0, 1, 2, 3, 4]
    assert sorted(result.session_id for result in outcome.results) == [0, 1, 2, 3, 4]
    assert outcome.client.requests[4].messages == outcome.client.requests[0].messages
    assert outcome.summary == SendSummary(held_back=0, unsent=0, interrupted=False, repeated=3)


def test_a_ramp_that_ends_before_it_has_risen_ends_with_its_time() -> None:
    # Replies take 100 ms; the second would begin at 1 s, and the end is at 0.25 s.
    outcomes = [
        Outcome(traffic(pacer, sessions=[ONE] * 9, start_ms=50), service_ms=lambda _: 100.0)
        for pacer in (closed((0, 1), (1, 2), ends_ms=250), closed((0, 1), ends_ms=250))
    ]

    assert [outcome.sent_ms() for outcome in outcomes] == [{0: 50, 1: 150, 2: 250}] * 2
    assert max(outcome.lasted_ms for outcome in outcomes) < 351


def test_a_worker_without_work_until_the_end_is_over_at_the_end() -> None:
    # The second of two workers has a share from 1 s on; the class ends at 0.25 s.
    ramp = traffic(closed((0, 1), (1, 2), ends_ms=250), sessions=[ONE] * 9)
    outcome = Outcome(ramp.part(1, 2))

    assert outcome.results == []
    assert 250 <= outcome.lasted_ms < 251


def test_a_session_sent_again_keeps_no_reply() -> None:
    workload = ShapedWorkload([ONE, TALK], keep_reply=True)
    pair = traffic(closed((0, 1), ends_ms=9), sessions=[ONE, TALK])
    source = SessionSource(replace(pair, workload=workload))

    kept = [[call.request.keep_reply for call in source.session(at).calls] for at in range(4)]
    assert kept == [[True], [True] * 3, [False], [False] * 3]


def test_a_request_that_finds_no_room_is_sent_late_and_still_counts_from_when_it_was_due() -> None:
    # Due at 0, 10, 20 ms, replies take 100 ms, one at a time: sent at 0, 100, 200 ms.
    one_at_a_time = traffic(even(3), sessions=[ONE] * 3, max_in_flight=1)
    outcome = Outcome(one_at_a_time, service_ms=lambda _: 100.0)

    assert outcome.sent_ms() == {0: 0, 1: 100, 2: 200}
    assert outcome.intended_ms() == {0: 0, 1: 10, 2: 20}
    assert outcome.summary.held_back == 2
    assert outcome.client.most_in_flight == 1


def test_stopping_aborts_what_is_under_way_and_sends_no_more() -> None:
    # Due every 10 ms, replies take 25 ms, stopped at 42 ms: 0, 1 done; 2, 3, 4 under way; 5.. not.
    outcome = Outcome(
        traffic(even(100), sessions=[ONE] * 100), service_ms=lambda _: 25.0, stop_at_ms=42.0
    )

    errors = {result.request_id: result.error for result in outcome.results}
    assert errors == {0: None, 1: None, 2: ABORTED, 3: ABORTED, 4: ABORTED}
    assert outcome.summary == SendSummary(held_back=0, unsent=95, interrupted=True)


def test_stopping_ends_a_closed_loop_that_waits_for_replies() -> None:
    outcome = Outcome(
        traffic(closed((0, 2)), sessions=[ONE] * 9), service_ms=lambda _: 1e6, stop_at_ms=5.0
    )

    assert outcome.ids() == [0, 1]
    assert outcome.summary.unsent == 7


def test_a_fault_of_the_client_ends_the_run_loudly() -> None:
    def fault(request: Request) -> float:
        raise ZeroDivisionError(f"request {request.request_id}")

    with pytest.raises(ExceptionGroup) as caught:
        Outcome(traffic(even(50), sessions=[ONE] * 50), service_ms=fault)

    assert caught.group_contains(ZeroDivisionError, match="request 0")


def test_a_client_that_gives_up_by_itself_ends_the_run_loudly() -> None:
    def gives_up(request: Request) -> bool:
        raise asyncio.CancelledError(f"request {request.request_id}")

    with pytest.raises(ExceptionGroup) as caught:
        Outcome(traffic(even(3), sessions=[ONE] * 3), failing=gives_up)

    assert caught.group_contains(RuntimeError, match="not by us")


def test_sessions_without_a_time_are_not_sent() -> None:
    outcome = Outcome(traffic(even(3), sessions=[ONE] * 8))

    assert outcome.ids() == [0, 1, 2]
    assert outcome.summary.unsent == 0


@pytest.mark.parametrize(("whole", "shares"), [(7, [3, 2, 2]), (3, [1, 1, 1]), (9, [3, 3, 3])])
def test_workers_share_what_may_be_under_way_at_once(whole: int, shares: list[int]) -> None:
    bounded = traffic(even(9), sessions=[ONE] * 9, max_in_flight=whole)

    assert [bounded.part(worker, 3).max_in_flight for worker in range(3)] == shares


def test_more_workers_than_may_be_under_way_at_once_are_refused() -> None:
    bounded = traffic(even(9), sessions=[ONE] * 9, max_in_flight=2)

    with pytest.raises(OptionError, match="--workers=3: expected at most 2, the --max-in-flight"):
        bounded.part(0, 3)


def test_a_turn_is_due_when_the_one_before_has_ended_and_was_thought_about() -> None:
    # Replies take 5 ms; think times of 50 and 20 ms, in a time half as fast: 100 and 40 ms of wall.
    outcome = Outcome(traffic(even(1), sessions=[TALK], wall_per_pace=2.0))

    assert outcome.intended_ms() == pytest.approx({0: 0, 1: 105, 2: 150}, abs=0.05)
    assert all(r.sent_ns - r.intended_ns < LATE_NS for r in outcome.results)


def test_a_fan_out_goes_at_once_and_its_join_waits_for_the_slowest() -> None:
    shapes = (Shape(), Shape(after=(0,)), Shape(after=(0,)), Shape(after=(1, 2)))
    outcome = Outcome(
        traffic(even(1), sessions=[shapes]),
        service_ms=lambda request: {0: 10, 1: 30, 2: 70, 3: 1}[request.turn],
    )

    assert outcome.sent_ms() == {0: 0, 1: 10, 2: 10, 3: 80}


def test_a_failed_call_takes_with_it_all_that_waited_for_it_and_they_count_as_unsent() -> None:
    outcome = Outcome(
        traffic(even(2), sessions=[TALK, TALK]),
        failing=lambda request: request.request_id == 1,
    )

    assert outcome.ids() == [0, 1, 3, 4, 5]
    assert outcome.summary.unsent == 1


def test_a_closed_loop_counts_sessions_so_that_a_thinking_one_keeps_its_place() -> None:
    outcome = Outcome(traffic(closed((0, 1)), sessions=[TALK, ONE]))

    assert outcome.sent_ms()[3] == pytest.approx(5 + 50 + 5 + 20 + 5, abs=1)


def test_turns_find_no_more_room_than_first_calls() -> None:
    shapes = (Shape(), *[Shape(after=(0,))] * 4)
    outcome = Outcome(traffic(even(1), sessions=[shapes], max_in_flight=2))

    assert outcome.client.most_in_flight == 2
    assert outcome.sent_ms() == {0: 0, 1: 5, 2: 5, 3: 10, 4: 10}
    assert outcome.intended_ms() == pytest.approx({0: 0, 1: 5, 2: 5, 3: 5, 4: 5}, abs=0.05)
    assert outcome.summary.held_back == 2


def test_later_turns_carry_what_the_server_said_if_that_was_asked_for() -> None:
    outcome = Outcome(traffic(even(1), sessions=[TALK[:2]], served_history=True))
    planned = Outcome(traffic(even(1), sessions=[TALK[:2]]))

    assert outcome.client.requests[1].prompt == "ask 0 said 0"
    assert planned.client.requests[1].prompt == "ask 0 planned 0"
    # The reply came to 3 tokens where 2 were planned, so the prompt of 4 is one longer.
    assert outcome.results[1].asked_input_tokens == 5
    assert outcome.summary.planned_histories == planned.summary.planned_histories == 0


def test_a_reply_that_was_not_kept_leaves_what_was_planned_and_is_counted() -> None:
    outcome = Outcome(traffic(even(1), sessions=[TALK], served_history=True), silent=True)

    assert outcome.client.requests[1].prompt == "ask 0 planned 0"
    assert outcome.results[1].asked_input_tokens == 4
    assert outcome.summary.planned_histories == 2


def test_two_classes_go_at_once_each_by_its_own_pacer_and_bounds() -> None:
    outcome = Outcome(
        traffic(even(4, gap_ms=30), sessions=[ONE] * 4, name="open"),
        traffic(closed((0, 1)), sessions=[ONE] * 3, name="closed"),
        service_ms=lambda _: 50.0,
    )
    sent = sorted((r.traffic_class, round(r.sent_ns / MS)) for r in outcome.results)

    assert [at for name, at in sent if name == "open"] == [0, 30, 60, 90]
    assert [at for name, at in sent if name == "closed"] == [0, 50, 100]
    assert set(outcome.summaries) == {"open", "closed"}


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_the_parts_of_several_workers_send_what_one_sends_at_the_same_times(workers: int) -> None:
    whole = traffic(even(11), sessions=[TALK, ONE] * 5 + [ONE])
    alone = Outcome(whole)
    parts = [Outcome(whole.part(worker, workers)) for worker in range(workers)]

    together = {at: due for part in parts for at, due in part.intended_ms().items()}
    assert together == pytest.approx(alone.intended_ms(), abs=0.05)
    assert sum(len(part.results) for part in parts) == len(alone.results)


shapes_of_sessions = st.lists(
    st.sampled_from([ONE, TALK, (Shape(), Shape(after=(0,)), Shape(after=(0,)))]),
    min_size=1,
    max_size=12,
)


@pytest.mark.long
@settings(max_examples=80)
@given(
    sessions=shapes_of_sessions,
    gaps_ms=st.lists(st.integers(0, 30), min_size=12, max_size=12),
    service_ms=st.lists(st.integers(0, 100), min_size=36, max_size=36),
    failing=st.sets(st.integers(0, 35), max_size=4),
    max_in_flight=st.integers(1, 6),
    concurrency=st.one_of(st.none(), st.integers(1, 6)),
    stop_at_ms=st.one_of(st.none(), st.integers(0, 300)),
)
def test_every_request_is_sent_once_or_not_at_all_and_the_limits_hold(
    sessions: list[tuple[Shape, ...]],
    gaps_ms: list[int],
    service_ms: list[int],
    failing: set[int],
    max_in_flight: int,
    concurrency: int | None,
    stop_at_ms: int | None,
) -> None:
    schedule = ArrivalSchedule(due_ns=np.cumsum(gaps_ms[: len(sessions)]).astype(np.int64) * MS)
    outcome = Outcome(
        traffic(
            schedule if concurrency is None else closed((0, concurrency)),
            sessions=sessions,
            max_in_flight=max_in_flight,
        ),
        service_ms=lambda request: service_ms[request.request_id],
        failing=lambda request: request.request_id in failing,
        stop_at_ms=stop_at_ms,
    )

    ids = outcome.ids()
    assert len(set(ids)) == len(ids)
    assert len(ids) + outcome.summary.unsent == sum(len(calls) for calls in sessions)
    assert outcome.client.most_in_flight <= max_in_flight
    assert outcome.client.in_flight == 0
    assert outcome.summary.unsent == 0 or stop_at_ms is not None or failing
    assert all(result.sent_ns >= result.intended_ns for result in outcome.results)

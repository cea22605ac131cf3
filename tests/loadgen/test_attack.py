import asyncio
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.attack import Attack, AttackLimits, AttackSummary
from loadgen.clients.client import ABORTED, Reply
from loadgen.pacer import ClosedLoop, Pacer, Schedule, constant_rate
from loadgen.prompt_pool import PromptPool
from loadgen.request import Request
from loadgen.result import Result
from loadgen.trace import TraceRow
from loadgen.workload import Workload, make_workload
from tests.loadgen.virtual_loop import VirtualLoop, run_virtually

MS = 1_000_000
LATE_NS = 20_000  # turns of the virtual loop; a due time is met to within this


class FakeClient:
    """Answers each request after `service_ms` of the loop's time, and counts how many overlap."""

    def __init__(self, loop: VirtualLoop, service_ms: Callable[[Request], float]) -> None:
        self._loop = loop
        self._service_ms = service_ms
        self._in_flight = 0
        self.most_in_flight = 0

    async def send(self, request: Request) -> Reply:
        sent_ns = self._loop.now_ns()
        self._in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self._in_flight)
        error = None
        try:
            await asyncio.sleep(self._service_ms(request) / 1e3)
        except asyncio.CancelledError:
            error = ABORTED
        self._in_flight -= 1
        return Reply(
            sent_ns=sent_ns,
            chunk_ns=() if error else (self._loop.now_ns(),),
            input_tokens=request.input_tokens,
            output_tokens=1,
            error=error,
            message="",
        )


def workload(requests: int) -> Workload:
    rows = (TraceRow(arrival_ns=0, input_tokens=4, output_tokens=1),) * requests
    return make_workload(rows, PromptPool(tokens=np.arange(64)), warmups=0, seed=0)


class Outcome:
    """What an attack in virtual time did."""

    def __init__(
        self,
        pacer: Pacer,
        *,
        requests: int,
        service_ms: Callable[[Request], float],
        max_in_flight: int = 512,
        wall_per_pace: float = 1.0,
        stop_at_ms: float | None = None,
    ) -> None:
        loop = VirtualLoop()
        self.client = FakeClient(loop, service_ms)
        self.results: list[Result] = []
        attack = Attack(
            workload=workload(requests),
            pacer=pacer,
            client=self.client,
            limits=AttackLimits(wall_per_pace=wall_per_pace, max_in_flight=max_in_flight),
            dilation=1.0,
            sink=self.results.append,
            now_ns=loop.now_ns,
        )
        if stop_at_ms is not None:
            loop.call_at(stop_at_ms / 1e3, attack.stop)
            loop.call_at(stop_at_ms / 1e3 + 0.001, attack.stop)  # pressed twice
        self.summary: AttackSummary = run_virtually(loop, attack.run())

    def ids(self) -> list[int]:
        return sorted(result.request_id for result in self.results)


def test_an_open_loop_sends_at_the_due_times_however_long_replies_take() -> None:
    outcome = Outcome(constant_rate(5, rate_per_s=100.0), requests=5, service_ms=lambda _: 1_000.0)

    assert [result.intended_ns for result in outcome.results] == [
        0,
        10 * MS,
        20 * MS,
        30 * MS,
        40 * MS,
    ]
    assert all(r.sent_ns - r.intended_ns < LATE_NS for r in outcome.results)
    assert outcome.client.most_in_flight == 5
    assert outcome.summary == AttackSummary(held_back=0, unsent=0, interrupted=False)


def test_emulated_due_times_are_stretched_by_the_dilation() -> None:
    outcome = Outcome(
        constant_rate(3, rate_per_s=100.0),
        requests=3,
        service_ms=lambda _: 1.0,
        wall_per_pace=4.0,
    )

    assert [result.intended_ns for result in outcome.results] == [0, 40 * MS, 80 * MS]


def test_a_closed_loop_keeps_its_number_in_flight_and_sends_when_a_reply_ends() -> None:
    outcome = Outcome(ClosedLoop(concurrency=2), requests=6, service_ms=lambda _: 100.0)
    sent_ms = [round(result.sent_ns / MS) for result in outcome.results]

    assert sent_ms == [0, 0, 100, 100, 200, 200]
    assert outcome.client.most_in_flight == 2
    assert all(r.sent_ns - r.intended_ns < LATE_NS for r in outcome.results)


def test_a_request_that_finds_no_room_is_sent_late_and_still_counts_from_when_it_was_due() -> None:
    # Due at 0, 10, 20 ms, replies take 100 ms, one at a time: sent at 0, 100, 200 ms.
    outcome = Outcome(
        constant_rate(3, rate_per_s=100.0),
        requests=3,
        service_ms=lambda _: 100.0,
        max_in_flight=1,
    )

    assert [round(result.sent_ns / MS) for result in outcome.results] == [0, 100, 200]
    assert [result.intended_ns for result in outcome.results] == [0, 10 * MS, 20 * MS]
    assert outcome.summary.held_back == 2
    assert outcome.client.most_in_flight == 1


def test_stopping_aborts_what_is_under_way_and_sends_no_more() -> None:
    # Due every 10 ms, replies take 25 ms, stopped at 42 ms: 0, 1 done; 2, 3, 4 under way; 5.. not.
    outcome = Outcome(
        constant_rate(100, rate_per_s=100.0),
        requests=100,
        service_ms=lambda _: 25.0,
        stop_at_ms=42.0,
    )

    errors = {result.request_id: result.error for result in outcome.results}
    assert errors == {0: None, 1: None, 2: ABORTED, 3: ABORTED, 4: ABORTED}
    assert outcome.summary == AttackSummary(held_back=0, unsent=95, interrupted=True)


def test_stopping_ends_a_closed_loop_that_waits_for_replies() -> None:
    outcome = Outcome(
        ClosedLoop(concurrency=2), requests=9, service_ms=lambda _: 1e6, stop_at_ms=5.0
    )

    assert outcome.ids() == [0, 1]
    assert outcome.summary.unsent == 7


def test_a_fault_of_the_client_ends_the_attack_loudly() -> None:
    def fault(request: Request) -> float:
        raise ZeroDivisionError(f"request {request.request_id}")

    with pytest.raises(ExceptionGroup) as caught:
        Outcome(constant_rate(50, rate_per_s=1.0), requests=50, service_ms=fault)

    assert caught.group_contains(ZeroDivisionError, match="request 0")


@settings(deadline=None, max_examples=60)
@given(
    gaps_ms=st.lists(st.integers(0, 30), min_size=1, max_size=25),
    service_ms=st.lists(st.integers(0, 100), min_size=25, max_size=25),
    max_in_flight=st.integers(1, 6),
    concurrency=st.one_of(st.none(), st.integers(1, 6)),
    stop_at_ms=st.one_of(st.none(), st.integers(0, 300)),
)
def test_every_request_is_sent_once_or_not_at_all_and_the_limits_hold(
    gaps_ms: list[int],
    service_ms: list[int],
    max_in_flight: int,
    concurrency: int | None,
    stop_at_ms: int | None,
) -> None:
    requests = len(gaps_ms)
    schedule = Schedule(due_ns=np.cumsum(gaps_ms).astype(np.int64) * MS)
    outcome = Outcome(
        schedule if concurrency is None else ClosedLoop(concurrency=concurrency),
        requests=requests,
        service_ms=lambda request: service_ms[request.request_id],
        max_in_flight=max_in_flight,
        stop_at_ms=stop_at_ms,
    )

    assert outcome.ids() == list(range(len(outcome.results)))
    assert len(outcome.results) + outcome.summary.unsent == requests
    assert outcome.client.most_in_flight <= min(max_in_flight, concurrency or max_in_flight)
    assert outcome.summary.unsent == 0 or stop_at_ms is not None
    assert all(result.sent_ns >= result.intended_ns for result in outcome.results)

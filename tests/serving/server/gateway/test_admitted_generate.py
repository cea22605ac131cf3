import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import RequestOutputKind

from serving.plugin import request_watch
from serving.plugin.requests import RefusedRequest
from serving.policy.admission.admission import Admission
from serving.policy.admission.admission_limits import AdmissionLimits
from serving.policy.admission.capacity import Capacity
from serving.policy.admission.entry import Outcome
from serving.policy.admission.refusal import RefusalReason, Refused
from serving.policy.admission.work import WorkClass
from serving.server.gateway.admission_controller import AdmissionController, current_permit
from serving.server.gateway.admitted_generate import admit_generation
from serving.telemetry.latency_window import RequestTimes
from tests.serving.own_metrics import own_metrics
from tests.serving.plugin.stat_loggers import started
from tests.serving.policy.admission.works import client, work
from tests.serving.server.gateway.generating_engine import GeneratingEngine, params, prompt
from tests.serving.wire.engine_statuses import status

CAPACITY = Capacity(seats=4, kv_tokens=100_000, prefill_tokens_per_step=10_000)
KINDS = list(RequestOutputKind)


def made(
    limits: AdmissionLimits | None = None, **of: Any
) -> tuple[GeneratingEngine, AdmissionController]:
    engine = GeneratingEngine(**of)
    admission = AdmissionController(
        limits if limits is not None else AdmissionLimits(), lambda: CAPACITY
    )
    admit_generation(engine, admission)
    return engine, admission


async def read(engine: GeneratingEngine, name: str = "a", *, tokens: int = 10, **asked: Any) -> int:
    """Tokens of one call of generate, all sequences together."""
    kind = asked.get("kind", RequestOutputKind.DELTA)
    count: dict[int, int] = {}
    async for output in engine.generate(prompt(tokens), params(**asked), name):
        for one in output.outputs:
            before = count.get(one.index, 0) if kind is RequestOutputKind.DELTA else 0
            count[one.index] = before + len(one.token_ids)
    return sum(count.values())


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_without_a_ticket_enters_and_is_counted_exactly(kind: RequestOutputKind) -> None:
    async def runs() -> None:
        engine, admission = made()
        task = asyncio.create_task(read(engine, tokens=123, n=2, kind=kind))
        await settle()
        state = admission.state().classes[WorkClass.INTERACTIVE]
        assert (state.in_flight, state.waiting, state.waiting_tokens) == (1, 1, 123)

        engine.step()
        assert admission.state().classes[WorkClass.INTERACTIVE].waiting == 0  # streamed or not
        engine.step()
        engine.step()

        assert await task == 6
        assert admission.state().classes[WorkClass.INTERACTIVE].left[Outcome.FINISHED] == 1
        assert admission.state().sequences == 0

    asyncio.run(runs())


def test_prompts_of_one_request_share_its_ticket_whatever_task_reads_them() -> None:
    async def runs() -> None:
        engine, admission = made()
        with admission.enter(work(sequences=2, prompt_tokens=50)) as permit:
            token = current_permit.set(permit)
            calls = [asyncio.create_task(read(engine, name, tokens=30)) for name in "ab"]
            current_permit.reset(token)
            await settle()
            assert admission.state().classes[WorkClass.INTERACTIVE].waiting_tokens == 60
            for _ in range(3):
                engine.step()
            assert await asyncio.gather(*calls) == [3, 3]
            assert admission.state().in_flight == 1
            assert (permit.entry.counted_tokens, permit.entry.made_tokens) == (60, 6)
        assert admission.state().in_flight == 0

    asyncio.run(runs())


def test_batch_work_reaches_the_engine_at_its_turn_and_behind_the_other() -> None:
    async def runs() -> None:
        engine, admission = made(AdmissionLimits(interactive_headroom=0.5))
        first = [asyncio.create_task(read(engine, f"i{each}", max_tokens=2)) for each in range(3)]
        await settle()
        with admission.enter(work(batch=True)) as permit:
            token = current_permit.set(permit)
            batch = asyncio.create_task(read(engine, "b"))
            current_permit.reset(token)
            await settle()
            assert len(engine.waiting) == 3

            engine.step()
            engine.step()
            await asyncio.gather(*first)
            await settle()

            assert engine.priorities == [0, 0, 0, 1]
            for _ in range(3):
                engine.step()
            assert await batch == 3

    asyncio.run(runs())


def test_only_interactive_requests_are_judged_by_the_time_of_their_further_tokens() -> None:
    async def runs() -> None:
        stats, clock = started()
        clock.write(status(dilation=4.0, emulated_s=100.0))
        heard: list[RequestTimes] = []
        stats.on_times = heard.append
        engine, admission = made(stats=stats)
        with (
            admission.enter(work(batch=True)) as later,
            admission.enter(work()) as now,
        ):
            calls = []
            for name, permit in (("later", later), ("now", now)):
                token = current_permit.set(permit)
                calls.append(asyncio.create_task(read(engine, name, max_tokens=3)))
                current_permit.reset(token)
            await settle()
            for _ in range(3):
                engine.step()
            assert await asyncio.gather(*calls) == [3, 3]
            again = asyncio.create_task(read(engine, "later"))  # a client's name is no one's own
            await settle()
            for _ in range(3):
                engine.step()
            assert await again == 3
        ends = [times for times in heard if times.e2e_s]
        assert [times.tpot_s for times in ends] == [[1.0, 1.0], [1.0]]  # a step is a second
        # They had the first of three tokens two seconds before the last.
        assert [times.begun_tpot for times in ends] == [((98.0, 1.0),)] * 2

    with own_metrics():
        asyncio.run(runs())


def test_an_engine_with_another_policy_keeps_its_own_priorities() -> None:
    async def runs() -> None:
        engine, admission = made(policy="fcfs")
        with admission.enter(work(batch=True)) as permit:
            current_permit.set(permit)
            task = asyncio.create_task(read(engine))
            await settle()
            for _ in range(3):
                engine.step()
            await task
        assert engine.priorities == [0]

    asyncio.run(runs())


def test_nothing_slips_by_closed_admission() -> None:
    async def runs() -> None:
        engine, admission = made()
        admission.close(RefusalReason.DRAINING, "the server ends", 3.0)

        with pytest.raises(RefusedRequest) as refused:
            await read(engine)
        with pytest.raises(RefusedRequest):
            engine.check_admission(1)

        assert refused.value.http_status == 503
        assert refused.value.retry_after_s == 3.0
        assert not engine.waiting

    asyncio.run(runs())


def test_load_is_429_and_work_with_a_ticket_is_not_asked_again() -> None:
    async def runs() -> None:
        engine, admission = made(AdmissionLimits(queue_requests=1))
        with admission.enter(work()) as permit:
            with pytest.raises(RefusedRequest) as refused:
                engine.check_admission(1)
            assert refused.value.http_status == 429

            current_permit.set(permit)
            engine.check_admission(1)

    asyncio.run(runs())


def test_what_the_engine_refuses_leaves_as_failed() -> None:
    async def runs() -> None:
        engine, admission = made()
        with pytest.raises(VLLMValidationError):
            await read(engine, tokens=5_000)
        assert admission.state().classes[WorkClass.INTERACTIVE].left[Outcome.FAILED] == 1
        assert admission.state().sequences == 0

    asyncio.run(runs())


def test_each_of_two_sequences_frees_its_seat_at_its_own_end() -> None:
    async def runs() -> None:
        engine, admission = made()
        task = asyncio.create_task(read(engine, n=2))
        await settle()
        engine.step()
        engine.stop_next = True
        engine.step()

        assert admission.state().sequences == 1
        lengths = admission._admission._inside.expected.lengths
        assert np.count_nonzero(lengths._ended) == 1  # by itself: with its second token
        engine.step()
        assert await task == 2 + 3
        assert np.count_nonzero(lengths._ended) == 1  # the other one had all its tokens

    asyncio.run(runs())


@pytest.mark.parametrize("is_on_its_way", [False, True])
def test_what_is_aborted_in_the_engine_has_not_finished_and_did_not_end_by_itself(
    is_on_its_way: bool,
) -> None:
    async def runs() -> None:
        engine, admission = made()
        task = asyncio.create_task(read(engine, "a"))
        await settle()
        engine.step()

        engine.output_processor.abort_requests(["a"], internal=False)  # as vLLM's `abort` does
        if is_on_its_way:
            engine.step()  # which the engine had begun

        assert await task == 1  # an answer like any other, for who reads it
        left = admission.state().classes[WorkClass.INTERACTIVE].left
        assert (left[Outcome.ABORTED], left[Outcome.FINISHED]) == (1, 0)
        assert not admission._admission._inside.expected.lengths._ended.any()

    asyncio.run(runs())


def test_first_tokens_are_counted_at_once_and_further_ones_together() -> None:
    async def runs() -> None:
        engine, admission = made()
        with admission.enter(work()) as permit:
            current_permit.set(permit)
            task = asyncio.create_task(read(engine, max_tokens=6))
            await settle()
            counted = []
            clock = SimpleNamespace(monotonic=mock.Mock(side_effect=times_s))
            with mock.patch.object(request_watch, "time", clock):
                for _ in times_s:
                    engine.step()
                    counted.append(permit.entry.made_tokens)
            assert await task == 6
        assert counted == [1, 1, 1, 4, 4, 6]

    every_s = request_watch._REPORT_EVERY_WALL_S
    times_s = [every_s * share for share in (10.0, 10.1, 10.9, 11.0, 11.1, 11.2)]
    asyncio.run(runs())


def test_accounts_that_fail_are_logged_and_fail_no_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def runs() -> None:
        engine, admission = made()
        first = asyncio.create_task(read(engine, "a"))
        await settle()
        broken = mock.patch.object(Admission, "made", side_effect=AssertionError("sums differ"))
        with broken, caplog.at_level("ERROR"):
            engine.step()
        second = asyncio.create_task(read(engine, "b"))
        await settle()
        for _ in range(3):
            engine.step()

        assert await asyncio.gather(first, second) == [3, 3]
        assert admission.state().classes[WorkClass.INTERACTIVE].left[Outcome.FINISHED] == 2
        assert admission.state().sequences == 0

    asyncio.run(runs())
    assert "is not accounted for any more" in caplog.text
    assert "sums differ" in caplog.text


def test_a_second_door_before_one_engine_changes_nothing() -> None:
    engine, admission = made()
    generate = engine.generate
    admit_generation(engine, admission)
    assert engine.generate is generate


MOVES = st.lists(
    st.one_of(
        st.tuples(
            st.just("call"), st.booleans(), st.integers(1, 3), st.integers(1, 4), st.integers(1, 2)
        ),
        st.tuples(st.just("step"), st.integers(1, 4)),
        st.tuples(st.just("cancel"), st.integers(0, 9)),
        st.tuples(st.just("stop"), st.integers(0, 9)),
    ),
    max_size=30,
)


class Clients:
    """Requests before one gateway; each may be cancelled, or stop to read and go."""

    def __init__(self) -> None:
        limits = AdmissionLimits(queue_requests=6, batch_queue_requests=3, interactive_headroom=0.5)
        self.engine, self.admission = made(limits)
        self.tasks: list[asyncio.Task[None]] = []
        self.stopped: set[int] = set()

    async def call(self, batch: bool, n: int, tokens: int, prompts: int) -> None:
        handled = self._handle(len(self.tasks), batch, n, tokens, prompts)
        self.tasks.append(asyncio.create_task(handled))

    async def step(self, steps: int) -> None:
        for _ in range(steps):
            self.engine.step()

    async def cancel(self, number: int) -> None:
        if number < len(self.tasks):
            self.tasks[number].cancel()

    async def stop(self, number: int) -> None:
        self.stopped.add(number)

    async def _handle(self, number: int, batch: bool, n: int, tokens: int, prompts: int) -> None:
        who = client(f"k{number % 2}", concurrent=4)
        with self.admission.enter(work(who, batch=batch, sequences=n * prompts)) as permit:
            current_permit.set(permit)
            for each in range(prompts):
                outputs = self.engine.generate(prompt(), params(tokens, n=n), f"{number}.{each}")
                async with contextlib.aclosing(outputs):
                    async for _ in outputs:
                        if number in self.stopped:
                            return

    async def end(self) -> list[BaseException | None]:
        while not all(task.done() for task in self.tasks):
            self.engine.step()
            await settle()
        return await asyncio.gather(*self.tasks, return_exceptions=True)


@pytest.mark.long
@given(MOVES)
def test_in_any_order_of_events_nothing_is_left_inside(moves: list[tuple[Any, ...]]) -> None:
    async def runs() -> None:
        clients = Clients()
        for name, *given_to in moves:
            await getattr(clients, name)(*given_to)
            await settle()
            clients.admission._admission.check()
        for ended in await clients.end():
            assert ended is None or isinstance(ended, Refused | asyncio.CancelledError)
        state, engine = clients.admission.state(), clients.engine
        assert state.in_flight == state.sequences == 0
        assert await clients.admission.empty(0)
        assert not engine.running
        assert not engine.waiting
        assert not engine.output_processor.request_states
        cancelled_before_entering = sum(task.cancelled() for task in clients.tasks)
        seen = sum(each.entered + sum(each.refused.values()) for each in state.classes.values())
        assert len(clients.tasks) - cancelled_before_entering <= seen <= len(clients.tasks)

    asyncio.run(runs())

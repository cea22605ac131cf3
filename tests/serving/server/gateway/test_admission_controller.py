import asyncio
from unittest import mock

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from serving.policy.admission.admission_limits import AdmissionLimits
from serving.policy.admission.capacity import Capacity
from serving.policy.admission.entry import Counted, Outcome
from serving.policy.admission.refusal import RefusalReason, Refused
from serving.policy.admission.work import WorkClass
from serving.server.gateway.admission_controller import AdmissionController, Permit
from serving.telemetry.gateway_metrics import GatewayMetrics
from tests.serving.policy.admission.works import CAPACITY, client, work

FULL = Capacity(seats=0, kv_tokens=0, prefill_tokens_per_step=0)


class WallClock:
    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


def test_a_ticket_leaves_once_as_its_block_ended() -> None:
    async def ends() -> None:
        admission = AdmissionController(AdmissionLimits(), lambda: CAPACITY)
        with admission.enter(work()) as permit:
            permit.leave(Outcome.ABORTED)
        with pytest.raises(KeyError), admission.enter(work()):
            raise KeyError
        with pytest.raises(asyncio.CancelledError), admission.enter(work()):
            raise asyncio.CancelledError
        with admission.enter(work()):
            pass

        left = admission.state().classes[WorkClass.INTERACTIVE].left
        assert [left[each] for each in Outcome] == [1, 2, 1, 0]
        assert admission.state().in_flight == 0

    asyncio.run(ends())


def test_a_second_on_the_wall_is_what_the_dilation_makes_of_it() -> None:
    async def waits() -> None:
        clock = WallClock()
        capacity = Capacity(seats=8, kv_tokens=99, prefill_tokens_per_step=9, dilation=10.0)
        admission = AdmissionController(AdmissionLimits(), lambda: capacity, clock)
        who = client("a", requests_per_minute=60)
        permit = admission.enter(work(who))
        assert permit.rate.remaining_requests == 59
        assert permit.rate.reset_requests_s == pytest.approx(10.0)

        clock.s += 5.0

        later = admission.enter(work(who))
        assert later.rate.reset_requests_s == pytest.approx(5.0 + 10.0)

    asyncio.run(waits())


def test_batch_work_gets_its_turn_when_somebody_leaves() -> None:
    async def waits() -> None:
        admission = AdmissionController(AdmissionLimits(interactive_headroom=0.0), lambda: CAPACITY)
        full = admission.enter(work(sequences=8))
        batch = admission.enter(work(batch=True))
        turn = asyncio.create_task(batch.turn())
        await asyncio.sleep(0)
        assert not turn.done()

        full.leave(Outcome.FINISHED)

        await asyncio.wait_for(turn, 1)
        batch.leave(Outcome.FINISHED)

    asyncio.run(waits())


@pytest.mark.long
def test_batch_work_that_waited_too_long_is_refused_without_anybodys_doing() -> None:
    async def waits() -> None:
        admission = AdmissionController(AdmissionLimits(batch_wait_s=0.2), lambda: FULL)
        admission.enter(work())
        permit = admission.enter(work(batch=True))

        with pytest.raises(Refused) as refused:
            await asyncio.wait_for(permit.turn(), 5)

        assert refused.value.reason is RefusalReason.BATCH_WAIT
        assert refused.value.retry_after_s > 0
        assert permit.has_left
        assert admission.state().in_flight == 1

    asyncio.run(waits())


def test_a_task_that_is_cancelled_while_it_waits_frees_its_place_at_once() -> None:
    async def waits() -> None:
        admission = AdmissionController(AdmissionLimits(batch_queue_requests=1), lambda: FULL)
        admission.enter(work())

        async def handle() -> None:
            with admission.enter(work(batch=True)) as permit:
                await permit.turn()

        task = asyncio.create_task(handle())
        await asyncio.sleep(0)
        assert admission.would_refuse(client(), WorkClass.BATCH) is not None
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        assert admission.would_refuse(client(), WorkClass.BATCH) is None
        assert admission.state().classes[WorkClass.BATCH].left[Outcome.ABORTED] == 1

    asyncio.run(waits())


def test_a_door_that_closes_lets_those_inside_end_and_says_when_they_have() -> None:
    async def drains() -> None:
        admission = AdmissionController(AdmissionLimits(), lambda: FULL)
        inside = admission.enter(work())
        batch = admission.enter(work(batch=True))
        admission.close(RefusalReason.DRAINING, "the server ends", 7.0)

        with pytest.raises(Refused, match="the server ends") as refused:
            admission.enter(work())
        assert refused.value.retry_after_s == 7.0
        with pytest.raises(Refused, match="the server ends"):
            await batch.turn()
        assert not await admission.empty(0.01)

        asyncio.get_running_loop().call_later(0.01, inside.leave, Outcome.FINISHED)
        assert await admission.empty(5)
        admission.open()
        assert admission.closed is None
        assert isinstance(admission.enter(work()), Permit)

    asyncio.run(drains())


def test_whoever_is_refused_while_it_is_closed_leaves_nothing_behind() -> None:
    admission = AdmissionController(AdmissionLimits(), lambda: CAPACITY)
    admission.close(RefusalReason.DRAINING, "the server ends", 7.0)

    for _ in range(100):
        with pytest.raises(Refused, match="the server ends"):
            admission.enter(work())

    assert admission.closed is not None
    assert admission.closed.__traceback__ is None


def test_a_drain_tells_each_that_waits_of_its_own_key_and_each_of_its_prompts_anew() -> None:
    async def drains() -> None:
        admission = AdmissionController(AdmissionLimits(), lambda: FULL)
        admission.enter(work())
        permits = [
            admission.enter(work(client(name, requests_per_minute=each), batch=True))
            for name, each in (("a", 7), ("b", 9))
        ]
        admission.close(RefusalReason.DRAINING, "the server ends", 7.0)

        told = await asyncio.gather(
            *(permit.turn() for permit in (*permits, permits[0])), return_exceptions=True
        )

        assert [each.rate.limit_requests for each in told if isinstance(each, Refused)] == [7, 9, 7]
        assert len({id(each) for each in told}) == 3

    asyncio.run(drains())


def test_many_ends_of_one_step_decide_admission_once() -> None:
    async def ends() -> None:
        admission = AdmissionController(AdmissionLimits(interactive_headroom=0.0), lambda: CAPACITY)
        full = admission.enter(work(sequences=8))
        full.begin(Counted(sequences=8, prompt_tokens=100, new_tokens_max=50))
        batch = [admission.enter(work(batch=True)) for _ in range(3)]
        for _ in range(8):
            full.end(made_tokens=0, by_itself=False)
        assert admission.state().classes[WorkClass.BATCH].queued == 3
        with mock.patch.object(admission, "look", wraps=admission.look) as look:
            await asyncio.gather(*(permit.turn() for permit in batch))
        assert look.call_count == 1

    asyncio.run(ends())


def test_what_the_engine_has_cut_has_not_finished() -> None:
    admission = AdmissionController(AdmissionLimits(), lambda: CAPACITY)
    with admission.enter(work()) as permit:
        permit.cut(Outcome.ABORTED)

    assert admission.state().classes[WorkClass.INTERACTIVE].left[Outcome.ABORTED] == 1
    assert admission.in_flight == 0


def test_the_wait_of_each_class_is_told_with_its_first_token() -> None:
    async def waits() -> list[tuple[WorkClass, float]]:
        now, told = [0.0], []
        admission = AdmissionController(AdmissionLimits(), lambda: CAPACITY, lambda: now[0])
        admission.on_wait = lambda work_class, wait_s: told.append((work_class, wait_s))
        for batch in (False, True):
            permit = admission.enter(work(batch=batch))
            await permit.turn()
            permit.begin(Counted(sequences=1, prompt_tokens=1, new_tokens_max=1))
            now[0] += 2.0
            permit.first_token()
            permit.leave(Outcome.FINISHED)
        return told

    each_s = pytest.approx(2.0 / CAPACITY.dilation)
    told = asyncio.run(waits())
    assert told == [(WorkClass.INTERACTIVE, each_s), (WorkClass.BATCH, each_s)]


def test_what_the_metrics_say_adds_up_and_names_no_key() -> None:
    async def counts() -> str:
        registry = CollectorRegistry()
        limits = AdmissionLimits(queue_requests=1)
        admission = AdmissionController(limits, lambda: CAPACITY, metrics=GatewayMetrics(registry))
        permit = admission.enter(work(client("the-keys-name", concurrent=5), prompt_tokens=123))
        with pytest.raises(Refused):
            admission.enter(work())
        seen = generate_latest(registry).decode()
        assert 'ultraserve_admission_waiting_tokens{class="interactive"} 123.0' in seen
        permit.begin(Counted(sequences=1, prompt_tokens=120, new_tokens_max=5))
        permit.first_token()
        permit.leave(Outcome.FINISHED)
        return generate_latest(registry).decode()

    seen = asyncio.run(counts())

    for line in (
        'requests_total{class="interactive",outcome="entered"} 1.0',
        'requests_total{class="interactive",outcome="finished"} 1.0',
        'refused_total{class="interactive",reason="queue_requests"} 1.0',
        'wait_seconds_count{class="interactive"} 1.0',
        'in_flight{class="interactive"} 0.0',
        'limit{limit="queue_requests"} 1.0',
    ):
        assert f"ultraserve_admission_{line}" in seen
    assert "the-keys-name" not in seen

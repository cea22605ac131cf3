"""Permits that other processes get over a socket count, and are refused, as those given at home."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.policy.admission.admission_limits import AdmissionLimits
from serving.policy.admission.entry import Counted, Outcome
from serving.policy.admission.refusal import RefusalReason, Refused
from serving.policy.admission.work import WorkClass
from serving.server.gateway.admission_controller import AdmissionController, Permit
from serving.server.gateway.permits.lent_permits import LentPermits
from serving.server.gateway.permits.permit_messages import FRAME_BYTES_MAX, ClientsHeld, Times
from serving.server.gateway.permits.permit_port import PermitPort
from serving.telemetry.latency_window import RequestTimes
from tests.serving.policy.admission.works import CAPACITY, client, work

PAGE = (200, "text/plain", b"the page\n")


class Lending:
    """One admission, its socket, and desks of other processes."""

    def __init__(self, path: Path, limits: AdmissionLimits) -> None:
        self.path = path
        self.admission = AdmissionController(limits, lambda: CAPACITY)
        self.times: list[RequestTimes] = []
        self.port = PermitPort(path, self.admission, on_times=self.times.append, page=self._page)
        self.desks: list[LentPermits] = []

    async def _page(self) -> tuple[int, str, bytes]:
        return PAGE

    async def desk(self) -> LentPermits:
        desk, others = LentPermits(self.path), len(self.port.held)
        await desk.start()
        self.desks.append(desk)
        await until(lambda: len(self.port.held) > others)
        return desk

    def counts(self) -> tuple[Any, ...]:
        state = self.admission.state()
        return (state.classes, state.sequences)


@asynccontextmanager
async def lending(limits: AdmissionLimits | None = None) -> AsyncIterator[Lending]:
    async with AsyncExitStack() as held:
        directory = held.enter_context(tempfile.TemporaryDirectory(dir="/tmp"))
        lent = Lending(Path(directory) / "permits", limits or AdmissionLimits())
        await lent.port.start()
        held.push_async_callback(lent.port.stop)
        yield lent
        for desk in lent.desks:
            await desk.stop()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5.0):
        while not condition():
            await asyncio.sleep(0.001)


def run(use: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(use, 30.0))


def counted(*, new_tokens: int = 50) -> Counted:
    return Counted(sequences=1, prompt_tokens=100, new_tokens_max=new_tokens)


def test_one_request_by_hand() -> None:
    async def use() -> None:
        async with lending() as lent:
            desk = await lent.desk()
            permit = await desk.admit(work())
            await permit.turn()
            permit.begin(counted())
            permit.first_token()
            for _ in range(7):
                permit.made(1)
            inside = lent.admission.state().classes[WorkClass.INTERACTIVE]
            assert (inside.entered, inside.in_flight) == (1, 1)
            permit.end(made_tokens=7, by_itself=True)
            permit.leave(Outcome.FINISHED)
            permit.leave(Outcome.FAILED)
            assert await lent.admission.empty(5.0)
            left = lent.admission.state().classes[WorkClass.INTERACTIVE].left
            assert [left[each] for each in Outcome] == [1, 0, 0, 0]

    run(use())


def test_a_keys_limit_of_concurrent_requests_is_exact_over_processes() -> None:
    async def use() -> None:
        async with lending() as lent:
            desks = [await lent.desk() for _ in range(3)]
            of = client("a", concurrent=5)
            asked = [desk.admit(work(of)) for desk in desks for _ in range(4)]
            answers = await asyncio.gather(*asked, return_exceptions=True)
            permits = [each for each in answers if isinstance(each, Permit)]
            refused = [each for each in answers if isinstance(each, Refused)]
            assert (len(permits), len(refused)) == (5, 7)
            assert {each.reason for each in refused} == {RefusalReason.CONCURRENT}
            permits[0].leave(Outcome.FINISHED)
            await until(lambda: lent.admission.in_flight == 4)
            (await desks[2].admit(work(of))).leave(Outcome.FINISHED)

    run(use())


def test_work_beyond_a_keys_tokens_is_refused_before_the_engine_has_it() -> None:
    async def use() -> None:
        async with lending() as lent:
            desk = await lent.desk()
            permit = await desk.admit(work(client("a", tokens_per_minute=1_000)))
            permit.declare(counted())
            await permit.turn()
            permit.declare(counted(new_tokens=5_000))
            with pytest.raises(Refused) as first:
                await permit.turn()
            with pytest.raises(Refused):
                await permit.turn()
            assert permit.refusal is not None
            assert first.value.reason is RefusalReason.TOKENS_PER_MINUTE
            assert permit.rate.limit_tokens == 1_000
            permit.leave(Outcome.FAILED)
            await until(lambda: not lent.admission.in_flight)
            left = lent.admission.state().classes[WorkClass.INTERACTIVE].left
            assert left[Outcome.REFUSED] == 1

    run(use())


def test_batch_work_of_another_process_waits_for_its_turn() -> None:
    async def use() -> None:
        async with lending() as lent:
            desk = await lent.desk()
            first = await desk.admit(work(batch=True, prompt_tokens=9_000, new_tokens_max=100))
            second = await desk.admit(work(batch=True, prompt_tokens=9_000, new_tokens_max=100))
            await first.turn()
            waiting = asyncio.ensure_future(second.turn())
            await asyncio.sleep(0.05)
            assert not waiting.done()
            first.leave(Outcome.FINISHED)
            await waiting
            second.leave(Outcome.FINISHED)

    run(use())


def test_batch_work_that_leaves_before_its_turn_leaves_no_task() -> None:
    async def use() -> None:
        async with lending() as lent:
            desk = await lent.desk()
            permits = [await desk.admit(work(batch=True, prompt_tokens=9_000)) for _ in range(10)]
            waiting = asyncio.ensure_future(permits[-1].turn())
            for permit in reversed(permits):
                permit.leave(Outcome.ABORTED)
            await until(lambda: not lent.admission.in_flight)
            (borrower,) = lent.port._borrowers
            await until(lambda: not borrower.tasks)
            await asyncio.wait([waiting], timeout=5.0)
            assert waiting.cancelled()

    run(use())


def test_prompts_of_one_request_are_declared_one_after_another() -> None:
    async def use() -> None:
        async with lending() as lent:
            permit = await (await lent.desk()).admit(work())

            async def prompt() -> None:
                permit.declare(counted())
                await permit.turn()

            await asyncio.gather(*(prompt() for _ in range(3)))
            permit.leave(Outcome.FINISHED)

    run(use())


@pytest.mark.long
def test_a_frame_beyond_the_limit_closes_its_connection() -> None:
    async def use() -> None:
        async with lending() as lent:
            reader, writer = await asyncio.open_unix_connection(str(lent.path))
            writer.write((FRAME_BYTES_MAX + 1).to_bytes(4, "little"))
            await asyncio.wait_for(reader.read(), 5.0)
            assert lent.port.held == []
            writer.close()

    run(use())


def test_a_closed_admission_refuses_everywhere_and_turns_waiting_work_away() -> None:
    async def use() -> None:
        async with lending() as lent:
            desk = await lent.desk()
            assert desk.closed is None
            running = await desk.admit(work(batch=True, prompt_tokens=9_000))
            await running.turn()
            queued = await desk.admit(work(batch=True, prompt_tokens=9_000))
            lent.admission.close(RefusalReason.DRAINING, "the server ends", 3.0)
            with pytest.raises(Refused, match="the server ends"):
                await queued.turn()
            assert desk.closed is not None
            assert desk.would_refuse(client(), WorkClass.BATCH) is not None
            with pytest.raises(Refused, match="the server ends"):
                await desk.admit(work())
            lent.admission.open()
            await until(lambda: desk.closed is None)

    run(use())


def test_a_process_that_is_lost_gives_its_permits_back() -> None:
    async def use() -> None:
        async with lending() as lent:
            desk, other = await lent.desk(), await lent.desk()
            for _ in range(3):
                await desk.admit(work())
            kept = await other.admit(work())
            await desk.stop()
            await until(lambda: lent.admission.in_flight == 1)
            left = lent.admission.state().classes[WorkClass.INTERACTIVE].left
            assert left[Outcome.FAILED] == 3
            kept.leave(Outcome.FINISHED)
            assert await lent.admission.empty(5.0)

    run(use())


def test_a_process_whose_admission_is_lost_refuses_and_ends() -> None:
    async def use() -> None:
        async with lending() as lent:
            desk = await lent.desk()
            ends: list[int] = []
            desk.on_end = ends.append
            await lent.port.stop()
            await until(lambda: ends)
            for _ in range(2):
                with pytest.raises(Refused, match="is gone"):
                    await desk.admit(work())
            with pytest.raises(Refused, match="is gone"):
                await desk.page()

    run(use())


def test_a_client_that_leaves_before_its_answer_leaves_no_permit() -> None:
    async def use() -> None:
        async with lending() as lent:
            desk = await lent.desk()
            asking = asyncio.ensure_future(desk.admit(work()))
            await asyncio.sleep(0)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            state = lent.admission.state
            await until(lambda: state().classes[WorkClass.INTERACTIVE].entered == 1)
            assert await lent.admission.empty(5.0)

    run(use())


def test_what_else_a_process_has_to_say_arrives() -> None:
    async def use() -> None:
        async with lending() as lent:
            desk = await lent.desk()
            times = RequestTimes(emulated_s=3.0, ttft_s=[0.1], tpot_s=[], e2e_s=[0.4, 0.5])
            desk.tell(Times(times))
            desk.tell(ClientsHeld(5, 6, 7))
            refused = Refused(
                RefusalReason.STALLED, "a stall", retry_after_s=1.0, rate=client_rate()
            )
            desk.count_refusal(refused, WorkClass.BATCH)
            page = await desk.page()
            assert (page.status, page.content_type, page.text) == PAGE
            assert lent.times == [times]
            assert lent.port.held == [ClientsHeld(5, 6, 7)]
            counts = lent.admission.state().classes[WorkClass.BATCH]
            assert counts.refused[RefusalReason.STALLED] == 1

    run(use())


def client_rate() -> Any:
    return AdmissionController(AdmissionLimits(), lambda: CAPACITY).enter(work()).rate


STEPS = st.lists(
    st.tuples(st.sampled_from(["enter", "begin", "token", "end", "leave"]), st.integers(0, 5)),
    max_size=40,
)


class Twice:
    """Requests that have each a permit given at home and one from a desk."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Permit, Permit]] = []
        self.begun: set[int] = set()

    async def enter(self, home: AdmissionController, desk: LentPermits) -> None:
        of = client("a", concurrent=4)
        asked = (home.admit(work(of)), desk.admit(work(of)))
        at_home, lent = await asyncio.gather(*asked, return_exceptions=True)
        if isinstance(at_home, Permit):
            assert isinstance(lent, Permit)
            self.pairs.append((at_home, lent))
        else:
            assert str(at_home) == str(lent)

    def go_on(self, step: str, which: int) -> None:
        at = which % len(self.pairs)
        for permit in self.pairs[at]:
            if permit.has_left:
                return
            if step == "leave":
                permit.leave(Outcome.FINISHED)
            elif step == "begin" and at not in self.begun:
                permit.begin(counted())
            elif step == "token" and at in self.begun:
                permit.first_token()
                permit.made(3)
            elif step == "end" and at in self.begun:
                permit.end(made_tokens=3, by_itself=True)
        if step in ("begin", "end"):
            self.begun = self.begun ^ {at} if (step == "end") == (at in self.begun) else self.begun


@pytest.mark.long
@settings(deadline=None, max_examples=40)
@given(steps=STEPS, desks=st.integers(1, 3))
def test_counts_are_those_of_permits_given_at_home(
    steps: list[tuple[str, int]], desks: int
) -> None:
    async def use() -> None:
        home, twice = AdmissionController(AdmissionLimits(), lambda: CAPACITY), Twice()
        async with lending() as lent:
            places = [await lent.desk() for _ in range(desks)]
            for step, which in steps:
                if step == "enter":
                    await twice.enter(home, places[which % desks])
                elif twice.pairs:
                    twice.go_on(step, which)
                for place in places:
                    await place.page()  # what was told before is known
            state = home.state()
            assert lent.counts() == (state.classes, state.sequences)
            for _, permit in twice.pairs:
                permit.leave(Outcome.ABORTED)
            assert await lent.admission.empty(5.0)
            lent.admission._admission.check()

    run(use())

"""Many who look at the hardware, and an engine that is asked once."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from serving.server.engine_call import EngineGone
from serving.server.gateway.snapshot_poller import SnapshotPoller
from tests.serving.plugin.seen_engine import Seen


class SlowEngine:
    """A real engine, between two of whose steps a test decides when it answers."""

    def __init__(self) -> None:
        self.seen = Seen()
        self.errored = False
        self.asked = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        del method, timeout, kwargs
        self.asked += 1
        await self.may_answer.wait()
        return [self.seen.engine.control(*args)]


def test_all_who_ask_at_a_time_are_shown_one_look_and_a_young_one_serves_who_come_later() -> None:
    async def looks() -> None:
        engine = SlowEngine()
        watch = SnapshotPoller(engine)
        assert watch.last is None
        first = await asyncio.gather(*(watch.fresh(1.0) for _ in range(5)))
        assert {look.number for look in first} == {1}
        assert (await watch.fresh(60.0)) is first[0]
        assert engine.asked == 1
        engine.seen.step(0)
        second = await watch.fresh(0.0)
        assert (engine.asked, second.number) == (2, 2)
        assert second.snapshot.telemetry.steps == 1
        assert second.json.startswith(b'{"emulated_s":')
        assert second.json is second.json  # made once, for however many readers

    asyncio.run(looks())


@pytest.mark.long
def test_an_engine_in_a_long_step_is_shown_as_it_last_was_and_its_answer_serves_the_next() -> None:
    async def looks() -> None:
        engine = SlowEngine()
        watch = SnapshotPoller(engine)
        before = await watch.fresh(1.0)
        engine.may_answer.clear()
        assert (await watch.fresh(0.0, within_s=0.01)) is before
        assert (await watch.fresh(0.0, within_s=0.01)) is before
        assert engine.asked == 2  # the second one waits with the first
        engine.may_answer.set()
        assert (await watch.fresh(0.0)).number == 2
        assert watch.last is not None
        assert watch.last.age_s() >= 0

    asyncio.run(looks())


def test_an_answer_that_a_later_question_has_overtaken_shows_no_older_hardware() -> None:
    async def looks() -> None:
        engine = SlowEngine()
        watch = SnapshotPoller(engine)
        first = engine.may_answer = asyncio.Event()
        overtaken = asyncio.create_task(watch.fresh(60.0))
        await asyncio.sleep(0.01)  # its question has a time of its own
        watch.forget()
        engine.may_answer = asyncio.Event()
        engine.may_answer.set()
        newer = await watch.fresh(60.0)
        first.set()
        assert (await overtaken) is newer
        assert watch.last is newer

    asyncio.run(asyncio.wait_for(looks(), 10))


def test_who_is_in_a_hurry_before_the_first_look_is_told_so() -> None:
    async def looks() -> None:
        engine = SlowEngine()
        engine.may_answer.clear()
        watch = SnapshotPoller(engine)
        with pytest.raises(TimeoutError):
            await watch.fresh(0.0, within_s=0.01)
        engine.may_answer.set()
        assert (await watch.fresh(0.0)).number == 1

    asyncio.run(looks())


@pytest.mark.long
def test_an_engine_that_has_gone_has_no_hardware_to_show() -> None:
    async def looks() -> None:
        engine = SlowEngine()
        watch = SnapshotPoller(engine)
        await watch.fresh(1.0)
        engine.errored = True
        engine.may_answer.clear()
        with pytest.raises(EngineGone):
            await watch.fresh(0.0)

    asyncio.run(looks())

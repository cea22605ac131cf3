import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from serving.server.gateway.single_flight import SingleFlight


class Source:
    """Answers with how often it was asked, when `answer` is set; `failure` first, once."""

    def __init__(self) -> None:
        self.asked = 0
        self.answer = asyncio.Event()
        self.answer.set()
        self.failure: Exception | None = None

    async def ask(self) -> int:
        self.asked += 1
        number = self.asked
        await self.answer.wait()
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure
        return number


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 10))


def test_one_question_serves_all_who_ask_at_a_time() -> None:
    async def main() -> None:
        source = Source()
        source.answer.clear()
        look = SingleFlight(source.ask)
        asking = [asyncio.create_task(look.fresh(1.0)) for _ in range(20)]
        await asyncio.sleep(0)
        asking[0].cancel()  # who goes leaves the answer to the others
        source.answer.set()
        assert await asyncio.gather(*asking[1:]) == [1] * 19
        assert source.asked == 1

    run(main())


def test_an_answer_is_used_for_as_long_as_its_age_is_asked_for_and_never_asked_unasked() -> None:
    async def main() -> None:
        now_s = 0.0
        source = Source()
        look = SingleFlight(source.ask, clock=lambda: now_s)
        assert source.asked == 0
        assert await look.fresh(1.0) == 1
        now_s = 0.9
        assert await look.fresh(1.0) == 1
        assert await look.fresh(0.5) == 2
        now_s = 100.0
        assert source.asked == 2
        assert await look.fresh(1.0) == 3

    run(main())


def test_a_failure_is_told_to_all_who_waited_and_the_next_question_is_new() -> None:
    async def main() -> None:
        source = Source()
        source.failure = ValueError("not now")
        look = SingleFlight(source.ask)
        told = await asyncio.gather(*(look.fresh(9.0) for _ in range(3)), return_exceptions=True)
        assert [str(each) for each in told] == ["not now"] * 3
        assert await look.fresh(9.0) == 2

    run(main())


def test_what_was_asked_before_it_was_forgotten_is_for_those_alone_who_wait_for_it() -> None:
    async def main() -> None:
        source = Source()
        look = SingleFlight(source.ask)
        assert await look.fresh(60.0) == 1
        look.forget()
        source.answer.clear()
        waits = asyncio.create_task(look.fresh(60.0))
        await asyncio.sleep(0)
        look.forget()
        asks = asyncio.create_task(look.fresh(60.0))
        await asyncio.sleep(0)
        source.answer.set()
        assert await asyncio.gather(waits, asks) == [2, 3]
        assert await look.fresh(60.0) == 3

    run(main())


def test_its_end_is_also_that_of_a_question_that_was_forgotten() -> None:
    async def main() -> None:
        source = Source()
        source.answer.clear()
        look = SingleFlight(source.ask)
        asking = []
        for _ in range(2):
            asking.append(asyncio.create_task(look.fresh(1.0)))
            await asyncio.sleep(0)
            look.forget()
        await look.stop()
        told = await asyncio.gather(*asking, return_exceptions=True)
        assert [type(each) for each in told] == [asyncio.CancelledError] * 2

    run(main())


def test_its_end_is_that_of_a_question_under_way() -> None:
    async def main() -> None:
        source = Source()
        source.answer.clear()
        look = SingleFlight(source.ask)
        await look.stop()  # nobody has asked
        asking = asyncio.create_task(look.fresh(1.0))
        await asyncio.sleep(0)
        await look.stop()
        await look.stop()
        with pytest.raises(asyncio.CancelledError):
            await asking

    run(main())

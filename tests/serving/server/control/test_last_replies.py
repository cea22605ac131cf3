"""What the engine said last, while it is too busy to say more."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from serving.server.control import last_replies
from serving.server.control.last_replies import LastReplies
from serving.server.engine_call import EngineGone
from serving.server.gateway.grpc.rpc_errors import CallRefused
from serving.wire.control_call import (
    PlacementReply,
    PlacementRequest,
    StateReply,
    StateRequest,
)
from tests.serving.server.control.small_engine import SmallEngine

WITHIN_S = 0.05
STATE = (StateRequest(), StateReply)


def run(test: Callable[[SmallEngine, LastReplies], Awaitable[None]]) -> None:
    async def whole() -> None:
        engine = SmallEngine()
        replies = LastReplies(engine, answer_wall_s_max=WITHIN_S)
        await test(engine, replies)
        await replies.stop()
        assert engine.waiting == 0

    asyncio.run(whole())


def test_an_answer_that_comes_in_time_is_new_and_one_that_does_not_is_the_last_with_its_age() -> (
    None
):
    async def test(engine: SmallEngine, replies: LastReplies) -> None:
        first, age_s = await replies.reply(*STATE)
        assert (first.state, age_s) == (engine.state, 0.0)
        engine.silent = True
        again, age_s = await replies.reply(*STATE)
        assert again == first
        assert age_s >= WITHIN_S

        engine.silent = False
        await asyncio.sleep(0.02)
        assert (await replies.reply(*STATE))[1] == 0.0

    run(test)


def test_what_was_never_said_is_not_made_up() -> None:
    async def test(engine: SmallEngine, replies: LastReplies) -> None:
        engine.silent = True
        with pytest.raises(CallRefused, match="the engine is busy"):
            await replies.reply(*STATE)

    run(test)


def test_those_who_ask_the_same_share_a_question_and_it_goes_on_without_them() -> None:
    async def test(engine: SmallEngine, replies: LastReplies) -> None:
        engine.silent = True
        asked = [asyncio.ensure_future(replies.reply(*STATE)) for _ in range(5)]
        await asyncio.sleep(0.01)
        assert engine.waiting == 1
        for each in asked:
            each.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        engine.silent = False
        await asyncio.sleep(0.02)
        assert (await replies.reply(*STATE))[1] == 0.0

    run(test)


def test_an_engine_that_is_gone_is_not_shown_as_it_was() -> None:
    async def test(engine: SmallEngine, replies: LastReplies) -> None:
        await replies.reply(*STATE)
        engine.errored = True
        with pytest.raises(EngineGone) as gone:
            await replies.reply(*STATE)
        assert gone.value.definite

    run(test)


def test_few_questions_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_replies, "REPLIES_KEPT", 2)

    async def test(engine: SmallEngine, replies: LastReplies) -> None:
        engine.silent = True
        for layer in range(4):
            with pytest.raises(CallRefused):
                await replies.reply(PlacementRequest(first_layer=layer), PlacementReply)
        await asyncio.sleep(0.01)
        assert engine.waiting == 2

    run(test)

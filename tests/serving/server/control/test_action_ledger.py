"""Calls that change something: done once, not done, or unknown, whoever asks and how often."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from emulator.errors import ConfigError
from serving.server.control import action_ledger
from serving.server.control.action_ledger import KEY_LENGTH_MAX, ActionLedger
from serving.server.control.call_failure import OUTCOME_UNKNOWN, not_now
from serving.server.engine_call import EngineFailed, EngineGone
from serving.server.gateway.grpc.rpc_errors import CallRefused

ASKED = ("/ultraserve.v1.ControlService/Heal", b"chip 2")


class Engine:
    """Does what it is asked once `free` is set; `done` counts how often."""

    def __init__(self) -> None:
        self.free = asyncio.Event()
        self.done = 0
        self.failure: Exception | None = None

    async def act(self) -> str:
        await self.free.wait()
        if self.failure is not None:
            raise self.failure
        self.done += 1
        return f"healed {self.done}"


def run(test: Callable[[ActionLedger, Engine], Awaitable[None]]) -> None:
    async def whole() -> None:
        ledger = ActionLedger(answer_wall_s_max=0.02)
        await test(ledger, Engine())
        await ledger.stop()

    asyncio.run(whole())


async def refused(call: Awaitable[Any]) -> CallRefused:
    with pytest.raises(CallRefused) as caught:
        await call
    return caught.value


def test_a_call_is_done_once_however_often_it_is_asked_with_its_key() -> None:
    async def test(ledger: ActionLedger, engine: Engine) -> None:
        engine.free.set()
        assert await ledger.outcome("k", ASKED, engine.act) == "healed 1"
        assert await ledger.outcome("k", ASKED, engine.act) == "healed 1"
        assert await ledger.outcome("other", ASKED, engine.act) == "healed 2"
        assert await ledger.outcome(None, ASKED, engine.act) == "healed 3"

    run(test)


def test_an_outcome_that_is_late_is_unknown_and_comes_when_it_is_asked_for_again() -> None:
    async def test(ledger: ActionLedger, engine: Engine) -> None:
        error = await refused(ledger.outcome("k", ASKED, engine.act))
        assert error.failure.reason == OUTCOME_UNKNOWN
        assert "idempotency-key k" in error.failure.message
        await refused(ledger.outcome("k", ASKED, engine.act))

        engine.free.set()
        assert await ledger.outcome("k", ASKED, engine.act) == "healed 1"
        assert engine.done == 1

    run(test)


def test_a_call_goes_on_when_its_client_has_gone() -> None:
    async def test(ledger: ActionLedger, engine: Engine) -> None:
        client = asyncio.ensure_future(ledger.outcome("k", ASKED, engine.act))
        await asyncio.sleep(0)
        client.cancel()
        engine.free.set()
        assert await ledger.outcome("k", ASKED, engine.act) == "healed 1"

    run(test)


@pytest.mark.parametrize(
    "failure",
    [
        not_now("the engine sleeps"),
        ConfigError(field="chip", value=9, expected="0 to 3"),
        NotImplementedError(),
        EngineGone(definite=True),
    ],
    ids=lambda failure: type(failure).__name__,
)
def test_a_call_that_has_changed_nothing_may_be_tried_anew(failure: Exception) -> None:
    async def test(ledger: ActionLedger, engine: Engine) -> None:
        engine.free.set()
        engine.failure = failure
        with pytest.raises(type(failure)):
            await ledger.outcome("k", ASKED, engine.act)

        engine.failure = None
        assert await ledger.outcome("k", ASKED, engine.act) == "healed 1"

    run(test)


@pytest.mark.parametrize(
    "failure",
    [EngineGone(), EngineFailed("out of chips"), TimeoutError(), KeyError("a mistake of ours")],
    ids=lambda failure: type(failure).__name__,
)
def test_a_call_that_failed_in_any_other_way_stays_unknown_and_is_not_made_again(
    failure: Exception,
) -> None:
    async def test(ledger: ActionLedger, engine: Engine) -> None:
        engine.free.set()
        engine.failure = failure
        for _ in range(3):
            error = await refused(ledger.outcome("k", ASKED, engine.act))
            assert error.failure.reason == OUTCOME_UNKNOWN
            engine.failure = None
        assert engine.done == 0

    run(test)


def test_a_late_end_is_told_once_however_often_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    monkeypatch.setattr(action_ledger, "_tell_late", lambda name, *_: told.append(name))

    async def test(ledger: ActionLedger, engine: Engine) -> None:
        for _ in range(3):
            await refused(ledger.outcome("k", ASKED, engine.act))
        engine.free.set()
        await ledger.outcome("k", ASKED, engine.act)
        await ledger.outcome("quick", ASKED, engine.act)
        assert told == ["Heal"]

    run(test)


def test_a_key_belongs_to_one_call() -> None:
    async def test(ledger: ActionLedger, engine: Engine) -> None:
        engine.free.set()
        await ledger.outcome("k", ASKED, engine.act)
        with pytest.raises(ConfigError, match="idempotency_key=k: expected a key of its own"):
            await ledger.outcome("k", (ASKED[0], b"chip 3"), engine.act)

    run(test)


@pytest.mark.parametrize("key", ["", "k" * (KEY_LENGTH_MAX + 1), "two\nlines", "schlüssel"])
def test_what_is_no_key_is_refused(key: str) -> None:
    async def test(ledger: ActionLedger, engine: Engine) -> None:
        with pytest.raises(ConfigError, match="idempotency_key="):
            await ledger.outcome(key, ASKED, engine.act)

    run(test)


def test_the_memory_is_bounded_and_forgets_what_is_over_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(action_ledger, "OUTCOMES_KEPT", 2)

    async def test(ledger: ActionLedger, engine: Engine) -> None:
        await refused(ledger.outcome("slow", ASKED, engine.act))
        quick = Engine()
        quick.free.set()
        for number in range(5):
            await ledger.outcome(f"quick-{number}", ASKED, quick.act)
            assert len(ledger) == 2
        await refused(ledger.outcome("slow-2", ASKED, engine.act))
        error = await refused(ledger.outcome("one-more", ASKED, engine.act))
        assert error.failure.reason == "CALLS"

        engine.free.set()
        assert (await ledger.outcome("slow", ASKED, engine.act)).startswith("healed")

    run(test)

"""Alive and ready, asked by many: an engine that rests, is busy, fails, or is gone."""

import asyncio
from typing import Any

import httpx
import pytest

from serving.policy.admission.refusal import RateState, RefusalReason, Refused
from serving.server.gateway.http.probes import answer_probe
from serving.server.gateway.readiness import Readiness
from serving.wire import control_call
from serving.wire.control_call import METHOD, TelemetryReply, TelemetryRequest
from serving.wire.machine_state import StallState
from tests.serving.telemetry.machine_states import a_state
from tests.serving.telemetry.telemetry_snapshots import a_telemetry


class RestfulEngine:
    """At the seam of AsyncLLM: an engine's state, and rest. `silent`: no call is answered."""

    def __init__(self) -> None:
        self.sleeping = self.paused = self.errored = self.silent = False
        self.failure: Exception | None = None
        self.ranks_up = 1
        self.stall: StallState | None = None
        self.asked = 0

    async def is_sleeping(self) -> bool:
        return self.sleeping

    async def is_paused(self) -> bool:
        return self.paused

    async def collective_rpc(self, method: str, args: tuple[Any, ...] = ()) -> list[Any]:
        assert (method, control_call.request_from_json(args[0])) == (METHOD, TelemetryRequest())
        self.asked += 1
        if self.silent:
            await asyncio.Event().wait()
        if self.failure is not None:
            raise self.failure
        state = a_state()
        reply = TelemetryReply(
            telemetry=a_telemetry(ranks_up=self.ranks_up, stall=self.stall),
            leases=state.leases,
            versions=state.versions,
            sleep=state.sleep,
        )
        return [control_call.to_json(reply)]


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def a_readiness(engine: Any, closed: list[Refused] | None = None) -> tuple[Readiness, Clock]:
    clock = Clock()
    return Readiness(engine, lambda: closed[0] if closed else None, clock=clock), clock


def probed(readiness: Readiness, path: str) -> tuple[int, str]:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer_probe(readiness, scope["path"], send, [(b"x-request-id", b"1")])

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return await client.get(path)

    answer = asyncio.run(ask())
    assert answer.headers["x-request-id"] == "1"
    return answer.status_code, answer.text


def test_an_engine_with_nothing_wrong_is_up_alive_and_ready() -> None:
    readiness, _ = a_readiness(RestfulEngine())
    assert [probed(readiness, path) for path in ("/startupz", "/livez", "/readyz")] == [
        (200, "ok\n")
    ] * 3


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda engine: setattr(engine, "sleeping", True), "the engine sleeps\n"),
        (lambda engine: setattr(engine, "paused", True), "the engine holds requests back\n"),
        (lambda engine: setattr(engine, "ranks_up", 0), "no rank is up\n"),
        (lambda engine: setattr(engine, "failure", ValueError("odd")), "odd\n"),
    ],
)
def test_an_engine_that_takes_no_requests_is_alive_and_not_ready(change: Any, reason: str) -> None:
    engine = RestfulEngine()
    change(engine)
    readiness, _ = a_readiness(engine)

    assert probed(readiness, "/readyz") == (503, reason)
    assert probed(readiness, "/livez") == (200, "ok\n")


def test_a_closed_door_is_not_ready_and_the_engine_is_not_asked() -> None:
    engine = RestfulEngine()
    draining = Refused(
        RefusalReason.DRAINING, "the server ends", retry_after_s=1.0, rate=RateState()
    )
    readiness, _ = a_readiness(engine, [draining])

    assert probed(readiness, "/readyz") == (503, "the server ends\n")
    assert engine.asked == 0


def test_an_engine_that_is_gone_is_neither() -> None:
    engine = RestfulEngine()
    engine.errored = True
    readiness, _ = a_readiness(engine)

    for path in ("/livez", "/readyz"):
        assert probed(readiness, path) == (503, "the engine is gone\n")
    assert probed(readiness, "/startupz") == (200, "ok\n")


def test_however_many_ask_the_engine_is_asked_once_a_second() -> None:
    engine = RestfulEngine()
    readiness, clock = a_readiness(engine)

    async def many() -> list[str | None]:
        first = await asyncio.gather(*(readiness.not_ready() for _ in range(50)))
        clock.now_s += 0.5
        engine.sleeping = True
        assert await readiness.not_ready() is None  # what was true half a second ago
        assert engine.asked == 1
        clock.now_s += 0.5
        return [*first, await readiness.not_ready()]

    assert asyncio.run(many()) == [None] * 50 + ["the engine sleeps"]


@pytest.mark.long
def test_a_busy_engine_keeps_its_last_answer_and_a_new_one_has_none() -> None:
    engine = RestfulEngine()
    readiness, _ = a_readiness(engine)

    async def ask() -> list[str | None]:
        engine.silent = True
        unknown = await readiness.not_ready()
        engine.silent = False
        other, clock = a_readiness(engine)
        known = await other.not_ready()
        engine.silent = True
        clock.now_s += 2.0
        return [unknown, known, await other.not_ready()]

    unknown, known, still = asyncio.run(ask())
    assert unknown == "the engine has not answered yet"
    assert (known, still) == (None, None)


def test_whatever_else_asking_meets_is_not_ready_and_one_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = RestfulEngine()
    readiness, clock = a_readiness(engine)

    async def ask() -> list[str | None]:
        seen = [await readiness.not_ready()]
        engine.ranks_up = None  # type: ignore[assignment]  # an answer that is none
        for _ in range(3):
            clock.now_s += 1.0
            seen.append(await readiness.not_ready())
        engine.ranks_up = 1
        clock.now_s += 1.0
        return [*seen, await readiness.not_ready()]

    with caplog.at_level("ERROR"):
        unknown = "the engine's state could not be asked for"
        assert asyncio.run(ask()) == [None, unknown, unknown, unknown, None]
    assert [record.message for record in caplog.records] == [unknown]


def test_a_request_waits_for_the_engine_only_when_something_speaks_against_it() -> None:
    engine, seats = RestfulEngine(), [6]
    clock = Clock()
    readiness = Readiness(engine, lambda: None, seats=lambda: seats[0], clock=clock)

    async def ask() -> None:
        for _ in range(10):
            assert await readiness.refusal() is None
        assert engine.asked == 0, "none of them gave the loop away"
        await readiness.not_ready()  # waits for it
        assert engine.asked == 1, "they share one look"
        assert readiness.failure() is None

        clock.now_s += 1.0
        seats[0] = engine.ranks_up = 0
        refused = await readiness.refusal()
        assert refused is not None
        assert (refused.reason, str(refused)) == (RefusalReason.NO_RANK_UP, "no rank is up")
        assert refused.retry_after_s > 0
        assert engine.asked == 2
        assert (failure := readiness.failure()) is not None
        assert failure.reason is RefusalReason.NO_RANK_UP

        engine.ranks_up, clock.now_s = 1, clock.now_s + 1.0
        assert await readiness.refusal() is None  # the snapshot is of the past, the engine is not

    asyncio.run(ask())


def test_requests_find_a_machine_that_stands_still_without_any_probe() -> None:
    engine = RestfulEngine()
    readiness, clock = a_readiness(engine)

    async def ask() -> None:
        engine.stall = StallState(
            until_emulated_s=40.0, left_s=30.0, wall_left_s=600.0, reason="chip 2 does not answer"
        )
        assert await readiness.refusal() is None, "it sets the look off, and is not held up by it"
        await readiness.not_ready()  # waits for it
        refused = await readiness.refusal()
        assert refused is not None
        assert (refused.reason, refused.retry_after_s) == (RefusalReason.STALLED, 600.0)

        engine.stall = None
        clock.now_s += 1.0
        assert await readiness.refusal() is None

    asyncio.run(ask())


def test_what_a_probe_has_found_is_told_to_requests_until_it_is_over() -> None:
    engine = RestfulEngine()
    readiness, clock = a_readiness(engine)

    async def ask() -> None:
        engine.sleeping = True
        assert await readiness.not_ready() == "the engine sleeps"
        first, second = await readiness.refusal(), await readiness.refusal()
        assert first is not None
        assert first is not second  # each request raises its own
        assert first.reason is RefusalReason.RESTING

        engine.sleeping = False
        clock.now_s += 1.0
        assert await readiness.refusal() is None

    asyncio.run(ask())


def test_an_engine_that_fails_to_answer_refuses_nobody() -> None:
    engine = RestfulEngine()
    engine.failure = ValueError("odd")
    readiness, _ = a_readiness(engine)

    async def ask() -> None:
        assert await readiness.not_ready() == "odd"
        assert await readiness.refusal() is None

    asyncio.run(ask())


@pytest.mark.parametrize(("wall_left_s", "status"), [(583.2, 503), (99.0, 200), (1.0, 200)])
def test_a_machine_that_stands_still_for_long_is_not_ready_and_says_for_how_long(
    wall_left_s: float, status: int
) -> None:
    engine = RestfulEngine()
    engine.stall = StallState(
        until_emulated_s=40.0,
        left_s=wall_left_s / 20,
        wall_left_s=wall_left_s,
        reason="the machine stands still: chip 2 does not answer",
    )
    readiness, _ = a_readiness(engine)

    seen, words = probed(readiness, "/readyz")
    assert seen == status
    assert ("chip 2 does not answer; 584 s of wall time are left" in words) == (status == 503)
    assert probed(readiness, "/livez")[0] == 200, "a restart would not shorten it"

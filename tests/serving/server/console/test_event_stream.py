"""One reader's stream: what it is told, in which order, and what it is never told twice."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from serving.server.console import event_stream
from serving.server.console.event_stream import (
    HISTORY_EVENTS_MAX,
    EventStream,
    ReaderGone,
    StreamAsked,
    after_id,
)
from serving.server.control.call_failure import server_ends
from serving.server.engine_call import EngineFailed, EngineGone
from serving.wire.telemetry import EventKind
from tests.serving.server.console.small_snapshots import Reader, SmallSnapshots


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 20))


async def all_told(looks: SmallSnapshots, **given: Any) -> Reader:
    """What a reader is told of looks that end."""
    reader = Reader()
    await EventStream(looks, reader.send, StreamAsked(**given)).run()
    return reader


def numbers(reader: Reader) -> list[int]:
    return [each.data["number"] for each in reader.told("happened")]


@pytest.mark.long
def test_a_new_reader_is_told_what_happened_then_what_is_and_at_last_the_end() -> None:
    async def main() -> None:
        looks, reader = SmallSnapshots(events=3), Reader()
        stream = asyncio.create_task(
            EventStream(looks, reader.send, StreamAsked(interval_s=0.25)).run()
        )
        await reader.until(lambda: len(reader.told("hardware")) >= 3)
        looks.happen()
        await reader.until(lambda: len(reader.told("happened")) == 4)
        looks.go(EngineGone())
        await stream
        assert numbers(reader) == [1, 2, 3, 4]
        assert [each.event_id for each in reader.told("happened")] == [
            *("5f:1", "5f:2", "5f:3", "5f:4")
        ]
        counts = [each.data["hardware"] for each in reader.told("hardware")]
        assert counts == list(range(1, len(counts) + 1))
        assert reader.told("admission")
        assert reader.told("latency")
        assert len(reader.told("daynight")) == 1  # seldom
        assert not reader.told("experts")  # this machine has none
        (gone,) = reader.told("gone")
        assert "engine is gone" in gone.data["words"]
        assert reader.text.endswith(b"\n\n")

    run(main())


@pytest.mark.parametrize(
    ("last_id", "told"),
    [
        (None, [1, 2, 3, 4, 5]),
        ("5f:3", [4, 5]),
        ("5f:5", []),
        ("5f:6", [1, 2, 3, 4, 5]),  # no event had that number
        ("77:3", [1, 2, 3, 4, 5]),  # another run's
        ("", [1, 2, 3, 4, 5]),
        ("5f:", [1, 2, 3, 4, 5]),
        ("5f:-1", [1, 2, 3, 4, 5]),
        ("nonsense", [1, 2, 3, 4, 5]),
    ],
)
def test_who_comes_back_goes_on_where_it_was(last_id: str | None, told: list[int]) -> None:
    async def main() -> None:
        looks = SmallSnapshots(events=5)
        looks.end = EngineGone()
        assert numbers(await all_told(looks, last_id=last_id)) == told

    run(main())


@given(st.text(max_size=40), st.integers(0, 10**6))
def test_whatever_is_shown_as_an_id_a_reader_begins_at_an_event_that_there_is(
    shown: str, newest: int
) -> None:
    for last_id in (shown, f"5f:{shown}", f"{shown}:3"):
        assert 0 <= after_id(last_id, run="5f", newest=newest) <= newest


def test_of_a_long_history_the_newest_is_told_and_how_many_are_not() -> None:
    async def main() -> None:
        looks = SmallSnapshots(events=HISTORY_EVENTS_MAX + 7)
        looks.end = EngineGone()
        reader = await all_told(looks)
        assert numbers(reader) == list(range(8, HISTORY_EVENTS_MAX + 8))
        assert [each.data for each in reader.told("dropped")] == [{"events": 7}]
        assert not (await all_told(looks, last_id="5f:9")).told("dropped")

    run(main())


@pytest.mark.long
def test_a_slow_reader_misses_looks_and_nothing_that_happened() -> None:
    async def main() -> None:
        looks, reader = SmallSnapshots(), Reader()
        stream = asyncio.create_task(
            EventStream(looks, reader.send, StreamAsked(interval_s=0.25)).run()
        )
        await reader.until(lambda: len(reader.told("hardware")) >= 1)
        reader.held.clear()
        await reader.until(lambda: reader.waiting == 1)
        looks_before = dict(looks.looks)
        for _ in range(50):
            looks.happen()
        await asyncio.sleep(1.0)
        assert reader.waiting == 1  # nothing is kept for it beyond what each source has in hand
        assert all(looks.looks[name] <= looks_before.get(name, 0) + 1 for name in looks.looks)
        reader.held.set()
        await reader.until(lambda: len(numbers(reader)) == 50)
        looks.go(EngineGone())
        await stream
        assert numbers(reader) == list(range(1, 51))

    run(main())


def test_a_lease_that_changes_hands_is_a_new_look_at_the_night_at_once() -> None:
    async def main() -> None:
        looks, reader = SmallSnapshots(), Reader()
        stream = asyncio.create_task(EventStream(looks, reader.send).run())
        await reader.until(lambda: len(reader.told("daynight")) == 1)
        looks.happen(EventKind.LEASE)
        await reader.until(lambda: len(reader.told("daynight")) == 2)
        looks.go(EngineGone())
        await stream

    run(main())


@pytest.mark.long
def test_a_look_that_fails_is_missed_and_told_once_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        looks, reader = SmallSnapshots(), Reader()
        looks.failure = EngineFailed("a step broke off")
        stream = asyncio.create_task(
            EventStream(looks, reader.send, StreamAsked(interval_s=0.25)).run()
        )
        await asyncio.sleep(0.6)
        assert not reader.told("hardware")
        looks.failure = None
        await reader.until(lambda: len(reader.told("hardware")) >= 1)
        looks.go(EngineGone())
        await stream

    run(main())
    lines = [one.getMessage() for one in caplog.records if "hardware" in one.getMessage()]
    assert lines == ["a page misses hardware: a step broke off"]


@pytest.mark.long
def test_while_the_engine_is_silent_a_reader_is_told_its_look_s_age_and_no_look_twice() -> None:
    async def main() -> None:
        looks, reader = SmallSnapshots(), Reader()
        looks.late_s = 0.0
        stream = asyncio.create_task(
            EventStream(looks, reader.send, StreamAsked(interval_s=0.25)).run()
        )
        await reader.until(lambda: len(reader.told("late")) >= 1)
        assert not reader.told("hardware")
        looks.late_s = None
        await reader.until(lambda: len(reader.told("hardware")) >= 1)
        assert {each.data["age_s"] for each in reader.told("late")} == {None}
        in_time = len(reader.told("late"))
        looks.late_s = 0.3  # not yet more than an interval and a half
        await reader.until(lambda: looks.looks["latency"] >= 5)
        looks.late_s = 40.0
        before = len(reader.told("hardware"))
        await reader.until(lambda: len(reader.told("late")) >= in_time + 2)
        assert len(reader.told("hardware")) == before
        ages_s = [each.data["age_s"] for each in reader.told("late")[in_time:]]
        assert ages_s == sorted(ages_s)
        assert ages_s[0] > 0
        newcomer = Reader()
        coming = asyncio.create_task(EventStream(looks, newcomer.send).run())
        await newcomer.until(lambda: len(newcomer.told("late")) >= 1)
        assert newcomer.text.index(b"event: hardware") < newcomer.text.index(b"event: late")
        assert newcomer.told("late")[0].data["age_s"] == pytest.approx(40.0, abs=1.0)
        looks.late_s = None
        await reader.until(lambda: len(reader.told("hardware")) > before)
        looks.go(EngineGone())
        await asyncio.gather(stream, coming)

    run(main())


def test_when_the_server_ends_the_stream_just_does() -> None:
    async def main() -> None:
        looks = SmallSnapshots(events=2)
        looks.end = server_ends()
        reader = await all_told(looks)
        assert numbers(reader) == [1, 2]
        assert not reader.told("gone")

    run(main())


@pytest.mark.long
def test_who_may_not_look_any_more_is_told_no_more() -> None:
    async def main() -> None:
        looks, reader, allowed = SmallSnapshots(), Reader(), [True]
        stream = EventStream(
            looks, reader.send, StreamAsked(interval_s=0.25, may_read=lambda: allowed[0])
        )
        running = asyncio.create_task(stream.run())
        await reader.until(lambda: len(reader.told("hardware")) >= 1)
        allowed[0] = False
        await running
        assert not reader.told("gone")

    run(main())


def test_a_stream_ends_with_its_reader_and_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nobody(_: bytes) -> None:
        raise ReaderGone

    async def main() -> None:
        await EventStream(SmallSnapshots(events=1), nobody).run()
        monkeypatch.setattr(event_stream, "STREAM_WALL_S_MAX", 0.1)
        reader = await all_told(SmallSnapshots())
        assert reader.told("hardware")

    run(main())


def test_a_mistake_of_ours_is_not_swallowed() -> None:
    async def main() -> None:
        looks = SmallSnapshots()
        looks.failure = ZeroDivisionError("ours")
        with pytest.raises(ExceptionGroup) as raised:
            await all_told(looks)
        assert raised.group_contains(ZeroDivisionError)

    run(main())


def test_signs_of_life_come_while_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "_SIGN_OF_LIFE_S", 0.05)

    async def main() -> None:
        looks, reader = SmallSnapshots(), Reader()
        stream = asyncio.create_task(
            EventStream(looks, reader.send, StreamAsked(interval_s=60)).run()
        )
        await reader.until(lambda: reader.text.count(b":\n\n") >= 3)
        looks.go(EngineGone())
        await stream

    run(main())


@pytest.mark.parametrize("interval_s", [0.0, 0.2, 61.0, float("nan"), float("inf"), -1.0])
def test_an_interval_that_is_none_is_refused(interval_s: float) -> None:
    with pytest.raises(ConfigError, match=r"^interval_s=.*: expected 0\.25 to 60 seconds$"):
        StreamAsked(interval_s=interval_s)

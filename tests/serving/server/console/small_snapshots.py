"""Snapshots of a synthetic machine, and a reader that keeps its input."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from serving.server.console.event_stream import HardwareEvent
from serving.server.engine_call import EngineGone
from serving.wire.telemetry import EventKind, MachineEvent


def an_event(number: int, kind: EventKind = EventKind.DOOR) -> MachineEvent:
    return MachineEvent(
        number=number, emulated_s=1.0, unix_s=2.0, kind=kind, words=f"event {number}"
    )


class SmallSnapshots:
    """Events are those of `events`; each snapshot counts itself. `end` ends it.

    With `late_s` the engine does not answer: its last snapshot, if any, has that age.
    """

    run = "5f"

    def __init__(self, events: int = 0) -> None:
        self.events = [an_event(number + 1) for number in range(events)]
        self.end: Exception | None = None
        self.failure: Exception | None = None
        self.looks: dict[str, int] = {}
        self.late_s: float | None = None
        self._told: bytes | None = None
        self._changed = asyncio.Event()

    @property
    def last_number(self) -> int:
        return len(self.events)

    def happen(self, kind: EventKind = EventKind.DOOR) -> None:
        self.events.append(an_event(len(self.events) + 1, kind))
        self._changed.set()

    def go(self, end: Exception) -> None:
        self.end = end
        self._changed.set()

    async def happened(self, after: int) -> AsyncGenerator[tuple[MachineEvent, int], None]:
        while True:
            for event in self.events[after:]:
                after = event.number
                yield event, 0
            if self.end is not None:
                raise self.end
            self._changed.clear()
            await self._changed.wait()

    def _look(self, name: str) -> bytes:
        if self.failure is not None:
            raise self.failure
        if self.end is not None:
            raise EngineGone
        self.looks[name] = self.looks.get(name, 0) + 1
        return msgspec.json.encode({name: self.looks[name]})

    async def hardware(self, *, max_age_s: float, within_s: float) -> HardwareEvent | None:
        del max_age_s, within_s
        if self.late_s is None:
            self._told = self._look("hardware")
        elif self._told is None:
            return None
        number = self.looks["hardware"]
        return HardwareEvent(number=number, json=self._told, age_s=self.late_s or 0.0)

    async def part(self, name: str, *, max_age_s: float) -> bytes | None:
        del max_age_s
        return None if name == "experts" else self._look(name)


@dataclass
class Told:
    """One event of the stream as a browser parses it."""

    name: str
    data: Any
    event_id: str | None = None


def parsed(text: bytes) -> list[Told]:
    """By https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream."""
    told: list[Told] = []
    for block in text.decode().split("\n\n")[:-1]:
        fields: dict[str, str] = {}
        for line in block.split("\n"):
            name, _, value = line.partition(":")
            if name:  # what begins with a colon is a comment
                assert name not in fields, "an event in one line each"
                fields[name] = value.removeprefix(" ")
        if "data" in fields:
            data = msgspec.json.decode(fields["data"])
            told.append(Told(fields.get("event", "message"), data, fields.get("id")))
    return told


@dataclass
class Reader:
    """Keeps its input; `held` makes it slow."""

    text: bytes = b""
    held: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: int = 0

    def __post_init__(self) -> None:
        self.held.set()

    async def send(self, data: bytes) -> None:
        self.waiting += 1
        await self.held.wait()
        self.waiting -= 1
        self.text += data

    def told(self, name: str) -> list[Told]:
        return [each for each in parsed(self.text) if each.name == name]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.005)

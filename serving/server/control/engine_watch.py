"""Polls the engine for all watchers: one poller, one history of events.

It runs as long as the server, slowly without watchers, so that later ones find a history. A watcher
holds only its place in it; a slow one loses the oldest events, and learns how many.
"""

import asyncio
import contextlib
import logging
import math
import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from typing import Final

from msgspec import structs

from emulator.errors import ConfigError
from serving.server.control.action_ledger import ANSWER_WALL_S_MAX
from serving.server.control.call_failure import not_now, server_ends, watch_failed
from serving.server.control.machine_events import Change, admission_change, changes
from serving.server.engine_call import ENGINE_GONE, Engine, EngineFailed, EngineGone, ask
from serving.server.gateway.admission_controller import AdmissionController
from serving.wire.control_call import TelemetryReply, TelemetryRequest
from serving.wire.machine_state import StallState
from serving.wire.telemetry import EventKind, MachineEvent, Telemetry

# Below "vllm", where the API's process has configured handlers; a name of our own prints nothing.
logger = logging.getLogger(f"vllm.{__name__}")

INTERVAL_S_MIN: Final = 0.1
INTERVAL_S_MAX: Final = 60.0
EVENTS_KEPT: Final = 4_096
"""About 1 kB each."""

_IDLE_S: Final = 1.0
"""Wall seconds between polls that no watcher hastens."""


class EngineWatch:
    """Runs from `start` to `stop` in the loop of the engine's client.

    `watchers` counts open streams; `run` identifies the server's run.
    """

    def __init__(self, engine: Engine, admission: AdmissionController | None = None) -> None:
        self.run = secrets.token_hex(8)
        self._engine = engine
        self._admission = admission
        self.on_gone: Callable[[], Awaitable[None]] | None = None
        self._history: deque[MachineEvent] = deque(maxlen=EVENTS_KEPT)
        self._numbered = 0
        self._look: TelemetryReply | None = None
        self._looks = 0
        self._looked_s = 0.0
        self._is_looking = False
        self._closed = ""
        self.watchers = 0
        self._changed = asyncio.Event()
        self._hurry = asyncio.Event()
        self._end: Callable[[], Exception] | None = None
        self._poller: asyncio.Task[None] | None = None

    @property
    def stall(self) -> StallState | None:
        """The newest poll's stall, with the time that remains now."""
        stall = None if self._look is None else self._look.telemetry.stall
        if stall is None:
            return None
        passed_s = time.monotonic() - self._looked_s
        left = max(0.0, 1.0 - passed_s / stall.wall_left_s) if stall.wall_left_s else 0.0
        return structs.replace(
            stall, left_s=stall.left_s * left, wall_left_s=stall.wall_left_s * left
        )

    @property
    def last_number(self) -> int:
        """The newest event's; 0 before the first."""
        return self._numbered

    def start(self) -> None:
        """Begin to poll."""
        self._poller = asyncio.create_task(self._poll())

    async def stop(self) -> None:
        """End, and every stream with it; idempotent."""
        if self._end is None:
            self._end = server_ends
        self._tell()
        if self._poller is not None:
            self._poller.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._poller
            self._poller = None

    def look_now(self) -> None:
        """Poll at once, after a change."""
        self._hurry.set()

    async def telemetry(self, interval_s: float) -> AsyncGenerator[tuple[Telemetry, int], None]:
        """Telemetry each `interval_s` wall seconds, and the number of intervals skipped before it.
        Raises ConfigError for an interval out of range, CallRefused, EngineGone.
        """
        if not INTERVAL_S_MIN <= interval_s <= INTERVAL_S_MAX:
            expected = f"{INTERVAL_S_MIN:g} to {INTERVAL_S_MAX:g} seconds"
            raise ConfigError("interval_s", interval_s, expected)
        with self._watching():
            skipped, due_s = 0, time.monotonic()
            while True:
                yield await self._fresh(interval_s / 2), skipped
                due_s += interval_s
                # A time that has gone by when the next one has come too is left out.
                skipped = max(0, math.floor((time.monotonic() - due_s) / interval_s))
                due_s += skipped * interval_s
                await self._rest(due_s)

    async def events(
        self, after: int | None, run: str | None = None
    ) -> AsyncGenerator[tuple[MachineEvent, int], None]:
        """Each event after that number (None: from now on), and the number forgotten before it.

        Raises ConfigError for a number that no event has had; CallRefused, also for another `run`;
        EngineGone.
        """
        if run is not None and run != self.run:
            raise not_now("the server has started again since, and its events count from 1 again")
        if after is not None and not 0 <= after <= self._numbered:
            raise ConfigError("after", after, f"0 to {self._numbered}, the newest event's number")
        following = (self._numbered if after is None else after) + 1
        with self._watching():
            while True:
                if self._history and following <= self._numbered:
                    oldest = self._history[0].number
                    lost = max(0, oldest - following)
                    event = self._history[following + lost - oldest]
                    following = event.number + 1
                    yield event, lost
                else:
                    number = following
                    await self._until(lambda: self._numbered >= number)  # noqa: B023  likewise

    @contextlib.contextmanager
    def _watching(self) -> Iterator[None]:
        self.watchers += 1
        try:
            yield
        finally:
            self.watchers -= 1

    async def _fresh(self, age_s: float) -> Telemetry:
        """Telemetry of a shared poll, at most `age_s` old; a slow engine's last, with its age."""
        old_s = time.monotonic() - self._looked_s
        if self._look is None or old_s > age_s:
            looks = self._looks
            if not self._is_looking:
                self._hurry.set()
            with contextlib.suppress(TimeoutError):
                within_s = None if self._look is None else ANSWER_WALL_S_MAX
                async with asyncio.timeout(within_s):
                    await self._until(lambda: self._looks > looks)
            old_s = 0.0 if self._looks > looks else time.monotonic() - self._looked_s
        assert self._look is not None
        telemetry = self._look.telemetry
        return structs.replace(telemetry, age_s=old_s) if old_s > age_s else telemetry

    async def _until(self, true: Callable[[], bool]) -> None:
        """Wait; raises the end of the watch if that comes first."""
        while not true():
            if self._end is not None:
                raise self._end()
            await self._changed.wait()

    async def _rest(self, due_s: float) -> None:
        while (left_s := due_s - time.monotonic()) > 0:
            if self._end is not None:
                raise self._end()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left_s)

    def _tell(self) -> None:
        """Wake all waiters; those that wait again get the next event."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def look_at_admission(self) -> None:
        """Record a change of admission now: the next poll may miss it."""
        self._take_admission()
        self._tell()

    def job_failed(self, words: str) -> None:
        """Record the training job's failure, its cause and consequence."""
        self._add(Change(kind=EventKind.JOB, words=words))
        self._tell()

    async def _poll(self) -> None:
        try:
            await self._look_again_and_again()
        except Exception:
            logger.exception("the control service no longer watches the engine")
            self._end = watch_failed
            self._tell()
            if self.on_gone is not None:
                await self.on_gone()

    async def _look_again_and_again(self) -> None:
        while self._end is None:
            begun_s = time.monotonic()
            self._hurry.clear()  # what happens from now on may be too late for this look
            self._is_looking = True
            try:
                # Only what the look before has not told: a record of each stage is a kilobyte.
                told = None if self._look is None else self._look.fault_event_number
                await self._take(await ask(self._engine, TelemetryRequest(events_after=told)))
            except EngineGone:
                await self._take_end()
            except EngineFailed as error:
                logger.warning("the engine did not say how it is: %s", error)
            self._is_looking = False
            self._tell()
            left_s = _IDLE_S - (time.monotonic() - begun_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), max(left_s, 0.0))

    async def _take(self, look: object) -> None:
        assert isinstance(look, TelemetryReply), look
        before, self._look = self._look, look
        self._looks += 1
        self._looked_s = time.monotonic()
        for change in changes(before, look) if before is not None else ():
            self._add(change)
        self._take_admission()

    def _take_admission(self) -> None:
        closed = self._admission.closed if self._admission is not None else None
        words = "" if closed is None else str(closed)
        change = admission_change(self._closed, words)
        self._closed = words
        if change is not None:
            self._add(change)

    async def _take_end(self) -> None:
        self._take_admission()
        self._add(Change(kind=EventKind.ENGINE_GONE, words=ENGINE_GONE))
        self._end = EngineGone
        if self.on_gone is not None:
            await self.on_gone()

    def _add(self, change: Change) -> None:
        self._numbered += 1
        emulated_s = 0.0 if self._look is None else self._look.telemetry.emulated_s
        self._history.append(
            MachineEvent(
                number=self._numbered,
                emulated_s=emulated_s if change.emulated_s is None else change.emulated_s,
                ranks_up=change.ranks_up,
                unix_s=time.time(),
                kind=change.kind,
                words=change.words,
                fault=change.fault,
                lease=change.lease,
                version=change.version,
                sleep=change.sleep,
            )
        )

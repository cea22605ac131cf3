"""Looks at the emulated hardware for everybody who wants to see it: one question at a time.

Nobody looks while nobody asks. A look that is young enough serves all who ask; one that is under
way is waited for by all. An engine in a long step answers late: who cannot wait so long is shown
the last look, whose age is told.
"""

import asyncio
import time
from dataclasses import dataclass
from functools import cached_property

import msgspec

from serving.server.engine_call import Engine, EngineFailed, ask
from serving.server.gateway.single_flight import SingleFlight
from serving.wire.control_call import HardwareReply, HardwareRequest
from serving.wire.hardware import HardwareReport
from serving.wire.snapshot import Snapshot


@dataclass(frozen=True, kw_only=True, eq=False)  # no slots: `json` is kept in the instance
class HardwareLook:
    """One answer of the engine; `number` counts them from 1.

    Attributes:
        snapshot: of the same moment as the report.
        taken_s: when it was asked for, on the monotonic clock; the answer took `took_s`, both wall.
    """

    number: int
    report: HardwareReport
    snapshot: Snapshot
    taken_s: float
    took_s: float

    @cached_property
    def json(self) -> bytes:
        """The report in one line, made once for all readers and only when there is one."""
        return msgspec.json.encode(self.report)

    def age_s(self) -> float:
        """Wall seconds since it was asked for."""
        return time.monotonic() - self.taken_s


class SnapshotPoller:
    """Of one engine, in the loop of its client."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._last: HardwareLook | None = None
        self._shared = SingleFlight(self._look)

    @property
    def last(self) -> HardwareLook | None:
        """The newest look, however old; None before the first."""
        return self._last

    async def fresh(self, max_age_s: float, within_s: float | None = None) -> HardwareLook:
        """A look that is at most `max_age_s` old; the last one when that takes over `within_s`.

        Raises:
            EngineGone: the engine has ended; there is nothing to look at any more.
            EngineFailed: its answer is an error.
            TimeoutError: it took over `within_s` wall seconds, and there is no earlier look.
        """
        try:
            # Not `wait_for`, which forgets that it was cancelled when the look comes just then.
            async with asyncio.timeout(within_s):
                return await self._shared.fresh(max_age_s)
        except TimeoutError:
            if self._last is None:
                raise
            return self._last

    def forget(self) -> None:
        """Something has changed: later callers get a newer look."""
        self._shared.forget()

    async def _look(self) -> HardwareLook:
        begun_s = time.monotonic()
        reply = await ask(self._engine, HardwareRequest())
        if not isinstance(reply, HardwareReply):
            raise EngineFailed(f"no look at the hardware: {type(reply).__name__}")
        if self._last is not None and self._last.taken_s > begun_s:
            return self._last  # one that was asked for later has come before
        self._last = HardwareLook(
            number=1 if self._last is None else self._last.number + 1,
            report=reply.report,
            snapshot=reply.snapshot,
            taken_s=begun_s,
            took_s=time.monotonic() - begun_s,
        )
        return self._last

"""Takes snapshots of the machine for all readers, by one call to the engine at a time.

None is taken without a reader; young ones, and calls under way, are shared. An engine in a long
step answers late: a reader that cannot wait gets the last snapshot, with its age.
"""

import asyncio
import time
from dataclasses import dataclass
from functools import cached_property

import msgspec

from serving.server.engine_call import Engine, EngineFailed, ask
from serving.server.gateway.single_flight import SingleFlight
from serving.wire.control_call import SnapshotReply, SnapshotRequest
from serving.wire.machine_snapshot import MachineSnapshot


@dataclass(frozen=True, kw_only=True, eq=False)  # no slots: `json` is kept in the instance
class PolledSnapshot:
    """One answer of the engine; `number` counts from 1.

    It was asked for at `taken_s` on the monotonic clock, and took `took_s`, both wall.
    """

    number: int
    snapshot: MachineSnapshot
    taken_s: float
    took_s: float

    @cached_property
    def json(self) -> bytes:
        """The snapshot in one line, encoded once on first use."""
        return msgspec.json.encode(self.snapshot)

    def age_s(self) -> float:
        """Wall seconds since it was asked for."""
        return time.monotonic() - self.taken_s


class SnapshotPoller:
    """Polls one engine in its client's loop; `last` is the newest snapshot, None at first."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.last: PolledSnapshot | None = None
        self._shared = SingleFlight(self._take)

    async def fresh(self, max_age_s: float, within_s: float | None = None) -> PolledSnapshot:
        """A snapshot at most `max_age_s` old; the last one when that takes over `within_s`.

        Wall seconds. Raises EngineGone, EngineFailed for an error, TimeoutError without a last one.
        """
        try:
            # Not `wait_for`, which forgets that it was cancelled when the answer comes just then.
            async with asyncio.timeout(within_s):
                return await self._shared.fresh(max_age_s)
        except TimeoutError:
            if self.last is None:
                raise
            return self.last

    def forget(self) -> None:
        """Take the next snapshot anew, because something was changed."""
        self._shared.forget()

    async def _take(self) -> PolledSnapshot:
        begun_s = time.monotonic()
        reply = await ask(self._engine, SnapshotRequest())
        if not isinstance(reply, SnapshotReply):
            raise EngineFailed(f"no snapshot of the machine: {type(reply).__name__}")
        if self.last is not None and self.last.taken_s > begun_s:
            return self.last  # one that was asked for later has come before
        self.last = PolledSnapshot(
            number=1 if self.last is None else self.last.number + 1,
            snapshot=reply.snapshot,
            taken_s=begun_s,
            took_s=time.monotonic() - begun_s,
        )
        return self.last

"""Who has closed the door: a drain by a call, an engine that rests, or the server itself.

A drain goes before a rest, so that a server that is drained and rests says that it drains, and one
that wakes up stays drained. A door that the server has closed itself, because it ends, nothing here
opens or closes again.
"""

from typing import Final

from serving.policy.admission.refusal import RefusalReason, Refused
from serving.server.control.call_failure import not_now
from serving.server.control.engine_admission import EngineDoor

RETRY_S: Final = 5.0
"""Wall seconds that clients are told to wait, when nobody says how many: a gateway looks for
another server meanwhile."""


class DoorClosing:
    """Closes and opens `door` for the control service's calls; None: requests pass no door."""

    def __init__(self, door: EngineDoor | None) -> None:
        self._door = door
        self._ours: Refused | None = None  # how it was closed from here
        self._drain: tuple[str, float] | None = None
        self._rest: str | None = None

    def drain(self, door: EngineDoor, words: str, retry_after_s: float) -> None:
        """Refuse new work until `undrain`; fails while the server keeps the door closed."""
        self._refuse_unless_ours(door)
        self._drain = (words, retry_after_s)
        self._apply(door)

    def undrain(self, door: EngineDoor) -> None:
        """Let it in again, unless the engine rests; fails as `drain` does."""
        self._refuse_unless_ours(door)
        self._drain = None
        self._apply(door)

    def rest(self, words: str | None) -> None:
        """The engine rests, in these words; None: it does not."""
        if self._door is not None and words != self._rest:
            self._rest = words
            self._apply(self._door)

    def _apply(self, door: EngineDoor) -> None:
        if door.closed is not None and door.closed is not self._ours:
            return  # the server's own
        if self._drain is not None:
            words, retry_after_s = self._drain
            door.close(RefusalReason.DRAINING, words, retry_after_s)
        elif self._rest is not None:
            door.close(RefusalReason.RESTING, self._rest, RETRY_S)
        else:
            door.open()
        self._ours = door.closed

    def _refuse_unless_ours(self, door: EngineDoor) -> None:
        if door.closed is not None and door.closed is not self._ours:
            raise not_now(f"the server has closed its door: {door.closed}")

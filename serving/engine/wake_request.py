"""The engine's request to be stepped by a scheduler that has nothing to compute.

The scheduler decides what is computed and when; the engine below it answers. Where the engine has
news for the scheduler, or goes on by itself (weights are read, a group comes back), it asks for a
step: an idle scheduler then makes one without tokens, whose report brings the news. Where nothing
but emulated time has to pass, the engine rests a moment in each such step, so that the process does
not spin; a paused scheduler, whose callers wait for it to be idle, makes none.
"""

from typing import Final
from weakref import WeakValueDictionary


class WakeRequest:
    """Whether the engine wants to be stepped although no request has anything to compute.

    `wanted` is for news that the scheduler has to hear now; `waits` says that something goes on by
    itself once time has passed. `paused` is the scheduler's word: it makes no step for time alone.
    """

    __slots__ = ("__weakref__", "paused", "waits", "wanted")

    def __init__(self) -> None:
        self.wanted = False
        self.waits = False
        self.paused = False

    def make(self) -> None:
        """Ask for a step: the engine's side."""
        self.wanted = True

    def wait(self) -> None:
        """Ask for steps as time passes: the engine's side."""
        self.waits = True

    def grant(self) -> None:
        """Note that a step is made: the scheduler's side."""
        self.wanted = self.waits = False


_REQUESTS: Final[WeakValueDictionary[str, WakeRequest]] = WeakValueDictionary()


def wake_request_of(instance: str) -> WakeRequest:
    """The one that engine and scheduler of vLLM's `instance` share.

    Both live in one process, and vLLM makes each without the other.
    """
    return _REQUESTS.setdefault(instance, WakeRequest())

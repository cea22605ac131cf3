"""The engine's request to be stepped by a scheduler that has nothing to compute.

An engine with news, or work of its own (a read of weights, a returning group), asks for a step
without tokens, whose report brings the news. To let emulated time pass, the engine rests a moment
in each such step, so that the process does not spin; a paused scheduler, whose callers wait for it
to be idle, makes none.
"""

from typing import Final
from weakref import WeakValueDictionary


class WakeRequest:
    """Whether the engine wants a step although no request has anything to compute.

    `wanted`: it has news. `waits`: something goes on once time has passed. `paused`, set by the
    scheduler: no step for time alone.
    """

    __slots__ = ("__weakref__", "paused", "waits", "wanted")

    def __init__(self) -> None:
        self.wanted = False
        self.waits = False
        self.paused = False

    def make(self) -> None:
        """Ask for a step (engine)."""
        self.wanted = True

    def wait(self) -> None:
        """Ask for steps as time passes (engine)."""
        self.waits = True

    def grant(self) -> None:
        """Note that a step is made (scheduler)."""
        self.wanted = self.waits = False


_REQUESTS: Final[WeakValueDictionary[str, WakeRequest]] = WeakValueDictionary()


def wake_request_of(instance: str) -> WakeRequest:
    """The request shared by engine and scheduler, which vLLM makes apart, in one process."""
    return _REQUESTS.setdefault(instance, WakeRequest())

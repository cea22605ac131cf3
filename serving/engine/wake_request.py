"""What engine and scheduler tell each other beside steps, first the request to be stepped.

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
    scheduler: no step for time alone. `continues`, set by the scheduler: work was left at the last
    step's end, and the next one begins there.
    """

    __slots__ = ("__weakref__", "continues", "paused", "waits", "wanted")

    def __init__(self) -> None:
        self.wanted = False
        self.waits = False
        self.paused = False
        self.continues = False

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

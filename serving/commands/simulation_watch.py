"""Progress of a simulation, what its machines do after faults, and the signals that end it."""

from __future__ import annotations

import logging
import signal
import sys
import time
from typing import Final, Self

SHOWN_EVERY_S: Final = 0.5
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class SimulationWatch:
    """Shows how far a run is, on a terminal, and what its machines do after faults; a first SIGINT
    or SIGTERM ends it with what there is.

    A second one does what it does without a watch. A context, of the main thread.
    """

    def __init__(self, requests: int) -> None:
        self.stopped: int | None = None
        """The number of the signal that ended the run."""
        self._requests = requests
        self._shown_s = time.perf_counter()
        self._shows = sys.stderr.isatty()

    def __enter__(self) -> Self:
        from serving.simulator.simulated_machine import RECOVERIES

        self._before = {each: signal.signal(each, self._stop) for each in SIGNALS}
        self._recoveries = logging.StreamHandler()
        RECOVERIES.addHandler(self._recoveries)
        return self

    def __exit__(self, *_: object) -> None:
        from serving.simulator.simulated_machine import RECOVERIES

        RECOVERIES.removeHandler(self._recoveries)
        self._restore()

    def _stop(self, number: int, _: object) -> None:
        self.stopped = number
        self._restore()

    def _restore(self) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def clear(self) -> None:
        """Remove the line of the progress."""
        if self._shows:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def look(self, done: int, emulated_s: float) -> None:
        """Show progress twice a second; raises StopSimulation after a signal."""
        from serving.simulator import StopSimulation

        if self.stopped is not None:
            raise StopSimulation
        if self._shows and time.perf_counter() - self._shown_s > SHOWN_EVERY_S:
            self._shown_s = time.perf_counter()
            shown = f"\r{done:,} of {self._requests:,} requests, {emulated_s:,.1f} s emulated"
            print(shown, end="", file=sys.stderr, flush=True)

"""Which of an engine's clients gets a step's statistics."""

import os
import time
from collections.abc import Iterable
from typing import Final

from serving.process.front_program import API_CLIENT, has_front

_EVERY_WALL_S: Final = 0.25
"""Of an API process that has no requests, behind a front that has them."""


class StatsClient:
    """The first that has outputs in the step; behind a front, which reads none, the API process.

    That gets the statistics of several steps at once while others have the requests, and the last.
    """

    def __init__(self) -> None:
        self._has_front = has_front(os.environ)
        self._due_s = 0.0

    def of(self, clients: Iterable[int], *, goes_on: bool) -> int | None:
        """The client of a step with outputs for `clients`; None: a later step's. `goes_on`: there
        are more requests.
        """
        with_outputs = list(clients)
        if not self._has_front:
            return with_outputs[0] if with_outputs else 0
        now_s = time.monotonic()
        if goes_on and now_s < self._due_s and API_CLIENT not in with_outputs:
            return None
        self._due_s = now_s + _EVERY_WALL_S
        return API_CLIENT

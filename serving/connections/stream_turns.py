"""Whose new call is on its way to the server: turns, given in turn to those who wait.

gRPC's server for Python takes calls one after the other, whoever's they are, at some 0.35 ms each,
and its core reads new ones a hundred times as fast. So calls wait here, each connection's by
themselves, and few are on their way at a time: who begins many waits for them itself.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from serving.admission.rate_budget import RateBudget

STRANGER_TURNS: Final = 16
"""At a time, of all connections that have shown no key: what keeps Python busy, and what another
one's call waits for, 16 times 0.35 ms."""

DOUBTFUL_TURNS: Final = 4
"""Of strangers whose last call had no answer, or was taken back before: such turns end by their
time alone, so these would keep the others from theirs."""

KEY_TURNS: Final = 32
"""Of all connections that have shown one and the same key."""

RESTED_S: Final = 1.0
"""Who has had no turn for so long is next. Less than the time between two checks of health, and
more than a connection waits between two turns when a thousand want them."""

STRANGERS_FRAMES_PER_S: Final = 10_000
"""Of all strangers together, beside those that each connection begins with: a tenth of a core."""


class Waiting(Protocol):
    """A connection with a call that waits."""

    turn_s: float  # when its last turn began, on the monotonic clock

    def turn_came(self) -> bool:
        """Begin now; whether it did. The turn is taken already, and given back where it did not."""


class StreamTurns:
    """Turns of one group of connections."""

    def __init__(self, turns: int, *, time_s: Callable[[], float]) -> None:
        self._turns = turns
        self._time_s = time_s
        self._taken = 0
        self._rested: deque[Waiting] = deque()
        self._others: deque[Waiting] = deque()
        self._rested_is_next = True

    @property
    def taken(self) -> int:
        """That have begun and not ended."""
        return self._taken

    def begin(self, one: Waiting) -> bool:
        """Take a turn if there is one; otherwise `one` is told when it has it."""
        if self._taken < self._turns and not (self._rested or self._others):
            self._take(one)
            return True
        is_rested = self._time_s() - one.turn_s >= RESTED_S
        (self._rested if is_rested else self._others).append(one)
        return False

    def end(self) -> None:
        """Give a turn back, to the next who waits."""
        self._taken -= 1
        while self._taken < self._turns and (self._rested or self._others):
            one = self._next()
            self._take(one)
            if not one.turn_came():  # its client has gone, or it waits for something else too
                self._taken -= 1

    def leave(self, one: Waiting) -> None:
        """Wait no more."""
        for queue in (self._rested, self._others):
            if one in queue:
                queue.remove(one)

    def _take(self, one: Waiting) -> None:
        self._taken += 1
        one.turn_s = self._time_s()

    def _next(self) -> Waiting:
        """By turns from the two queues: who makes one connection after the other is rested too."""
        use_rested = bool(self._rested) and (self._rested_is_next or not self._others)
        self._rested_is_next = not use_rested
        return (self._rested if use_rested else self._others).popleft()


class PortTurns:
    """The turns of one port: those of strangers, of doubtful ones, and of each key; and the pace of
    all strangers' other frames together.
    """

    def __init__(self, *, time_s: Callable[[], float]) -> None:
        self._time_s = time_s
        self.frames = RateBudget.full(STRANGERS_FRAMES_PER_S, time_s(), period_s=1.0)
        self.strangers = StreamTurns(STRANGER_TURNS, time_s=time_s)
        self.doubtful = StreamTurns(DOUBTFUL_TURNS, time_s=time_s)
        self._keys: dict[str, StreamTurns] = {}

    def of_key(self, name: str) -> StreamTurns:
        """Those of the key of that name."""
        turns = self._keys.get(name)
        if turns is None:
            turns = self._keys[name] = StreamTurns(KEY_TURNS, time_s=self._time_s)
        return turns

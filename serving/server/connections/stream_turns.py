"""Turns of new calls on their way to the server, given in turn to the connections that wait.

gRPC's server for Python takes calls of all clients one after the other, at some 0.35 ms each,
and its core reads new ones a hundred times as fast. So calls wait here, each connection's by
themselves, and few are on their way at a time: a client of many calls waits for itself. Calls that
are answered at once would still have the server do nothing else, so strangers' have a pace too.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from serving.policy.admission.rate_budget import RateBudget

STRANGER_TURNS: Final = 16
"""At a time, of all connections that have shown no key: what keeps Python busy, and what another
one's call waits for, 16 times 0.35 ms."""

DOUBTFUL_TURNS: Final = 4
DOUBTFUL_PERIOD_S: Final = 0.05
"""Of strangers whose last call was taken back before its answer, or not taken by the server in its
time, and as many in each period: they would keep the others from their turns and their pace."""

KEY_TURNS: Final = 32
"""Of all connections that have shown one and the same key."""

RESTED_S: Final = 1.0
"""A connection without a turn for so long is next. Less than the time between two checks of health,
and more than a connection waits between two turns when a thousand want them."""

STRANGERS_CALLS: Final = 64
STRANGERS_CALLS_PERIOD_S: Final = 0.25
"""Of all strangers beside the doubtful: 256 a second, a tenth of a core at 0.35 ms each, and 64 at
once, for which others wait then. Any number of probes is far below, and the first call of every
connection with a key counts here."""

_PACE_WAIT_S: Final = 0.005
"""Until those whose time has come since begin: few timers, also where hundreds wait."""

STRANGERS_FRAMES_PER_S: Final = 10_000
"""Of all strangers together, beside those that each connection begins with: a tenth of a core."""


class Timer(Protocol):
    """A call that is to happen later."""

    def cancel(self) -> None:
        """It is not."""


class GateClock(Protocol):
    """An event loop's time."""

    def time(self) -> float:
        """Seconds, which never go back."""

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Timer:
        """Call it then."""


class Waiting(Protocol):
    """A connection with a call that waits."""

    turn_s: float  # when its last turn began, on the monotonic clock

    def turn_came(self) -> bool:
        """Begin now; whether it did. The turn is taken already, and given back where it did not."""


class StreamTurns:
    """Turns of one group of connections, and the pace at which they begin, where there is one."""

    def __init__(self, turns: int, clock: GateClock, pace: RateBudget | None = None) -> None:
        self._turns = turns
        self._clock = clock
        self._pace = pace
        self._pause: Timer | None = None
        self._taken = 0
        self._rested: deque[Waiting] = deque()
        self._others: deque[Waiting] = deque()
        self._rested_is_next = True

    @property
    def taken(self) -> int:
        """That have begun and not ended."""
        return self._taken

    def begin(self, one: Waiting) -> bool:
        """Take a turn if there is one; otherwise `one.turn_came` is called with it."""
        if not (self._rested or self._others) and self._is_free():
            self._take(one)
            return True
        is_rested = self._clock.time() - one.turn_s >= RESTED_S
        (self._rested if is_rested else self._others).append(one)
        return False

    def end(self) -> None:
        """Give a turn back, to the next who waits."""
        self._taken -= 1
        self._go_on()

    def leave(self, one: Waiting) -> None:
        """Wait no more."""
        for queue in (self._rested, self._others):
            if one in queue:
                queue.remove(one)

    def _go_on(self) -> None:
        while (self._rested or self._others) and self._is_free():
            one = self._next()
            self._take(one)
            if not one.turn_came():  # its client has gone, or it waits for something else too
                self._taken -= 1
                if self._pace is not None:
                    self._pace.take(-1, self._clock.time())

    def _is_free(self) -> bool:
        """Whether one may begin now; where time alone is in the way, who waits goes on with it."""
        if self._taken >= self._turns:
            return False
        if self._pace is None or self._pace.left(self._clock.time()) >= 1:
            return True
        if self._pause is None:
            self._pause = self._clock.call_later(_PACE_WAIT_S, self._pause_over)
        return False

    def _pause_over(self) -> None:
        self._pause = None
        self._go_on()

    def _take(self, one: Waiting) -> None:
        self._taken += 1
        one.turn_s = self._clock.time()
        if self._pace is not None:
            self._pace.take(1, one.turn_s)

    def _next(self) -> Waiting:
        """By turns from the two queues: who makes one connection after the other is rested too."""
        use_rested = bool(self._rested) and (self._rested_is_next or not self._others)
        self._rested_is_next = not use_rested
        return (self._rested if use_rested else self._others).popleft()


class PortTurns:
    """The turns of one port: those of strangers, of doubtful ones, and of each key; and the pace of
    all strangers' other frames together.
    """

    def __init__(self, clock: GateClock) -> None:
        self._clock = clock
        now_s = clock.time()
        self.frames = RateBudget.full(STRANGERS_FRAMES_PER_S, now_s, period_s=1.0)
        pace = RateBudget.full(STRANGERS_CALLS, now_s, period_s=STRANGERS_CALLS_PERIOD_S)
        self.strangers = StreamTurns(STRANGER_TURNS, clock, pace)
        pace = RateBudget.full(DOUBTFUL_TURNS, now_s, period_s=DOUBTFUL_PERIOD_S)
        self.doubtful = StreamTurns(DOUBTFUL_TURNS, clock, pace)
        self._keys: dict[str, StreamTurns] = {}

    def of_key(self, name: str) -> StreamTurns:
        """Those of the key of that name."""
        turns = self._keys.get(name)
        if turns is None:
            turns = self._keys[name] = StreamTurns(KEY_TURNS, self._clock)
        return turns

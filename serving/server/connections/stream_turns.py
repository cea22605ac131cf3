"""Turns of new calls on their way to the server, dealt to waiting connections.

gRPC's Python server takes all clients' calls one after the other, at some 0.35 ms each; its core
reads new ones a hundred times as fast. So calls wait here per connection, with few on their way: a
client of many calls waits for itself. Even calls answered at once occupy the server, so strangers'
have a rate limit.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from serving.policy.admission.rate_limiter import RateBudget

STRANGER_TURNS: Final = 16
"""Of all strangers: keeps Python busy; another's call waits 16 times 0.35 ms."""

DOUBTFUL_TURNS: Final = 4
DOUBTFUL_PERIOD_S: Final = 0.05
"""Turns, also per period, of strangers whose last call was cancelled before its answer or not taken
in time; else they would take the others'.
"""

KEY_TURNS: Final = 32
"""Of all connections with one key."""

RESTED_S: Final = 1.0
"""A connection without a turn for so long is next: less than between two health checks, more than
between two turns among a thousand connections.
"""

STRANGERS_CALLS: Final = 64
STRANGERS_CALLS_PERIOD_S: Final = 0.25
"""Of all strangers but the doubtful: 256 a second, a tenth of a core at 0.35 ms each, in bursts of
64. Far above any number of probes; counts the first call of every connection with a key.
"""

_PACE_WAIT_S: Final = 0.005
"""Batches due calls: few timers, also with hundreds waiting."""

STRANGERS_FRAMES_PER_S: Final = 10_000
"""Of all strangers, besides connections' first frames: a tenth of a core."""


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Cancel it."""


class GateClock(Protocol):
    """An event loop's clock."""

    def time(self) -> float:
        """Monotonic seconds."""

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Timer:
        """Schedule a call."""


class Waiting(Protocol):
    """A connection with a waiting call."""

    turn_s: float  # when its last turn began, on the monotonic clock

    def turn_came(self) -> bool:
        """Begin now, with a turn already taken; False gives it back."""


class StreamTurns:
    """Turns of one group of connections, with an optional rate limit."""

    def __init__(self, turns: int, clock: GateClock, pace: RateBudget | None = None) -> None:
        self._turns = turns
        self._clock = clock
        self._pace = pace
        self._pause: Timer | None = None
        self.taken = 0  # turns in use
        self._rested: deque[Waiting] = deque()
        self._others: deque[Waiting] = deque()
        self._rested_is_next = True

    def begin(self, one: Waiting) -> bool:
        """Take a free turn, or queue for `one.turn_came`."""
        if not (self._rested or self._others) and self._is_free():
            self._take(one)
            return True
        is_rested = self._clock.time() - one.turn_s >= RESTED_S
        (self._rested if is_rested else self._others).append(one)
        return False

    def end(self) -> None:
        """Give a turn to the next in the queue."""
        self.taken -= 1
        self._go_on()

    def leave(self, one: Waiting) -> None:
        """Leave the queue."""
        for queue in (self._rested, self._others):
            if one in queue:
                queue.remove(one)

    def _go_on(self) -> None:
        while (self._rested or self._others) and self._is_free():
            one = self._next()
            self._take(one)
            if not one.turn_came():  # its client has gone, or it waits for something else too
                self.taken -= 1
                if self._pace is not None:
                    self._pace.take(-1, self._clock.time())

    def _is_free(self) -> bool:
        """Whether a call may begin; schedules the queue where only time is missing."""
        if self.taken >= self._turns:
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
        self.taken += 1
        one.turn_s = self._clock.time()
        if self._pace is not None:
            self._pace.take(1, one.turn_s)

    def _next(self) -> Waiting:
        """Alternates between the queues: a client of ever new connections is rested too."""
        use_rested = bool(self._rested) and (self._rested_is_next or not self._others)
        self._rested_is_next = not use_rested
        return (self._rested if use_rested else self._others).popleft()


class PortTurns:
    """One port's turns, of strangers, doubtful ones and each key, and all strangers' frame rate."""

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
        """The turns of one key's connections."""
        turns = self._keys.get(name)
        if turns is None:
            turns = self._keys[name] = StreamTurns(KEY_TURNS, self._clock)
        return turns

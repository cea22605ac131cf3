"""Decides which of a client's HTTP/2 frames may pass to the server now. Pure, with a given clock.

A new stream needs a turn (`stream_turns`), which ends with the server's first answer, when the
server has taken the call, or after HOLD_S. A stream cancelled before keeps its turn: the server has
the work; its stranger then waits with other doubtful ones until it has an answer. Frames that cost
the receiver more than the sender have a rate limit far above honest use. A waiting connection is
not read, so none is refused.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, NamedTuple

from serving.policy.admission.rate_limiter import RateBudget
from serving.server.connections.frame_heads import (
    CONTINUATION,
    DATA,
    HEADERS,
    RST_STREAM,
    HeldFrames,
)
from serving.server.connections.stream_turns import GateClock, PortTurns, StreamTurns, Timer

HOLD_S: Final = 0.05
"""A turn's limit: longer than a busy server takes for the calls before it. Measured in the server's
event loop, so a stalled one begins no calls.
"""

BLOCK_BYTES_MAX: Final = 64 * 2**10
"""Of a call's encoded headers: four times the server's limit, so that it can refuse an honest
client. Longer ones end the connection.
"""

SMALL_BYTES: Final = 256
"""A smaller DATA frame costs as much as an empty one."""

STRANGER_FRAMES_PER_S: Final = 1_000
KEY_FRAMES_PER_S: Final = 10_000
"""Besides new streams' frames: pings answered and windows widened."""

STREAM_FRAMES: Final = 8
"""With each stream: its message, window updates, a ping."""

FIRST_FRAMES: Final = 64
"""Of a connection, and STREAM_FRAMES more per call, exempt from the rate of all strangers: a flood
does not keep out a new client.
"""

_PACE_WAIT_S: Final = 0.1
"""Batches frames: few timers, also of many connections."""


class BadHeaders(Exception):
    """Endless headers, or a stream that no client may begin."""


class _Turn(NamedTuple):
    """A stream's turn, and the timer that ends it."""

    turns: StreamTurns
    timer: Timer


class StreamGate:
    """Of one connection, a stranger's until it shows a key; calls `go_on` when more may pass."""

    def __init__(self, port: PortTurns, clock: GateClock, go_on: Callable[[], None]) -> None:
        self.turn_s = float("-inf")
        self.is_stranger = True
        self._port = port
        self._turns = port.strangers
        self._clock = clock
        self._go_on = go_on
        self._frames = HeldFrames()
        self._pace = RateBudget.full(STRANGER_FRAMES_PER_S, clock.time(), period_s=1.0)
        self._block_bytes = 0  # of the newest headers
        self._under_way: dict[int, _Turn] = {}  # by stream, the oldest first
        self._taken_back: dict[int, _Turn] = {}
        self._free_frames = FIRST_FRAMES
        self._unanswered = 0  # the newest stream whose turn was over before its answer
        self._has_turn = False  # within `turn_came`, until a stream uses it
        self.is_queued = False
        self._is_jammed = False
        self._pause: Timer | None = None

    @property
    def waits(self) -> bool:
        """Whether to stop reading now."""
        return self.is_queued or self._pause is not None or self._is_stuck

    @property
    def _is_stuck(self) -> bool:
        return self._is_jammed and self.is_stranger

    def take(self, data: bytes) -> bytes:
        """All bytes that may pass, the possibly empty `data` last; raises BadHeaders."""
        self._frames.take(data)
        return b"" if self.waits else self._frames.passing(self._may_pass)

    def jammed(self, *, is_jammed: bool) -> None:
        """Whether the client's buffer is full; a stranger then begins nothing."""
        self._is_jammed = is_jammed
        if self._is_stuck:
            self._forget_waiting()
        elif not is_jammed:
            self._go_on_if_open()

    def answered(self, streams: Iterable[int]) -> None:
        """The server has answered or ended these."""
        for stream in streams:
            if stream in self._under_way:
                self._doubt(is_doubtful=False)
                self._end(self._under_way, stream)
            elif stream == self._unanswered:
                self._unanswered = 0
                self._doubt(is_doubtful=False)

    def took(self) -> None:
        """The server has taken a call, the oldest: ends its turn."""
        if held := [each for each in (self._under_way, self._taken_back) if each]:
            oldest = min(held, key=lambda each: next(iter(each)))
            stream = next(iter(oldest))
            if oldest is self._under_way:
                self._unanswered = stream
            self._end(oldest, stream)

    def showed(self, key: str) -> None:
        """The server has taken a call with this key; the first key owns the connection."""
        if self.is_stranger:
            self.is_stranger = False
            self._pace = RateBudget.full(KEY_FRAMES_PER_S, self._clock.time(), period_s=1.0)
            self._wait_for(self._port.of_key(key))
            self._go_on_if_open()  # what a stranger waits for, the holder of a key need not
        self.took()

    def turn_came(self) -> bool:
        """Begin the waiting stream if it still can; whether it did."""
        self.is_queued, self._has_turn = False, True
        self._go_on()
        was_used, self._has_turn = not self._has_turn, False
        return was_used

    def leave(self) -> None:
        """The connection has ended; its streams keep their turns, as the server has them."""
        self._forget_waiting()
        if self._pause is not None:
            self._pause.cancel()

    def _go_on_if_open(self) -> None:
        if not self.waits:
            self._go_on()

    def _doubt(self, *, is_doubtful: bool) -> None:
        if self.is_stranger:
            self._wait_for(self._port.doubtful if is_doubtful else self._port.strangers)

    def _wait_for(self, turns: StreamTurns) -> None:
        if turns is not self._turns:
            was_queued = self.is_queued
            self._forget_waiting()
            self._turns = turns
            if was_queued:
                self._go_on()

    def _forget_waiting(self) -> None:
        if self.is_queued:
            self.is_queued = False
            self._turns.leave(self)

    def _may_pass(self, kind: int, stream: int, payload_bytes: int) -> bool:
        if kind == DATA and payload_bytes >= SMALL_BYTES:
            return True
        if kind == HEADERS:  # trailers too, of which gRPC's clients send none
            return self._may_begin(stream, payload_bytes)
        if not self._has_pace():
            return False
        if kind == CONTINUATION:
            self._block_bytes += payload_bytes
            if self._block_bytes > BLOCK_BYTES_MAX:
                raise BadHeaders
        elif kind == RST_STREAM:
            self._take_back(stream)
        return True

    def _take_back(self, stream: int) -> None:
        """The client cancels a stream, possibly before an answer."""
        if stream in self._under_way:
            self._taken_back[stream] = self._under_way.pop(stream)
        elif stream == self._unanswered:
            self._unanswered = 0
        else:
            return
        self._doubt(is_doubtful=True)

    def _may_begin(self, stream: int, payload_bytes: int) -> bool:
        if stream % 2 == 0:
            raise BadHeaders
        if not self._has_turn and not self._turns.begin(self):
            self.is_queued = True
            return False
        self._has_turn = False
        for held in (self._under_way, self._taken_back):
            self._end(held, stream)
        self._block_bytes = payload_bytes
        self._pace.take(-STREAM_FRAMES, self._clock.time())
        self._free_frames = min(self._free_frames + STREAM_FRAMES, FIRST_FRAMES)
        timer = self._clock.call_later(HOLD_S, partial(self._hold_over, stream))
        self._under_way[stream] = _Turn(self._turns, timer)
        return True

    def _hold_over(self, stream: int) -> None:
        held = self._under_way if stream in self._under_way else self._taken_back
        if held is self._under_way:
            self._unanswered = stream
        self._doubt(is_doubtful=True)
        self._end(held, stream)

    def _end(self, held: dict[int, _Turn], stream: int) -> None:
        turn = held.pop(stream, None)
        if turn is not None:  # a turn that came meanwhile may have ended it
            turn.timer.cancel()
            turn.turns.end()

    def _has_pace(self) -> bool:
        now_s = self._clock.time()
        is_free = self._free_frames > 0 or not self.is_stranger
        budgets = (self._pace,) if is_free else (self._pace, self._port.frames)
        if any(budget.left(now_s) < 1 for budget in budgets):
            self._pause = self._clock.call_later(_PACE_WAIT_S, self._pause_over)
            return False
        for budget in budgets:
            budget.take(1, now_s)
        self._free_frames = max(0, self._free_frames - 1)
        return True

    def _pause_over(self) -> None:
        self._pause = None
        self._go_on_if_open()

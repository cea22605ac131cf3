"""What of one client's HTTP/2 may go on to the server now. Pure but for the clock that it is given.

A new stream needs a turn (`stream_turns`), which ends with the server's first answer to it, when
the server says that it has taken the call, or after HOLD_S. A stream that its client takes back
before keeps its turn for all of that: the server has the work. A stranger of whom that is true
waits with its like from then on, until it has an answer. Frames that cost the receiver more
than the sender have a pace, far above what a client's calls bring. What waits is not read any
further, so none is refused.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, NamedTuple

from serving.policy.admission.rate_budget import RateBudget
from serving.server.connections.frame_heads import (
    CONTINUATION,
    DATA,
    HEADERS,
    RST_STREAM,
    HeldFrames,
)
from serving.server.connections.stream_turns import GateClock, PortTurns, StreamTurns, Timer

HOLD_S: Final = 0.05
"""Of a turn, at most: some time more than a server that is busy takes for the calls before it. It
counts in the server's own event loop, so one that stands still begins no calls either."""

BLOCK_BYTES_MAX: Final = 64 * 2**10
"""Of a call's headers as they are sent: four times what the server takes, so that it can still say
so to an honest client. Longer ones end the connection."""

SMALL_BYTES: Final = 256
"""A DATA frame with less costs about what one with nothing does."""

STRANGER_FRAMES_PER_S: Final = 1_000
KEY_FRAMES_PER_S: Final = 10_000
"""Beside new streams and what comes with them; a client answers pings, and widens windows."""

STREAM_FRAMES: Final = 8
"""That come with a stream: its message, its window's updates, a ping."""

FIRST_FRAMES: Final = 64
"""Of a connection, and STREAM_FRAMES more with each call, that the pace of all strangers does not
count: who makes a connection and calls is not kept by those who send frames without end."""

_PACE_WAIT_S: Final = 0.1
"""Until what has come since goes on at once: few timers, also of many connections."""


class BadHeaders(Exception):
    """The headers of a call do not end, or are of a stream that no client may begin."""


class _Turn(NamedTuple):
    """One that a stream has, and what ends it at the latest."""

    turns: StreamTurns
    timer: Timer


class StreamGate:
    """Of one connection, a stranger's until a key is shown on it; `go_on` is called when more of
    what has come may pass.
    """

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
        """Whether no more is to be read now."""
        return self.is_queued or self._pause is not None or self._is_stuck

    @property
    def _is_stuck(self) -> bool:
        return self._is_jammed and self.is_stranger

    def take(self, data: bytes) -> bytes:
        """What goes on of all that has come, `data` last, which may be empty; raises BadHeaders."""
        self._frames.take(data)
        return b"" if self.waits else self._frames.passing(self._may_pass)

    def jammed(self, *, is_jammed: bool) -> None:
        """Whether the client leaves unread what the server says; a stranger begins nothing then."""
        self._is_jammed = is_jammed
        if self._is_stuck:
            self._forget_waiting()
        elif not is_jammed:
            self._go_on_if_open()

    def answered(self, streams: Iterable[int]) -> None:
        """The server has answered these, or ended them."""
        for stream in streams:
            if stream in self._under_way:
                self._doubt(is_doubtful=False)
                self._end(self._under_way, stream)
            elif stream == self._unanswered:
                self._unanswered = 0
                self._doubt(is_doubtful=False)

    def took(self) -> None:
        """The server has taken a call: the oldest's turn is over, as it takes them in order."""
        if held := [each for each in (self._under_way, self._taken_back) if each]:
            oldest = min(held, key=lambda each: next(iter(each)))
            stream = next(iter(oldest))
            if oldest is self._under_way:
                self._unanswered = stream
            self._end(oldest, stream)

    def showed(self, key: str) -> None:
        """The server has taken a call with a key that it knows, of this name. The first key is
        whose the connection is.
        """
        if self.is_stranger:
            self.is_stranger = False
            self._pace = RateBudget.full(KEY_FRAMES_PER_S, self._clock.time(), period_s=1.0)
            self._wait_for(self._port.of_key(key))
            self._go_on_if_open()  # what a stranger waits for, the holder of a key need not
        self.took()

    def turn_came(self) -> bool:
        """The stream that waits begins, if it still can; whether it did."""
        self.is_queued, self._has_turn = False, True
        self._go_on()
        was_used, self._has_turn = not self._has_turn, False
        return was_used

    def leave(self) -> None:
        """The connection is over; what it has under way keeps its turns, as the server has it."""
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
        """Its client no longer wants an answer, and may have had none."""
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

"""What API processes tell the one that has admission, and its answers: frames of msgpack.

A frame is its length, four bytes, and a list of messages: those of one turn of an event loop. The
socket lies in a directory of this user's, and a message becomes one of these types or is refused.
"""

import asyncio
import logging
import struct
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import msgspec

from serving.policy.admission.entry import Counted, Outcome
from serving.policy.admission.refusal import RateState, RefusalReason, Refused
from serving.policy.admission.work import Work, WorkClass
from serving.telemetry.latency_window import RequestTimes

logger = logging.getLogger(f"vllm.{__name__}")  # below a name that the server's process shows

T = TypeVar("T")


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """One message."""


class ToldRefusal(_Message, frozen=True):
    """A `Refused`, which as an exception does not travel."""

    reason: RefusalReason
    words: str
    retry_after_s: float
    rate: RateState

    @classmethod
    def of(cls, refused: Refused) -> "ToldRefusal":
        """Of one that was raised."""
        return cls(refused.reason, str(refused), refused.retry_after_s, refused.rate)

    def refused(self) -> Refused:
        """One to be raised."""
        return Refused(self.reason, self.words, retry_after_s=self.retry_after_s, rate=self.rate)


class Enter(_Message, frozen=True):
    """Ask for a permit, which the asking process numbers."""

    number: int
    work: Work


class Declare(_Message, frozen=True):
    """The exact work that the engine is about to get; answered by `Declared`."""

    number: int
    counted: list[Counted]


class Begin(_Message, frozen=True):
    """The engine has taken sequences."""

    number: int
    counted: Counted


class FirstToken(_Message, frozen=True):
    """A sequence has its first token."""

    number: int


class Made(_Message, frozen=True):
    """Tokens that were made since the last such message, by permit."""

    tokens: dict[int, int]


class End(_Message, frozen=True):
    """A sequence has ended."""

    number: int
    made_tokens: int
    by_itself: bool


class Leave(_Message, frozen=True):
    """A request is over."""

    number: int
    outcome: Outcome


class CountRefusal(_Message, frozen=True):
    """A request was refused before it asked for a permit."""

    refusal: ToldRefusal
    work_class: WorkClass


class Times(_Message, frozen=True):
    """Latencies of a step's requests."""

    times: RequestTimes


class ClientsHeld(_Message, frozen=True):
    """What clients make the process hold."""

    keyed_bytes: int
    stranger_bytes: int
    strangers: int


class AskPage(_Message, frozen=True):
    """Ask for the page of metrics."""

    number: int


FromProcess = (
    Enter
    | Declare
    | Begin
    | FirstToken
    | Made
    | End
    | Leave
    | CountRefusal
    | Times
    | ClientsHeld
    | AskPage
)


class Entered(_Message, frozen=True):
    """The permit; `is_queued`: batch work, whose `TurnCame` follows."""

    number: int
    rate: RateState
    is_queued: bool


class Denied(_Message, frozen=True):
    """No permit."""

    number: int
    refusal: ToldRefusal


class Declared(_Message, frozen=True):
    """The declared work may go to the engine, or is refused."""

    number: int
    refusal: ToldRefusal | None


class TurnCame(_Message, frozen=True):
    """Batch work's turn, or the end of its waiting."""

    number: int
    refusal: ToldRefusal | None


class Closed(_Message, frozen=True):
    """Why new work is refused; None while it is not."""

    refusal: ToldRefusal | None


class Page(_Message, frozen=True):
    """The page of metrics; its status, content type and text."""

    number: int
    status: int
    content_type: str
    text: bytes


class EndRequests(_Message, frozen=True):
    """Abort all requests, or fail them where the engine `is_gone`."""

    is_gone: bool


class EndProcess(_Message, frozen=True):
    """End; connections of clients that do not read are cut after so long."""

    close_wall_s: int


FromAdmission = Entered | Denied | Declared | TurnCame | Closed | Page | EndRequests | EndProcess

_HEAD: Final = struct.Struct("<I")

FRAME_BYTES_MAX: Final = 64 * 2**20
"""Of a frame that is read. Assumed: far above a page of metrics, the longest of messages."""


class PermitChannel(asyncio.Protocol, Generic[T]):
    """One end of a connection: sends a turn's messages together, and hands on those that come.

    A frame longer than FRAME_BYTES_MAX closes it.
    """

    def __init__(
        self,
        kind: Any,
        *,
        on_message: Callable[[T], None],
        on_lost: Callable[[], None],
        on_open: Callable[[], None] = lambda: None,
    ) -> None:
        self._decoder: msgspec.msgpack.Decoder[list[T]] = msgspec.msgpack.Decoder(list[kind])
        self._encoder = msgspec.msgpack.Encoder()
        self._on_message, self._on_lost, self._on_open = on_message, on_lost, on_open
        self._unsent: list[Any] = []
        self._came = bytearray()
        self._transport: asyncio.Transport | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is a connection."""
        return self._transport is not None

    def send(self, message: Any) -> None:
        """Send with the turn's others; dropped where nobody is there any more."""
        if self._transport is None:
            return
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self.flush)
        self._unsent.append(message)

    def flush(self) -> None:
        """Send what is to be sent now."""
        unsent, self._unsent = self._unsent, []
        if unsent and self._transport is not None:
            frame = self._encoder.encode(unsent)
            self._transport.write(_HEAD.pack(len(frame)) + frame)

    def close(self) -> None:
        """Send the rest, and close; idempotent."""
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = transport  # type: ignore[assignment]  # uvloop's is none by its class
        self._on_open()

    def connection_lost(self, error: Exception | None) -> None:
        """End."""
        del error
        self._transport = None
        self._on_lost()

    def data_received(self, data: bytes) -> None:
        """Hand on the messages of the frames that are whole."""
        self._came += data
        begin = 0
        while len(self._came) - begin >= _HEAD.size:
            (length,) = _HEAD.unpack_from(self._came, begin)
            if length > FRAME_BYTES_MAX:
                logger.error("a frame of %d bytes closes a connection of permits", length)
                self._came.clear()
                self.close()
                return
            end = begin + _HEAD.size + length
            if len(self._came) < end:
                break
            for message in self._decoder.decode(memoryview(self._came)[begin + _HEAD.size : end]):
                self._on_message(message)
            begin = end
        del self._came[:begin]

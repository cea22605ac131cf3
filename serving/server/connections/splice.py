"""Two connections become one: what comes over either goes out over the other, no faster than that.

Neither side is read while the other one's buffer is full, so that a slow reader holds its writer
back as it would without us. An end is handed on as an end, a loss as a close.
"""

import asyncio
from typing import Final, cast

FLUSH_WALL_S_MAX: Final = 5.0
"""What a side has to take the last bytes once the other one has gone; then it is cut off."""


class SplicedSide(asyncio.Protocol):
    """One of the two; `spliced` makes them each other's before anything comes."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._other: SplicedSide | None = None
        self._at_end = False
        self._cut_off: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own is no subclass

    def data_received(self, data: bytes) -> None:
        """Hand it on."""
        if (to := self._open_beyond()) is not None:
            to.write(data)

    def pause_writing(self) -> None:
        """This side is slow: the other one is not read."""
        if self._other is not None:
            self._other.hold()

    def resume_writing(self) -> None:
        """This side has caught up."""
        if self._other is not None:
            self._other.release()

    def hold(self) -> None:
        """Do not read this side: the other one takes no more."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def release(self) -> None:
        """Read on."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        """The end of this direction; True: the other direction goes on, which TLS does not know."""
        to, self._at_end = self._open_beyond(), True
        assert self._other is not None
        if to is None or self._other._at_end or not to.can_write_eof():
            return False  # which closes this side, and with it the other
        to.write_eof()
        assert self._transport is not None
        return self._transport.get_extra_info("sslcontext") is None

    def connection_lost(self, error: Exception | None) -> None:
        """Let the other side have what has come, and the end."""
        del error
        self._transport = None
        if self._cut_off is not None:
            self._cut_off.cancel()
        if self._other is not None:
            self._other.close()

    def close(self) -> None:
        """End this side with what it still has to send, or without when it does not take it."""
        transport = self._transport
        if transport is None or self._cut_off is not None:
            return
        transport.close()
        loop = asyncio.get_running_loop()
        self._cut_off = loop.call_later(FLUSH_WALL_S_MAX, transport.abort)

    def _open_beyond(self) -> asyncio.Transport | None:
        to = None if self._other is None else self._other._transport
        return None if to is None or to.is_closing() else to


def spliced(one: SplicedSide, other: SplicedSide) -> None:
    """Make the two each other's."""
    one._other, other._other = other, one

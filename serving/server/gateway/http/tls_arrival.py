"""A connection from its acceptance to the end of its TLS handshake, counted and timed.

uvicorn leaves the handshake to the event loop, uncounted and with a minute's time. Here the
connection is accepted in plain text, and begins TLS itself.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, cast

from serving.server.gateway.ingress_account import Holding, IngressAccount
from serving.server.gateway.ingress_limits import Limit


class _Early(asyncio.Protocol):
    """Keeps data that comes with the handshake's end."""

    def __init__(self) -> None:
        self.data = b""
        self.is_lost = False

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, error: Exception | None) -> None:
        del error
        self.is_lost = True


class TlsArrival(asyncio.Protocol):
    """One connection; `make` gives the protocol within TLS."""

    def __init__(
        self,
        make: Callable[[], asyncio.Protocol],
        context: ssl.SSLContext,
        account: IngressAccount,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._make = make
        self._context = context
        self._account = account
        self._loop = loop
        self._holding: Holding | None = None
        self._transport: asyncio.Transport | None = None
        self._first = b""
        self._shaking: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count it as a stranger, and begin."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own is no subclass
        self._holding = self._account.arrive(self)
        self._shaking = self._loop.create_task(self._shake_hands(self._transport))

    def data_received(self, data: bytes) -> None:
        """Keep the handshake's first bytes, which uvloop reads even while reading is paused."""
        self._first += data

    def cut_off(self, limit: Limit) -> None:
        """Close it at once: the account needs the room."""
        del limit
        assert self._transport is not None
        self._transport.abort()

    async def _shake_hands(self, transport: asyncio.Transport) -> None:
        early = _Early()
        shaking = self._loop.create_task(
            self._loop.start_tls(
                transport,
                early,
                self._context,
                server_side=True,
                ssl_handshake_timeout=self._account.limits.handshake_wait_s,
            )
        )
        try:
            for _ in range(2):  # the handshake's protocol is the transport's, then it has begun
                await asyncio.sleep(0)
            self._hand_on(transport.get_protocol())
            secure = await shaking
            if secure is not None and not early.is_lost:
                self._begin(secure, early)
        except OSError as error:  # ssl.SSLError, ConnectionError and TimeoutError are
            if "handshake" in str(error) and isinstance(error, ConnectionAbortedError):
                self._account.refuse(Limit.HANDSHAKE_TIME)
            transport.abort()
        except BaseException:  # a fault of ours, which the loop tells, or the server's end
            transport.abort()
            raise
        finally:
            if not shaking.cancel() and not shaking.cancelled():
                shaking.exception()  # one that is not read is told as if nobody knew
            assert self._holding is not None
            self._account.leave(self._holding)

    def _begin(self, secure: asyncio.Transport, early: _Early) -> None:
        assert self._holding is not None
        self._account.leave(self._holding)
        protocol = self._make()
        protocol.connection_made(secure)
        secure.set_protocol(protocol)
        if early.data:
            protocol.data_received(early.data)

    def _hand_on(self, handshake: Any) -> None:
        first, self._first = memoryview(self._first), b""
        while first and hasattr(handshake, "get_buffer"):  # uvloop's own is no BufferedProtocol
            room = memoryview(handshake.get_buffer(len(first)))
            size_bytes = min(len(room), len(first))
            room[:size_bytes] = first[:size_bytes]
            handshake.buffer_updated(size_bytes)
            first = first[size_bytes:]

"""uvicorn's HTTP/1 connection with limits on heads, pipelining, strangers' bodies, slow readers.

uvicorn prefers httptools, whose parser bounds neither size nor time of a head; vLLM's `--h11-max-*`
flags reach an unused one. This class, `uvicorn.Config.http_protocol_class`, counts heads in one
`IngressAccount` and authenticates by them: a stranger's body is discarded as it comes.
"""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from serving.server.gateway.http.asgi import Scope
from serving.server.gateway.http.http_errors import answer
from serving.server.gateway.http.http_refusals import error_of_limit, raw_answer
from serving.server.gateway.http.tls_arrival import TlsArrival
from serving.server.gateway.http.written_body import WRITTEN_BODY, WrittenBody
from serving.server.gateway.ingress_account import Holding, IngressAccount
from serving.server.gateway.ingress_limits import Limit

_PART_BYTES: Final = 64 * 2**10
"""Bytes given to the parser at once, and so the precision of what it holds."""

_VLLM_HEAD_BYTES: Final = 4 * 2**20
"""vLLM's H11_MAX_INCOMPLETE_EVENT_SIZE_DEFAULT, which vLLM sets without a flag."""

_FIELD_BYTES: Final = 256
"""Overhead of a head's field: two bytes objects and a tuple."""


@dataclass(frozen=True, slots=True)
class HttpIngress:
    """State shared by a server's connections.

    `key_of` names the key that a scope shows, None for a stranger's; a websocket's path is "".
    """

    account: IngressAccount
    key_of: Callable[[Scope], str | None]


def bound_connections(
    config: uvicorn.Config, ingress: HttpIngress, tls: Callable[[], ssl.SSLContext] | None = None
) -> None:
    """Make every later connection one of ours; vLLM's flags about heads hold, if given.

    To be called before uvicorn listens, whose own TLS is not used: `tls` gives the context of each
    connection, None: plain text.
    """
    limits = ingress.account.limits
    head_bytes_max = getattr(config, "h11_max_incomplete_event_size", None)
    head_fields_max = getattr(config, "h11_max_header_count", None)
    if head_bytes_max == _VLLM_HEAD_BYTES:
        head_bytes_max = None
    make = partial(
        BoundedHttpProtocol,
        ingress=ingress,
        head_bytes_max=head_bytes_max or limits.head_bytes_max,
        head_fields_max=head_fields_max or limits.head_fields_max,
    )
    config.http_protocol_class = make  # type: ignore[assignment]
    config.ssl = None
    if tls is not None:
        config.http_protocol_class = _with_tls(make, tls, ingress.account)  # type: ignore[assignment]


def _with_tls(
    make: Callable[..., asyncio.Protocol],
    tls: Callable[[], ssl.SSLContext],
    account: IngressAccount,
) -> Callable[..., asyncio.Protocol]:
    """`make` behind a handshake that the account counts."""

    def arrival(**named: Any) -> asyncio.Protocol:
        loop = named.get("_loop") or asyncio.get_running_loop()
        return TlsArrival(partial(make, **named), tls(), account, loop)

    return arrival


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(
        self,
        *args: Any,
        ingress: HttpIngress,
        head_bytes_max: int,
        head_fields_max: int,
        **named: Any,
    ) -> None:
        super().__init__(*args, **named)
        self._head_bytes_max = head_bytes_max
        self._head_fields_max = head_fields_max
        self._account = ingress.account
        self._limits = ingress.account.limits
        self._key_of = ingress.key_of
        self._holding: Holding | None = None  # none before it begins and once it is a websocket
        self._stopped_by: Limit | None = None  # found in a callback of the parser
        self._is_refused = False  # what still comes is thrown away
        self._is_stranger = True
        self._key_limit: Limit | None = None  # that keeps this connection from being its key's
        self._app, self.app = self.app, self._answer
        self._in_head = True  # or between two requests
        self._part_bytes = 0
        self._unparsed_bytes = 0  # at most so many of which the parser made neither head nor body
        self._fields = self._field_bytes = 0
        self._heads_bytes = 0  # of requests that are not answered
        self._slow_header_guard: asyncio.TimerHandle | None = None
        self._linger_timer: asyncio.TimerHandle | None = None
        self._reader_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count it as a stranger, and bound the time of its first head."""
        super().connection_made(transport)
        self._holding = self._account.arrive(self)
        self._guard_slow_header()

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave the account."""
        self._give_back()
        super().connection_lost(exc)

    def cut_off(self, limit: Limit) -> None:
        """Close it at once: the account needs the room."""
        del limit  # which the account has counted
        self._is_refused = True
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Parse `data`, as far as the limits allow."""
        self._unset_keepalive_if_required()
        if len(data) <= _PART_BYTES:
            self._parse(data)
            return
        whole = memoryview(data)
        for begin in range(0, len(data), _PART_BYTES):
            self._parse(whole[begin : begin + _PART_BYTES])

    def _parse(self, part: bytes | memoryview) -> None:
        if self._is_refused or self._holding is None:
            return
        self._part_bytes = len(part)
        self._unparsed_bytes += self._part_bytes
        try:
            self.parser.feed_data(part)
        except httptools.HttpParserUpgrade:
            self._upgrade()
            return
        except httptools.HttpParserError:
            self._refuse(self._account.refuse(self._stopped_by or Limit.MALFORMED))
            return
        if self._unparsed_bytes > self._head_bytes_max + _PART_BYTES:
            self._refuse(self._account.refuse(Limit.HEAD_BYTES))
        else:
            self._hold()

    def _hold(self) -> None:
        assert self._holding is not None
        held_bytes = self._heads_bytes + self._unparsed_bytes
        if self._unparsed_bytes:
            held_bytes += _FIELD_BYTES * self._fields
            if self._in_head and self._slow_header_guard is None:
                self._guard_slow_header()
        more_bytes = held_bytes - self._holding.held_bytes
        if more_bytes > 0:
            limit = self._account.hold(self._holding, more_bytes)
            if limit is not None and self._holding.key is None:
                self._refuse(limit)  # the app says it to who has a key: it has begun to answer
        elif more_bytes < 0:
            self._account.release(self._holding, -more_bytes)

    # Callbacks of the parser; what one raises ends the parsing.

    def on_message_begin(self) -> None:
        """Count a head that begins here."""
        super().on_message_begin()
        self._unparsed_bytes = self._unparsed_bytes or self._part_bytes

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a field of a head, or of a chunked body's trailer."""
        self._fields += 1
        self._field_bytes += len(name) + len(value)
        if self._fields > self._head_fields_max:
            self._stop(Limit.HEAD_FIELDS)
        if self._field_bytes > self._head_bytes_max:
            self._stop(Limit.HEAD_BYTES)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Authenticate the request, and begin it."""
        head_bytes = self._field_bytes + len(self.url)
        if head_bytes > self._head_bytes_max:
            self._stop(Limit.HEAD_BYTES)
        if len(self.pipeline) >= self._limits.pipelined_requests_max:
            self._stop(Limit.PIPELINED_REQUESTS)
        self._in_head = False
        self._unparsed_bytes = 0
        self._heads_bytes += head_bytes + _FIELD_BYTES * self._fields
        if self._slow_header_guard is not None:
            self._slow_header_guard.cancel()
            self._slow_header_guard = None
        super().on_headers_complete()
        self.scope.setdefault("path", "")
        key = self._key_of(cast("Scope", self.scope))
        self._is_stranger = key is None
        if key is not None and self._holding is not None:
            self._key_limit = self._account.authenticate(self._holding, key)
            self._is_stranger = self._key_limit is not None  # its body is thrown away as theirs

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        if self._key_limit is None:
            scope["extensions"] = {WRITTEN_BODY: WrittenBody(send.__self__)}
            await self._app(scope, receive, send)
        else:
            await answer(send, error_of_limit(self._key_limit), path=scope["path"], headers=[])

    def on_body(self, body: bytes) -> None:
        """Keep a body with a key; discard a stranger's."""
        self._unparsed_bytes = 0
        if not self._is_stranger:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Expect the next head."""
        super().on_message_complete()
        self._in_head = True
        self._unparsed_bytes = self._fields = self._field_bytes = 0
        if self._linger_timer is not None:  # all of a body has come that nobody reads
            self._linger_timer.cancel()
            self._linger_timer = None
            self._keep_alive()

    def _stop(self, limit: Limit) -> None:
        self._stopped_by = limit
        raise ValueError(limit)

    def _upgrade(self) -> None:
        if not self._should_upgrade():
            return  # a request like any other, which has begun
        if self._is_stranger:
            self._refuse(self._key_limit or self._account.refuse(Limit.UPGRADE))
            return
        self._give_back()
        self.handle_websocket_upgrade()

    # Ends of a connection before its client's time.

    def _guard_slow_header(self) -> None:
        self._slow_header_guard = self.loop.call_later(
            self._limits.head_wait_s, self._head_is_overdue
        )

    def _head_is_overdue(self) -> None:
        self._slow_header_guard = None
        limit = self._account.refuse(Limit.HEAD_TIME)
        if self._unparsed_bytes:
            self._refuse(limit)
        else:
            self.transport.close()  # it has said nothing, and is told nothing

    def _refuse(self, limit: Limit) -> None:
        """Send the reason, unless another answer is under way; read no more."""
        self._is_refused = True
        if self.transport.is_closing():
            return
        if self.cycle is not None and not (self.cycle.response_complete and self._in_head):
            self.transport.close()
            return
        self.transport.write(raw_answer(limit))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._linger(self.transport.abort)

    def _linger(self, end: Callable[[], None]) -> None:
        """Discard the client's bytes for a moment, so that it reads its answer."""
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        self._linger_timer = self.loop.call_later(self._limits.linger_s, end)

    def on_response_complete(self) -> None:
        """Keep the connection, but not the request, nor its unread body for long."""
        cycle = self.cycle
        super().on_response_complete()
        if not cycle.response_complete:
            return  # another request was sent behind the one that is answered
        cycle.body = bytearray()
        if self.scope is cycle.scope:  # else it is of the next head, of which some has come
            self.scope = None  # type: ignore[assignment]
            self.headers = []
        cycle.scope = None  # type: ignore[assignment]
        self._heads_bytes = 0
        if self._holding is not None and not self._is_refused:
            self._hold()
        if not self._in_head and not self.transport.is_closing():
            self._unset_keepalive_if_required()
            self._linger(self._body_is_unread)

    def _body_is_unread(self) -> None:
        self._linger_timer = None
        self._account.refuse(Limit.UNREAD_BODY)
        self._is_refused = True
        self.transport.close()

    def _keep_alive(self) -> None:
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def pause_writing(self) -> None:
        """Start the time in which the client must read some of its answer."""
        super().pause_writing()
        self._await_reader()

    def resume_writing(self) -> None:
        """Stop that time."""
        super().resume_writing()
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None

    def _await_reader(self) -> None:
        unread_bytes = self.transport.get_write_buffer_size()
        self._reader_timer = self.loop.call_later(
            self._limits.answer_wait_s, self._look_at_reader, unread_bytes
        )

    def _look_at_reader(self, before_bytes: int) -> None:
        self._reader_timer = None
        if self.transport.get_write_buffer_size() < before_bytes:
            self._await_reader()
        else:
            self._account.refuse(Limit.UNREAD_ANSWER)
            self.transport.abort()

    def _give_back(self) -> None:
        holding, self._holding = self._holding, None
        if holding is not None:
            self._account.leave(holding)
        for timer in (self._slow_header_guard, self._linger_timer, self._reader_timer):
            if timer is not None:
                timer.cancel()
        self._slow_header_guard = self._linger_timer = self._reader_timer = None

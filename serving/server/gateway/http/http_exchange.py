"""One HTTP request on its way through vLLM's app.

The app gets the body in one message. When the request's time is over, the app is told that the
client has gone, the client the reason; the app's rest is dropped.

The response is held until its body says something: a stream that begins with an error is answered
with a status that says so.
"""

import asyncio
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any, Final

from serving.server.gateway.http.app_errors import AppAnswer
from serving.server.gateway.http.asgi import Headers, Message, Receive, Send
from serving.server.gateway.http.http_errors import HttpError, answer
from serving.server.gateway.http.written_body import WrittenBody

_DISCONNECT: Final = {"type": "http.disconnect"}
_EVENTS: Final = b"text/event-stream"


class HttpExchange:
    """Between the server's `receive` and `send` and the app's.

    `headers` are added unless the app has set them. `instead` gives the answer in place of the
    app's beginning, if any. `on_start` is called when the app begins its response. `written`
    takes chunks while the app's stream of events goes on. `joins`, set before that: events that the
    app sends in one turn of the loop, as a step of several sequences brings them, are one write.
    """

    def __init__(
        self,
        receive: Receive,
        send: Send,
        *,
        path: str,
        body: bytes,
        headers: Headers,
        instead: Callable[[AppAnswer], HttpError | None] = lambda _: None,
        on_start: Callable[[], None] = lambda: None,
        written: WrittenBody | None = None,
    ) -> None:
        self._receive = receive
        self._send = send
        self.path = path
        self._body: bytes | None = body
        self._headers = headers
        self._on_start = on_start
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._instead = instead
        self._kept: list[Message] = []  # the response's beginning, until its body says something
        self._streams_events = False
        self.written = written
        self.joins = False
        self.began = False
        self.replaced = False
        self.status: int | None = None
        self.complete = False
        self.client_gone = False

    @property
    def is_over(self) -> bool:
        """Whether `end` has ended it."""
        return self._over.done()

    async def receive(self) -> Message:
        """The body once, then the client's disconnect or the end of the request's time."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        if self._over.done():
            return dict(_DISCONNECT)
        incoming: asyncio.Future[Any] = asyncio.ensure_future(self._receive())
        over: asyncio.Future[Any] = self._over
        try:
            await asyncio.wait({incoming, over}, return_when=asyncio.FIRST_COMPLETED)
            if not incoming.done():
                return dict(_DISCONNECT)
        finally:
            incoming.cancel()
        message: Message = incoming.result()
        if message["type"] == "http.disconnect" and not self.complete and not self._over.done():
            self.client_gone = True
        return message

    async def outlasts(self, wait: Coroutine[Any, Any, None]) -> bool:
        """Whether the client outlasts `wait`, else cancelled; raises what `wait` raises."""
        waiting: asyncio.Future[Any] = asyncio.ensure_future(wait)
        incoming: asyncio.Future[Any] = asyncio.ensure_future(self._receive())
        try:
            await asyncio.wait({waiting, incoming}, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                waiting.result()
                return True
            self.client_gone = True
            return False
        finally:
            waiting.cancel()
            incoming.cancel()

    async def send(self, message: Message) -> None:
        """Pass it on, unless the exchange is over or another answer was sent."""
        if self._over.done() or self.replaced:
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._on_start()
            self._kept = [{**message, "headers": self._with_headers(message)}]
            return
        is_last = message["type"] == "http.response.body" and not message.get("more_body", False)
        if self._kept and await self._keeps(message, is_last=is_last):
            return
        if is_last:
            self.complete = True
            self._take_back()
        elif self.joins and self.written is not None and self.written.is_open():
            self.written.join(bytes(message.get("body", b"")))
            return
        await self._send(message)

    async def _keeps(self, message: Message, *, is_last: bool) -> bool:
        """Whether `message` of the response's beginning is held back or dropped."""
        start = self._kept[0]
        begun = AppAnswer(
            status=start["status"],
            headers=start["headers"],
            first=bytes(message.get("body", b"")),
            streams_events=self._streams_events,
        )
        if begun.is_prelude and not is_last:
            self._kept.append(message)
            return True
        kept, self._kept = self._kept, []
        error = self._instead(begun)
        if error is not None:
            await self._replace(error)
            return True
        self.began = True
        for each in kept:
            await self._send(each)
        if self._streams_events and self.written is not None and not is_last:
            self.written.takes_chunks = True
        return False

    async def _replace(self, error: HttpError) -> None:
        """Answer `error` in place of a response of which nothing was sent."""
        self.replaced = self.began = self.complete = True
        self.status = error.status.value
        told = {name for name, _ in error.headers()}
        others = [one for one in self._headers if one[0] not in told]
        await answer(self._send, error, path=self.path, headers=others)

    def end(self, error: HttpError) -> "asyncio.Future[None]":
        """Disconnect the app and send the client `error`; idempotent.

        The future is done when it is sent.
        """
        if self._over.done() or self.complete:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done
        self._over.set_result(None)
        self._take_back()
        return asyncio.ensure_future(self._tell(error))

    async def break_off(self, error: HttpError) -> bool:
        """End a failed stream of events with `error`; whether that was sent."""
        if not self._streams_events or self.replaced or self.complete or self._over.done():
            return False
        self.replaced = True
        self._take_back()
        await self._tell(error)
        return True

    def _take_back(self) -> None:
        if self.written is not None:
            self.written.takes_chunks = False
            self.written.write_joined()

    async def _tell(self, error: HttpError) -> None:
        if not self.began:
            self.status = error.status.value
            await answer(self._send, error, path=self.path, headers=self._headers)
            return
        last = error.event(self.path) if self._streams_events else b""
        await self._send({"type": "http.response.body", "body": last, "more_body": False})

    def _with_headers(self, message: Message) -> list[tuple[bytes, bytes]]:
        sent: list[tuple[bytes, bytes]] = list(message.get("headers", ()))
        names = {name.lower() for name, _ in sent}
        self._streams_events = any(
            name.lower() == b"content-type" and value.startswith(_EVENTS) for name, value in sent
        )
        return [*sent, *(one for one in self._headers if one[0] not in names)]


TOOK_TOO_LONG: Final = HttpError(
    HTTPStatus.GATEWAY_TIMEOUT,
    "request_wall_time",
    "the request took longer than this server lets one take",
)

BROKEN_STREAM: Final = HttpError(
    HTTPStatus.INTERNAL_SERVER_ERROR, "internal_server_error", "the server failed at this request"
)

"""One HTTP request on its way through vLLM's app: what comes in, what goes out, how it ended.

The door has read the body, so the app gets it in one message. When the request's time is over, the
app is told that the client has gone, which is what it listens for, and the client is told the
reason; what the app still sends is dropped.
"""

import asyncio
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any, Final

from serving.front_door.http.asgi import Headers, Message, Receive, Send
from serving.front_door.http.http_errors import HttpError, answer

_DISCONNECT: Final = {"type": "http.disconnect"}
_EVENTS: Final = b"text/event-stream"


class HttpExchange:
    """Between the server's `receive` and `send` and those of the app.

    `headers` are added to the response, unless the app has set the same ones. `on_start` is called
    when the response begins.
    """

    def __init__(
        self,
        receive: Receive,
        send: Send,
        *,
        path: str,
        body: bytes,
        headers: Headers,
        on_start: Callable[[], None] = lambda: None,
    ) -> None:
        self._receive = receive
        self._send = send
        self.path = path
        self._body: bytes | None = body
        self._headers = headers
        self._on_start = on_start
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._streams_events = False
        self.status: int | None = None
        self.complete = False
        self.client_gone = False

    @property
    def began(self) -> bool:
        """The response has."""
        return self.status is not None

    @property
    def is_over(self) -> bool:
        """It was ended from here, by `end`."""
        return self._over.done()

    async def receive(self) -> Message:
        """The body once, then the client's going, or the end of the request's time."""
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
        """Whether the client is still there when `wait` is over; it is not waited for otherwise.

        Raises what `wait` raises.
        """
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
        """Pass it on; nothing more once the exchange is over."""
        if self._over.done():
            return
        if message["type"] == "http.response.body":
            if not message.get("more_body", False):
                self.complete = True
        elif message["type"] == "http.response.start":
            self.status = message["status"]
            self._on_start()
            message = {**message, "headers": self._with_headers(message)}
        await self._send(message)

    def end(self, error: HttpError) -> "asyncio.Future[None]":
        """Tell the app that nobody waits any more, and the client `error`; idempotent.

        The future is done when the client has been told.
        """
        if self._over.done() or self.complete:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done
        self._over.set_result(None)
        return asyncio.ensure_future(self._tell(error))

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
    status=HTTPStatus.GATEWAY_TIMEOUT,
    code="request_wall_time",
    message="the request took longer than this server lets one take",
)

"""The console's HTTP app: page, sessions, JSON calls, event stream.

Every request names this server as its host; all but the page's files come from our own page or
none. A session's cookie allows reads; changes need the key.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Final

import msgspec
from aiohttp import web

from emulator.errors import ConfigError
from serving.access.secret import request_credential
from serving.server.connections.connection_registry import HEAD_WAIT_S
from serving.server.console.call_answer import REPLICA_HEADER, CallAnswer, Calls, failed
from serving.server.console.console_sessions import (
    LIFE_WALL_S,
    ConsoleSessions,
    comes_from_elsewhere,
    is_named_rightly,
)
from serving.server.console.event_response import EventResponse, takes_gzip
from serving.server.console.event_stream import INTERVAL_S, StreamAsked, Streams
from serving.server.console.page_files import PageFile, read_page

# Below "vllm", where the API's process has configured handlers; a name of our own prints nothing.
logger = logging.getLogger(f"vllm.{__name__}")

SERVICE_PATH: Final = "/ultraserve.v1.ControlService"

BODY_BYTES_MAX: Final = 256 * 2**10
"""Of a request; JSON has names where protobuf has numbers."""

SESSION_BYTES_MAX: Final = 2**10
"""Of POST /session, whose key is unknown yet."""

BODY_WAIT_S: Final = HEAD_WAIT_S
"""Wall seconds, as for a head."""

STREAMS_MAX: Final = 32
"""Concurrent readers, as of the control service."""

HEADERS: Final = {
    "Content-Security-Policy": "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self' data:",
            "font-src 'self'",
            "connect-src 'self'",
            "manifest-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "Server": "ultraserve",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Of every response: our own resources only, in no frame."""

_NO_KEY: Final = "no session, and no key: send `Authorization: Bearer KEY`, or POST it to /session"
_WRONG_KEY: Final = "expected the control service's key"
_ONLY_LOOKS: Final = "a session lets one look: this call wants `Authorization: Bearer KEY`"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _KeyShown(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    key: str


class ConsoleApp:
    """The routes; `app` is aiohttp's.

    `own_host` is the listening host; None allows any name, as with TLS, whose certificate names it.
    `cookie` is the session cookie's name. `streams` are of events: of one engine, or of several.
    """

    def __init__(
        self,
        *,
        calls: Calls,
        streams: Streams,
        admits: Callable[[str | None], bool],
        own_host: str | None,
        cookie: str,
        page: dict[str, PageFile] | None = None,
    ) -> None:
        self._calls = calls
        self._streams = streams
        self._admits = admits
        self._own_host = own_host
        self._cookie = cookie
        self._page = read_page() if page is None else page
        self.sessions = ConsoleSessions(admits)
        self.streams = 0
        self._at_work: dict[asyncio.BaseTransport, int] = {}
        self.app = web.Application(middlewares=[self._guard], client_max_size=BODY_BYTES_MAX)
        self.app.on_response_prepare.append(_add_headers)
        self.app.add_routes(
            [
                web.get("/session", self._has_session),
                web.post("/session", self._begin_session),
                web.delete("/session", self._end_session),
                web.get("/stream", self._stream, allow_head=False),
                web.route("*", SERVICE_PATH + "/{method}", self._call),
                web.get("/{path:.*}", self._file),
            ]
        )

    def is_at_work(self, transport: asyncio.BaseTransport) -> bool:
        """Whether the connection has a request with a key or a session in progress."""
        return transport in self._at_work

    @contextmanager
    def _working(self, request: web.Request) -> Iterator[None]:
        transport = request.transport
        if transport is None:  # it has gone
            yield
            return
        self._at_work[transport] = self._at_work.get(transport, 0) + 1
        try:
            yield
        finally:
            self._at_work[transport] -= 1
            if not self._at_work[transport]:
                del self._at_work[transport]

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse other hosts' names and other sites' pages."""
        host = request.headers.get("Host", "")
        if self._own_host is not None and not is_named_rightly(host, self._own_host):
            words = f"Host {host[:80]!r}: expected a name of this machine's loopback"
            return _as_response(failed("permission_denied", words, status=421))
        is_page = request.method in ("GET", "HEAD") and request.path in self._page
        if not is_page and comes_from_elsewhere(request.headers, scheme=request.scheme):
            return _as_response(failed("permission_denied", "another site's page asks"))
        try:
            return await handler(request)
        except web.HTTPRequestEntityTooLarge as error:
            return _as_response(failed("resource_exhausted", error.text or "", status=413))
        except web.HTTPRequestTimeout:
            words = f"expected the body within {BODY_WAIT_S:g} s"
            return _as_response(failed("deadline_exceeded", words, status=408))
        except web.RequestPayloadError:
            return _as_response(failed("invalid_argument", "the body breaks off, or is no HTTP"))
        except web.HTTPMethodNotAllowed as error:
            allow = {"Allow": ", ".join(sorted(error.allowed_methods))}
            words = f"{request.method}: expected {allow['Allow']}"
            return _as_response(failed("unimplemented", words, status=405), allow)
        except ConfigError as error:
            return _as_response(failed("invalid_argument", str(error)))
        except (web.HTTPException, ConnectionError):
            raise  # aiohttp's own answer, or a client that has gone
        except Exception:
            logger.exception("%s %.200r failed", request.method, request.path)
            return _as_response(failed("internal", "the server failed; its log says how"))

    async def _file(self, request: web.Request) -> web.StreamResponse:
        file = self._page.get(request.path)
        if file is None:
            return _as_response(failed("not_found", f"{request.path[:200]}: no such page"))
        headers = {"ETag": file.etag, "Cache-Control": file.cache_control}
        known = request.headers.get("If-None-Match", "")
        if file.etag in (each.strip().removeprefix("W/") for each in known.split(",")):
            return web.Response(status=HTTPStatus.NOT_MODIFIED, headers=headers)
        headers["Content-Type"] = file.content_type
        body = file.data
        if file.packed is not None:
            headers["Vary"] = "Accept-Encoding"
            if takes_gzip(request):
                headers["Content-Encoding"], body = "gzip", file.packed
        return web.Response(body=body, headers=headers)

    async def _has_session(self, request: web.Request) -> web.StreamResponse:
        return _nothing() if self._may_read(request) else self._no_key(request)

    async def _begin_session(self, request: web.Request) -> web.StreamResponse:
        if request.content_type != "application/json":
            return _not_json()
        try:
            body = await _body(request, bytes_max=SESSION_BYTES_MAX)
            shown = msgspec.json.decode(body, type=_KeyShown)
        except msgspec.DecodeError as error:
            words = f'expected {{"key": KEY}}: {error}'
            return _as_response(failed("invalid_argument", words))
        name = self.sessions.begin(shown.key.strip())
        if name is None:
            return _as_response(failed("unauthenticated", _WRONG_KEY))
        response = _nothing()
        response.set_cookie(
            self._cookie,
            name,
            max_age=round(LIFE_WALL_S),
            path="/",
            httponly=True,
            secure=request.secure,
            samesite="Strict",
        )
        return response

    async def _end_session(self, request: web.Request) -> web.StreamResponse:
        self.sessions.end(request.cookies.get(self._cookie))
        response = _nothing()
        response.del_cookie(
            self._cookie, path="/", httponly=True, secure=request.secure, samesite="Strict"
        )
        return response

    async def _call(self, request: web.Request) -> web.StreamResponse:
        if request.method != "POST":
            raise web.HTTPMethodNotAllowed(request.method, ["POST"])
        method = request.match_info["method"]
        key = request_credential(request.headers.items())
        if key is None:
            key = self.sessions.key_of(request.cookies.get(self._cookie))
            if key is not None and self._calls.changes(method):
                return _as_response(failed("permission_denied", _ONLY_LOOKS))
        if not self._admits(key):  # the service's own refusal; nothing of the message is read
            return _as_response(await self._calls.call(method, b"{}", key=key))
        if request.content_type != "application/json":
            return _not_json()
        with self._working(request):
            wall_s, body = _timeout_s(request), await _body(request, bytes_max=BODY_BYTES_MAX)
            answer = await self._calls.call(
                method,
                body,
                key=key,
                action=request.headers.get("Idempotency-Key"),
                replica=request.headers.get(REPLICA_HEADER),
                wall_s=wall_s,
            )
            return _as_response(answer)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        if not self._may_read(request):
            return self._no_key(request)
        if self.streams >= STREAMS_MAX:
            words = f"at most {STREAMS_MAX} streams at a time; try again"
            return _as_response(failed("resource_exhausted", words), {"Retry-After": "1"})
        response = EventResponse(request)
        asked = StreamAsked(
            interval_s=_interval_s(request),
            last_id=request.headers.get("Last-Event-ID") or request.query.get("last_event_id"),
            replica=request.query.get("replica"),
            may_read=lambda: self._may_read(request),
        )
        stream = self._streams(asked, response.write)
        self.streams += 1
        try:
            with self._working(request):
                await response.begin()
                await stream.run()
        except ConnectionError:
            pass  # it went before it was told anything
        except Exception:
            if not response.response.prepared:
                raise
            logger.exception("a stream of events failed")  # a status comes too late
            response.cut_off()
        finally:
            self.streams -= 1
        return response.response

    def _may_read(self, request: web.Request) -> bool:
        key = request_credential(request.headers.items())
        if key is None:
            return self.sessions.key_of(request.cookies.get(self._cookie)) is not None
        return self._admits(key)

    def _no_key(self, request: web.Request) -> web.Response:
        shown = request_credential(request.headers.items()) is not None
        return _as_response(failed("unauthenticated", _WRONG_KEY if shown else _NO_KEY))


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    del request
    for name, value in HEADERS.items():
        response.headers[name] = value


async def _body(request: web.Request, *, bytes_max: int) -> bytes:
    """The body; raises web.HTTPException when it is too long or too late."""
    try:
        async with asyncio.timeout(BODY_WAIT_S):
            return await request.clone(client_max_size=bytes_max).read()
    except TimeoutError:
        raise web.HTTPRequestTimeout from None


def _as_response(answer: CallAnswer, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        status=answer.status,
        body=answer.body,
        content_type="application/json",
        headers={"Cache-Control": "no-store", **(headers or {})},
    )


def _nothing() -> web.Response:
    return web.Response(status=HTTPStatus.NO_CONTENT, headers={"Cache-Control": "no-store"})


def _not_json() -> web.Response:
    words = "expected Content-Type: application/json"
    return _as_response(failed("invalid_argument", words, status=415))


def _interval_s(request: web.Request) -> float:
    text = request.query.get("interval_s", f"{INTERVAL_S:g}")
    try:
        return float(text)
    except ValueError:
        raise ConfigError("interval_s", text[:40], "a number of seconds") from None


def _timeout_s(request: web.Request) -> float | None:
    """Connect's `Connect-Timeout-Ms`; raises ConfigError."""
    text = request.headers.get("Connect-Timeout-Ms")
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 10):
        raise ConfigError("Connect-Timeout-Ms", text[:40], "whole milliseconds, at most 10 digits")
    return int(text) / 1e3

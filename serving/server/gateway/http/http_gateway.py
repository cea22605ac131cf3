"""The HTTP gateway before vLLM's app: caller, limits and work of each request.

Pure ASGI: a chunk of a stream costs one function call. In this order, the cheap before the dear:

    probe ──► answered here                 path of administration ──► 403, and a way
    key ──► 401, 403                        class of work ──► 400
    a path beside vLLM's app, such as a batch's ──► its own answer
    a path that needs no key ──► vLLM's app, without its body
    engine gone or resting, no rank up, gateway closed, full ──► 503, 429 before its body is read
    body ──► 413, 408                       gateway.enter(work) ──► 429, 503
    vLLM's app ──► its response, with the rest of the key's limits; 504 when it takes too long;
                   what it cannot serve ──► 404, 405, 429, 503 before the response begins

Every POST needs a permit, but for those known not to generate.
"""

import asyncio
import re
import uuid
from collections.abc import Callable, Collection
from functools import partial
from http import HTTPStatus
from typing import Final, Protocol

from serving.access.key_ring import KeyRing
from serving.policy.admission.entry import Outcome, Stage
from serving.policy.admission.refusal import Refused
from serving.policy.admission.work import Client, WorkClass
from serving.process.direct_body import direct_body
from serving.server.gateway.admission_controller import Permit, RequestAdmission, current_permit
from serving.server.gateway.http.admin_refusal import refusal_of
from serving.server.gateway.http.app_errors import AppAnswer, error_of_stream, routing_error
from serving.server.gateway.http.asgi import App, Headers, Receive, Scope, Send, header, path_of
from serving.server.gateway.http.http_access import client_of, is_open
from serving.server.gateway.http.http_errors import (
    HttpError,
    HttpRefused,
    answer,
    error_of,
    rate_headers,
)
from serving.server.gateway.http.http_exchange import BROKEN_STREAM, TOOK_TOO_LONG, HttpExchange
from serving.server.gateway.http.http_refusals import STUMBLES, missing_api, stumbled
from serving.server.gateway.http.inner_request import (
    InnerAnswer,
    InnerRequest,
    refused_answer,
)
from serving.server.gateway.http.json_body import check_json, refuse_values
from serving.server.gateway.http.model_card import ModelCards
from serving.server.gateway.http.probes import PATHS as PROBE_PATHS
from serving.server.gateway.http.probes import answer_probe
from serving.server.gateway.http.request_body import BodyReader, ClientGone, let_go
from serving.server.gateway.http.request_work import (
    AskedBody,
    ContextSize,
    asked_in,
    refuse_background,
    refuse_kv_params,
    refuse_long_text,
    said_class,
    work_of,
)
from serving.server.gateway.http.written_body import written_body_of
from serving.server.gateway.kv_params import KvParams
from serving.server.gateway.readiness import ServerReadiness

_NOT_GENERATING: Final = re.compile(
    r"/tokenize|/detokenize|/ping|/v1/messages/count_tokens|/v1/responses/[^/]+/cancel"
    r"|/v1/(chat/completions|completions|messages|responses)/(render|derender)"
)
"""POSTs without work for the engine."""

_REQUEST_ID: Final = re.compile(r"[\x21-\x7e]{1,128}")
"""A client's name for its request; others are replaced."""


def generates(method: str, path: str) -> bool:
    """Whether such a request may make the engine compute."""
    return method == "POST" and not _NOT_GENERATING.fullmatch(path)


class BesideApp(Protocol):
    """An API beside vLLM's app, for clients that are known."""

    def has(self, path: str) -> bool:
        """Whether the path is one of its own."""

    async def answer(
        self, scope: Scope, receive: Receive, send: Send, *, client: Client, headers: Headers
    ) -> None:
        """Answer one request, with `headers`; raises HttpRefused or ClientGone before."""


class HttpGateway:
    """An ASGI app around vLLM's, for requests; `beside` has paths of its own.

    `missing` are paths that the model cannot answer; `request_wall_s_max` the wall seconds of a
    request, from when the engine may have it; `kv_params` is what becomes of a request's own.
    """

    def __init__(
        self,
        app: App,
        *,
        keys: KeyRing,
        admission: RequestAdmission,
        readiness: ServerReadiness,
        bodies: BodyReader,
        context: ContextSize,
        request_wall_s_max: float,
        missing: Collection[str] = (),
    ) -> None:
        self._app = ModelCards(app)
        self._missing = missing
        self._keys = keys
        self._admission = admission
        self._readiness = readiness
        self._bodies = bodies
        self._context = context
        self._request_wall_s_max = request_wall_s_max
        self.beside: BesideApp | None = None
        self.kv_params = KvParams.IGNORED

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or one websocket's handshake."""
        path = path_of(scope)
        if scope["type"] == "websocket":
            await self._websocket(scope, path, receive, send)
            return
        scope, request_id = _named(scope)
        headers: Headers = [(b"x-request-id", request_id)]
        if path in PROBE_PATHS:
            await answer_probe(self._readiness, path, send, headers)
            return
        try:
            client = client_of(self._keys, scope, path)
            refusal = refusal_of(path) or missing_api(path, self._missing)
            if refusal is not None:
                raise HttpRefused(refusal)
            if self.beside is not None and self.beside.has(path):
                await self.beside.answer(scope, receive, send, client=client, headers=headers)
                return
            await self._pass(scope, path, client, receive, send, headers)
        except HttpRefused as refused:
            linger = partial(let_go, receive) if refused.error.closes else None
            await answer(send, refused.error, path=path, headers=headers, before_end=linger)
        except Refused as refused:
            await answer(send, error_of(refused), path=path, headers=headers)
        except ClientGone:
            return  # the client has gone

    async def _pass(
        self,
        scope: Scope,
        path: str,
        client: Client,
        receive: Receive,
        send: Send,
        headers: Headers,
    ) -> None:
        """Pass the request to the app; HttpRefused, Refused or ClientGone before any response."""
        if is_open(scope, path):  # its body is not read
            instead = partial(self._instead, scope, path, None)
            exchange = HttpExchange(
                receive, send, path=path, body=b"", headers=headers, instead=instead
            )
            await self._run(scope, exchange)
            return
        asks_for_work = generates(scope["method"], path)
        said = said_class(scope) if asks_for_work else None
        if asks_for_work:
            await self._refuse_unserved(client.class_of(said))
            self._refuse_early(client, said)
        with await self._bodies.read(scope, receive, key=client.name) as held:
            make = partial(
                HttpExchange,
                receive,
                send,
                path=path,
                on_start=held.let_go,
                written=written_body_of(scope),
            )
            await self._pass_body(scope, path, client, held.take(), make, headers, said)

    async def _pass_body(
        self,
        scope: Scope,
        path: str,
        client: Client,
        body: bytes,
        exchange_of: Callable[..., HttpExchange],
        headers: Headers,
        said: WorkClass | None,
    ) -> None:
        asked = await self._asked(scope, body)
        if not generates(scope["method"], path):
            instead = partial(self._instead, scope, path, None)
            await self._run(scope, exchange_of(body=body, headers=headers, instead=instead))
            return
        permit = await self._enter(path, asked, client, said)
        exchange = exchange_of(
            body=body,
            headers=[*headers, *rate_headers(permit.rate)],
            instead=partial(self._instead, scope, path, permit),
        )
        exchange.joins = permit.work.sequences > 1
        del body, asked  # the app has the only copy; an answer may take an hour
        await self._run_with(permit, scope, exchange)

    async def answer_inner(self, inner: InnerRequest) -> InnerAnswer:
        """The answer to a request of the server's own, as batch work of its client."""
        try:
            await self._refuse_unserved(WorkClass.BATCH)
            body, inner.body = inner.body, b""  # the app has the only copy
            asked = await self._asked(inner.scope, body)
            permit = await self._enter(inner.path, asked, inner.client, WorkClass.BATCH)
            inner.permit = permit
            exchange = HttpExchange(
                inner.receive,
                inner.send,
                path=inner.path,
                body=body,
                headers=[],
                instead=partial(self._instead, inner.scope, inner.path, permit),
            )
            del body, asked
            await self._run_with(permit, inner.scope, exchange)
        except HttpRefused as refused:
            return inner.error_answer(refused)
        except Refused as refused:
            return refused_answer(refused)
        return inner.answer()

    async def _asked(self, scope: Scope, body: bytes) -> AskedBody | None:
        """The fields of a body that the app may read."""
        await refuse_values(body)
        asked = asked_in(body)
        check_json(scope, body, is_read=asked is not None)
        refuse_long_text(asked, self._context)
        return asked

    async def _enter(
        self, path: str, asked: AskedBody | None, client: Client, said: WorkClass | None
    ) -> Permit:
        refuse_background(path, asked)
        if self.kv_params is KvParams.REFUSED:
            refuse_kv_params(asked)
        return await self._admission.admit(
            work_of(
                path,
                asked,
                client=client,
                said=said,
                context=self._context,
                hears_kv=self.kv_params is KvParams.HEARD,
            )
        )

    async def _refuse_unserved(self, work_class: WorkClass) -> None:
        refused = await self._readiness.refusal()
        if refused is not None:
            self._admission.count_refusal(refused, work_class)
            raise refused

    def _instead(
        self, scope: Scope, path: str, permit: Permit | None, begun: AppAnswer
    ) -> HttpError | None:
        """The answer in place of the app's `begun`, or None."""
        if permit is not None and permit.refusal is not None:
            return error_of(permit.refusal)
        if begun.is_failed and (failure := self._readiness.failure()) is not None:
            return error_of(failure)
        return error_of_stream(begun) or routing_error(begun, method=scope["method"], path=path)

    def _refuse_early(self, client: Client, said: WorkClass | None) -> None:
        """Raise Refused before the body is read, unless that may name another class."""
        work_class = client.class_of(said)
        full = self._admission.would_refuse(client, work_class)
        if full is None:
            return
        may_say_batch = said is None and work_class is WorkClass.INTERACTIVE
        if may_say_batch and self._admission.would_refuse(client, WorkClass.BATCH) is None:
            return
        self._admission.count_refusal(full, work_class)
        raise full

    async def _run_with(self, permit: Permit, scope: Scope, exchange: HttpExchange) -> None:
        outcome = Outcome.FAILED
        token = current_permit.set(permit)
        try:
            # Before the app sees it, so that a refusal after a wait is one of a stream too.
            queued = permit.entry.stage is Stage.QUEUED
            if queued and not await exchange.outlasts(permit.turn()):
                outcome = Outcome.ABORTED
                return
            await self._run(scope, exchange)
            outcome = _outcome(exchange)
        except Refused:
            outcome = Outcome.REFUSED
            raise
        except asyncio.CancelledError:
            outcome = Outcome.ABORTED
            raise
        finally:
            current_permit.reset(token)
            permit.leave(outcome)

    async def _run(self, scope: Scope, exchange: HttpExchange) -> None:
        told: list[asyncio.Future[None]] = []
        timer = asyncio.get_running_loop().call_later(
            self._request_wall_s_max, lambda: told.append(exchange.end(TOOK_TOO_LONG))
        )
        token = direct_body.set(exchange.written)
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except Exception as error:
            unread = not exchange.began and _is_unread(current_permit.get())
            if unread and isinstance(error, STUMBLES):
                raise HttpRefused(stumbled(error, exchange.path)) from error
            if not await self._break_off(exchange):
                raise
        finally:
            direct_body.reset(token)
            timer.cancel()
            if told:
                await asyncio.gather(*told, return_exceptions=True)  # or nobody is there any more

    async def _break_off(self, exchange: HttpExchange) -> bool:
        """End a stream in which the app failed; whether the reason is known.

        vLLM 0.32's streams of responses break where a request fails: the error event is not theirs.
        """
        permit = current_permit.get()
        refused = permit.refusal if permit is not None else None
        refused = refused or self._readiness.failure()
        error = BROKEN_STREAM if refused is None else error_of(refused)
        return await exchange.break_off(error) and refused is not None

    async def _websocket(self, scope: Scope, path: str, receive: Receive, send: Send) -> None:
        """Pass on a websocket, which needs a key; vLLM's app has them for speech alone."""
        try:
            client_of(self._keys, scope, path)
        except HttpRefused:
            await receive()  # the handshake; closing before it is accepted answers 403
            await send({"type": "websocket.close", "code": 1008})
        else:
            await self._app(scope, receive, send)


def _named(scope: Scope) -> tuple[Scope, bytes]:
    said = header(scope, b"x-request-id")
    if said is not None and _REQUEST_ID.fullmatch(said):
        return scope, said.encode()
    request_id = uuid.uuid4().hex.encode()
    others = [one for one in scope["headers"] if one[0] != b"x-request-id"]
    return {**scope, "headers": [*others, (b"x-request-id", request_id)]}, request_id


def _is_unread(permit: Permit | None) -> bool:
    return permit is None or not permit.entry.counted_tokens


def _outcome(exchange: HttpExchange) -> Outcome:
    if exchange.is_over or exchange.client_gone:
        return Outcome.ABORTED  # whatever the app made of that
    status = HTTPStatus.INTERNAL_SERVER_ERROR if exchange.status is None else exchange.status
    is_answer = exchange.complete and status < HTTPStatus.BAD_REQUEST
    return Outcome.FINISHED if is_answer else Outcome.FAILED

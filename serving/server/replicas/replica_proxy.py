"""The app behind the service's gateway: each request goes to a replica, and to another if that one
is lost.

    choose ──► ask ──► its answer, whole or in events
                503, no answer, a broken answer ──► the replica is distrusted; choose again
                429 ──► another replica; after the last, the refusal is the answer

A request that is not streamed is answered by one replica, and may be asked again until then. A
streamed completion or chat goes on elsewhere if any replica makes the same text (`ForwardedBody`):
it is computed again, and the client gets what it has not had. Another stream that has begun breaks.

Where replicas have roles, a prompt goes to one that prefills, which holds its KV, and the request,
with where that is, to one that decodes (`prompt_apart`). One lost on either side begins it anew.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

import aiohttp
from yarl import URL

from serving.policy.admission.entry import Counted, Outcome
from serving.policy.admission.refusal import RefusalReason
from serving.policy.rank_roles import RankRole
from serving.server.gateway.admission_controller import Permit, current_permit
from serving.server.gateway.http.asgi import Headers, Message, Receive, Scope, Send, path_of
from serving.server.gateway.http.http_errors import HttpError, answer
from serving.server.gateway.http.request_work import CLASS_HEADER
from serving.server.gateway.readiness import REST_RETRY_S
from serving.server.replicas.completion_stream import CompletionStream, ReplicaFailed
from serving.server.replicas.event_stream import events_of
from serving.server.replicas.forwarded_body import ForwardedBody, forwarded_body
from serving.server.replicas.live_replica import HeldTokens, LiveReplica
from serving.server.replicas.live_replicas import LiveReplicas
from serving.server.replicas.prompt_apart import held_kv, prompt_alone, prompt_for, with_kv
from serving.server.replicas.replay_counters import Counters, ReplayReason
from serving.server.replicas.replica_roles import RequestPart
from serving.server.replicas.sent_stream import StreamDiverged

logger = logging.getLogger("ultraserve.replicas")

LOSSES_MAX: Final = 3
"""Replicas that one request may lose: it may be what ends them."""

REFUSED_AGAIN_S: Final = 1.0
"""Wall seconds until a request that all replicas refuse is sent again: for reasons of their own, or
when it has begun."""

REPLICA_HEADER: Final = b"x-ultraserve-replica"
_EVENTS: Final = "text/event-stream"
_NOT_FORWARDED: Final = frozenset(
    {
        *(b"host", b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding"),
        *(b"upgrade", b"content-length", b"authorization", b"x-api-key", b"expect"),
        *(b"proxy-authorization", b"accept-encoding", CLASS_HEADER),
    }
)
_NOT_RETURNED: Final = frozenset(
    {b"connection", b"keep-alive", b"transfer-encoding", b"content-length", b"date", b"server"}
)
_ABORTED: Final = b'"finish_reason":"abort"'
_TOKENS: Final = re.compile(rb'"(prompt|input|completion|output)_tokens": ?(\d+)')
"""Of usage, in any API's words; a text's quotes are escaped, so no text has them."""

_FINGERPRINT: Final = re.compile(rb'"system_fingerprint": ?"([^"\\]+)"')

_LOST: Final = (aiohttp.ClientError, OSError)
_NONE_READY: Final = HttpError(
    HTTPStatus.SERVICE_UNAVAILABLE,
    RefusalReason.NO_RANK_UP.value,
    "no replica is ready",
    retry_after_s=REST_RETRY_S,
)

_BROKEN: Final = HttpError(
    HTTPStatus.SERVICE_UNAVAILABLE,
    "replica_lost",
    "the replica that made this stream is gone, and no other can go on with it",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    status: int
    headers: Headers
    body: bytes

    async def send(self, send: Send) -> None:
        length = (b"content-length", str(len(self.body)).encode())
        headers = [*self.headers, length]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


class _Unserved(Exception):
    """A replica did not serve the request: `answer` is what it said."""

    def __init__(self, said: _Answer) -> None:
        super().__init__(f"{said.status}")
        self.answer = said


class _CannotGoOn(Exception):
    """A stream that has begun cannot go on elsewhere."""


@dataclass(slots=True, kw_only=True)
class _Request:
    """One request on its way.

    `begun` once its client has got any of its answer's body; `is_refused` where that is an error,
    for which nothing was computed; `refused_by` and `rested` are replicas that have answered 429
    to what is next, and 503. `prompt` is the body for a replica that prefills, and `kv_params` say
    where the KV then is, None before; `holder` is the replica that has it, `decoder` the one that
    was chosen before the prompt was sent, and `cut_off_by` one that had prompts above its share.
    """

    method: str
    path: str
    target: str
    headers: list[tuple[str, str]]
    sent: ForwardedBody
    hashes: Sequence[int]
    permit: Permit | None
    losses: int = 0
    begun: bool = False
    is_refused: bool = False
    refused_by: set[int] = field(default_factory=set)
    rested: set[int] = field(default_factory=set)
    last: _Answer | None = None
    prompt: bytes | None = None
    kv_params: dict[str, Any] | None = None
    holder: int | None = None
    decoder: LiveReplica | None = None
    cut_off_by: int | None = None
    counts: dict[bytes, int] = field(default_factory=dict)

    @property
    def stream(self) -> CompletionStream | None:
        return self.sent.stream

    @property
    def part(self) -> RequestPart:
        """What is next."""
        if self.prompt is None:
            return RequestPart.WHOLE
        return RequestPart.PROMPT if self.kv_params is None else RequestPart.REST

    @property
    def choices(self) -> dict[str, Any]:
        """The replica that is to do what is next, and the one that is if no other can."""
        if self.kv_params is None:
            return {"last_choice": self.cut_off_by}
        return {"first_choice": self.decoder, "last_choice": self.holder}

    def go_on_with(self, kv_params: dict[str, Any] | None, holder: int | None) -> None:
        """Begin the other part, which no replica has refused."""
        self.kv_params, self.holder, self.cut_off_by = kv_params, holder, None
        self.refused_by.clear()

    @property
    def prompt_tokens(self) -> int:
        return 0 if self.permit is None else self.permit.work.prompt_tokens

    def note_usage(self, said: bytes) -> None:
        for kind, number in _TOKENS.findall(said):
            self.counts[kind] = int(number)

    def used_tokens(self) -> int:
        """Of its prompts and answers: counted by the replica, else estimated."""
        if self.counts:
            return sum(self.counts.values())
        return self.prompt_tokens + (0 if self.stream is None else self.stream.tokens)


class ReplicaProxy:
    """An ASGI app in the place of vLLM's; `draw_seed` draws a seed for a request without one."""

    def __init__(
        self,
        replicas: LiveReplicas,
        session: aiohttp.ClientSession,
        counters: Counters,
        draw_seed: Callable[[], int],
    ) -> None:
        self._replicas = replicas
        self._session = session
        self._counters = counters
        self._draw_seed = draw_seed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; a client that goes is gone for the replica too."""
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        body = (await receive()).get("body", b"")
        hashes = () if current_permit.get() is None else await self._replicas.hashes_of(body)
        request = self._request(scope, body, hashes)
        forward = asyncio.ensure_future(self._forward(request, send))
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({forward, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            was_done = forward.done()
            forward.cancel()
            gone.cancel()
            await asyncio.gather(forward, gone, return_exceptions=True)
        if was_done:
            forward.result()

    def _request(self, scope: Scope, body: bytes, hashes: Sequence[int]) -> _Request:
        permit, path = current_permit.get(), path_of(scope)
        target = bytes(scope.get("raw_path") or quote(path).encode())
        if query := bytes(scope.get("query_string", b"")):
            target += b"?" + query
        headers = [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in scope["headers"]
            if name.lower() not in _NOT_FORWARDED
        ]
        if permit is not None:
            headers.append((CLASS_HEADER.decode(), permit.work.work_class.value))
        return _Request(
            method=scope["method"],
            path=path,
            target=target.decode("latin-1"),
            headers=headers,
            sent=forwarded_body(path, body, self._draw_seed),
            prompt=prompt_alone(path, body) if self._replicas.have_roles else None,
            hashes=hashes,
            permit=permit,
        )

    async def _forward(self, request: _Request, send: Send) -> None:
        if request.permit is None and not self._replicas.ready:
            await answer(send, _NONE_READY, path=request.path, headers=[])
            return
        try:
            while not await self._tried(request, send):
                pass
        except (_CannotGoOn, StreamDiverged) as error:
            logger.warning("a stream that had begun is broken off: %r", error)
            self._counters.broken()
            await _break_off(request, send)
        finally:
            if request.permit is not None and not request.is_refused:
                _begin(request.permit)
                request.permit.made(request.used_tokens())

    async def _tried(self, request: _Request, send: Send) -> bool:
        """Send the request, or its prompt, to one replica; whether it is answered."""
        passed_over = request.refused_by | request.rested
        part = request.part
        replica = await self._replicas.choose(
            request.hashes, part=part, without=passed_over, **request.choices
        )
        if replica is None:
            return await _refused_by_all(request, send)
        try:
            with replica.holding(request.hashes, request.prompt_tokens, part) as held:
                if part is RequestPart.PROMPT and self._prefills_for_another(replica):
                    await self._prefill(replica, request, held)
                    return False
                await self._ask(replica, request, held, send)
                return True
        except _Unserved as unserved:
            request.last = unserved.answer
            if unserved.answer.status == HTTPStatus.TOO_MANY_REQUESTS:
                request.refused_by.add(replica.place.number)
                self._counters.replayed(ReplayReason.REFUSED, begun=request.begun)
                return False
            if request.permit is None:
                await _answer(request, unserved.answer, send)
                return True
            if unserved.answer.status == HTTPStatus.SERVICE_UNAVAILABLE:
                self._replicas.distrust(replica, "it refuses requests")
                self._again(request, ReplayReason.UNAVAILABLE)
                request.rested.add(replica.place.number)
                return False
            lost: Exception = unserved
        except aiohttp.ClientConnectorError as error:  # it was never there, and cannot be why
            self._replicas.distrust(replica, f"no connection: {error.strerror}")
            self._again(request, ReplayReason.UNAVAILABLE)
            return False
        except (ReplicaFailed, *_LOST) as error:
            lost = error
        self._replicas.distrust(replica, f"a request was lost: {type(lost).__name__}")
        replica.losses += 1
        request.losses += 1
        logger.warning("replica %d lost a request: %r", replica.place.number, lost)
        if request.losses < LOSSES_MAX:
            self._again(request, ReplayReason.LOST)
            return False
        await self._give_up(request, lost, send)
        return True

    def _prefills_for_another(self, replica: LiveReplica) -> bool:
        return replica.role is RankRole.PREFILL and bool(self._replicas.ready_to_decode)

    async def _prefill(self, replica: LiveReplica, request: _Request, held: HeldTokens) -> None:
        """Have a prompt computed for the replica that is to decode, which is chosen now, unless
        others are to have it. Raises as `_ask`.
        """
        request.decoder = decoder = await self._replicas.choose(
            request.hashes, part=RequestPart.REST, last_choice=replica.place.number
        )
        assert decoder is not None, "some are ready"
        task = asyncio.create_task(self._prefilled(replica, request, decoder))
        replica.prompts[task] = held.prompt_tokens
        try:
            with decoder.expecting(request.prompt_tokens):
                await asyncio.wait({task})
        finally:
            del replica.prompts[task]
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if task.cancelled():
            request.cut_off_by = replica.place.number
            self._counters.replayed(ReplayReason.SHARED, begun=request.begun)
        else:
            request.go_on_with(task.result(), replica.place.number)

    async def _prefilled(
        self, replica: LiveReplica, request: _Request, decoder: LiveReplica
    ) -> dict[str, Any]:
        """Have a prompt computed; where its KV is held. A request that is refused for what it says
        hears so from the replica that decodes. Raises as `_ask`.
        """
        assert request.prompt is not None
        prompt = prompt_for(request.prompt, decoder.kv_target)
        async with self._asked(replica, request, prompt) as response:
            body = await response.read()
            said = _Answer(status=response.status, headers=_headers(response, replica), body=body)
        _raise_unserved(said)
        if _ABORTED in said.body:
            raise ReplicaFailed(said.body)
        return held_kv(said.body) if said.status == HTTPStatus.OK else {}

    def _again(self, request: _Request, reason: ReplayReason) -> None:
        """Make the request ready for another replica, which reads the prompt's KV unless a lost one
        may have; raises _CannotGoOn.
        """
        if request.begun and not request.sent.repeatable:
            raise _CannotGoOn
        if request.stream is not None:
            request.stream.again()
        request.counts.clear()
        if request.kv_params is not None and reason is ReplayReason.LOST:
            request.go_on_with(None, None)
        self._counters.replayed(reason, begun=request.begun)

    async def _give_up(self, request: _Request, lost: Exception, send: Send) -> None:
        if request.begun:
            raise _CannotGoOn from lost
        if isinstance(lost, _Unserved):
            await _answer(request, lost.answer, send)
            return
        error = HttpError(
            HTTPStatus.BAD_GATEWAY, "replicas_lost", f"{request.losses} replicas lost the request"
        )
        await answer(send, error, path=request.path, headers=[])

    async def _ask(
        self, replica: LiveReplica, request: _Request, held: HeldTokens, send: Send
    ) -> None:
        """Get the answer of one replica to the client.

        Raises _Unserved, ReplicaFailed, or what _LOST has where it did not come to its end.
        """
        reads = replica.place.number != request.holder
        body = with_kv(request.sent.body, (reads and request.kv_params) or {})
        async with self._asked(replica, request, body) as response:
            headers = _headers(response, replica)
            if response.content_type != _EVENTS or response.status != HTTPStatus.OK:
                said = _Answer(status=response.status, headers=headers, body=await response.read())
                _note_version(replica, said.body)
                await self._pass_whole(said, request, send)
                return
            start: Message = {"type": "http.response.start", "status": 200, "headers": headers}
            await _pass_events(response.content, request, replica, held, start, send)

    def _asked(
        self, replica: LiveReplica, request: _Request, body: bytes | None
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        url = URL(replica.url + request.target, encoded=True)
        return self._session.request(
            request.method, url, headers=request.headers, data=body or None
        )

    async def _pass_whole(self, said: _Answer, request: _Request, send: Send) -> None:
        _raise_unserved(said)
        if request.begun or (request.permit is not None and _ABORTED in said.body):
            raise ReplicaFailed(said.body)
        if request.permit is not None:
            request.note_usage(said.body)
        await _answer(request, said, send)


def _headers(response: aiohttp.ClientResponse, replica: LiveReplica) -> Headers:
    """A replica's answer's, for the client."""
    return [
        *(pair for pair in response.raw_headers if pair[0].lower() not in _NOT_RETURNED),
        (REPLICA_HEADER, str(replica.place.number).encode()),
    ]


def _raise_unserved(said: _Answer) -> None:
    refused = said.status == HTTPStatus.TOO_MANY_REQUESTS
    if refused or said.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise _Unserved(said)


async def _pass_events(
    content: aiohttp.StreamReader,
    request: _Request,
    replica: LiveReplica,
    held: HeldTokens,
    start: Message,
    send: Send,
) -> None:
    stream = request.stream
    async for event in events_of(content):
        parts = [event + b"\n\n"] if stream is None else stream.take(event)
        if stream is None or stream.usage is not None:
            request.note_usage(event)
            _note_version(replica, event)
        for part in parts:
            if not request.begun:
                request.begun = True
                await send(start)
            if request.permit is not None:
                _begin(request.permit)
            await send({"type": "http.response.body", "body": part, "more_body": True})
        held.made(len(parts))
    if stream is not None and not stream.done:
        raise ReplicaFailed(b"the stream has no end")
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _refused_by_all(request: _Request, send: Send) -> bool:
    """Wait for a replica that may take it later, else answer; whether it is answered."""
    if not request.begun and not request.rested:
        assert request.last is not None
        await _answer(request, request.last, send)
        return True
    await asyncio.sleep(REFUSED_AGAIN_S)
    request.rested.clear()
    if request.begun:
        request.refused_by.clear()
    return False


def _note_version(replica: LiveReplica, said: bytes) -> None:
    if found := _FINGERPRINT.search(said):
        replica.fingerprint = found[1].decode()


async def _answer(request: _Request, said: _Answer, send: Send) -> None:
    request.is_refused = said.status >= HTTPStatus.BAD_REQUEST
    await said.send(send)


async def _break_off(request: _Request, send: Send) -> None:
    """End a stream with an error, of which its client knows that it is not whole."""
    if request.permit is not None:
        request.permit.cut(Outcome.FAILED)
    body = _BROKEN.event(request.path)
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _begin(permit: Permit) -> None:
    """Count its sequences as begun, with a first token; its tokens are counted at its end."""
    if permit.entry.begun_sequences or permit.has_left:
        return
    work = permit.work
    permit.begin(
        Counted(sequences=work.sequences, prompt_tokens=0, new_tokens_max=work.new_tokens_max)
    )
    for _ in range(work.sequences):
        permit.first_token()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

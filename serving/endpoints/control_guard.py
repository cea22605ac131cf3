"""What every call of the control port passes: the key, the limits, and how it ends.

A call without the key is refused before its message is read. Health alone needs none, because who
asks for it (a supervisor, a load balancer) has none; it has room of its own, so that nobody without
a key can take that of the others. Messages are read here, so that what cannot be read is an
INVALID_ARGUMENT, and handlers may raise: see `call_failure`.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing
from types import TracebackType
from typing import Any, Final, Protocol

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from serving.endpoints.call_failure import failure_of_call, too_many
from serving.front_door.grpc.rpc_errors import CallRefused, RpcFailure, abort_for

# Below "vllm", where the API's process has configured handlers; a name of our own prints nothing.
logger = logging.getLogger(f"vllm.{__name__}")

CALLS_MAX: Final = 16
"""Calls at a time; one more is refused with RESOURCE_EXHAUSTED."""

WATCHES_MAX: Final = 32
"""Streams at a time, besides."""

HEALTH_CALLS_MAX: Final = 16
"""Of those that need no key, besides."""

MESSAGE_BYTES_MAX: Final = 64 * 2**10
"""Of a request; the longest that means something names every chip of a system."""

CALL_WALL_S_MAX: Final = 600.0
"""Of a call that is no stream: longer than any step, and not for ever."""

_BEARER: Final = "bearer "
_HEALTH: Final = "/grpc.health.v1.Health/"

Context = grpc.aio.ServicerContext[Any, Any]
Handler = Any


class MethodHandler(Protocol):
    """gRPC's own, with the names that its types leave out."""

    request_streaming: bool
    response_streaming: bool
    request_deserializer: Callable[[bytes], Message]
    response_serializer: Callable[[Message], bytes]
    unary_unary: Callable[[Message, Any], Awaitable[Message]]
    unary_stream: Callable[[Message, Any], Any]
    stream_stream: Callable[[AsyncIterator[Message], Any], AsyncGenerator[Message, None]]


class _Room:
    """How many calls of one sort there may be."""

    def __init__(self, what: str, most: int) -> None:
        self.inside = 0
        self._what = what
        self._most = most

    def __enter__(self) -> None:
        if self.inside >= self._most:
            raise too_many(self._what, self._most)
        self.inside += 1

    def __exit__(self, *_: object) -> None:
        self.inside -= 1


class ControlGuard(grpc.aio.ServerInterceptor):
    """Lets in who shows a key that `admits` knows; `call_wall_s_max` bounds calls, not streams."""

    def __init__(
        self,
        admits: Callable[[str | None], bool],
        *,
        call_wall_s_max: float = CALL_WALL_S_MAX,
    ) -> None:
        self._admits = admits
        self._call_wall_s_max = call_wall_s_max
        self._calls = _Room("calls", CALLS_MAX)
        self._watches = _Room("streams", WATCHES_MAX)
        self._health = _Room("health calls", HEALTH_CALLS_MAX)

    @property
    def inside(self) -> int:
        """Calls and streams that have not ended."""
        return self._calls.inside + self._watches.inside + self._health.inside

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """The handler of one call, with everything around it."""
        method = handler_call_details.method
        about_health = method.startswith(_HEALTH)
        if not about_health:
            secret = secret_of(handler_call_details.invocation_metadata or ())
            if not self._admits(secret):
                return _refusing(_no_key())
        handler = await continuation(handler_call_details)
        if handler is None:
            return _refusing(_no_method(method))
        if handler.request_streaming:
            return self._both_ways(handler, self._watches)
        if handler.response_streaming:
            if about_health:
                return self._health_watch(handler)
            return self._streaming(handler, self._watches)
        return self._unary(handler, self._health if about_health else self._calls)

    def _unary(self, handler: MethodHandler, room: _Room) -> Handler:
        async def call(raw: bytes, context: Context) -> bytes:
            async with _Ending(context), asyncio.timeout(self._call_wall_s_max):
                with room:
                    response = await handler.unary_unary(_message_of(raw, handler), context)
                    return handler.response_serializer(response)

        return grpc.unary_unary_rpc_method_handler(call)

    def _streaming(self, handler: MethodHandler, room: _Room) -> Handler:
        async def call(raw: bytes, context: Context) -> AsyncIterator[bytes]:
            async with _Ending(context):
                with room:
                    request = _message_of(raw, handler)
                    async with aclosing(handler.unary_stream(request, context)) as responses:
                        async for response in responses:
                            yield handler.response_serializer(response)

        return grpc.unary_stream_rpc_method_handler(call)

    def _health_watch(self, handler: MethodHandler) -> Handler:
        """The library's own writes to the context, and returns nothing."""

        async def call(raw: bytes, context: Context) -> None:
            async with _Ending(context):
                with self._health:
                    await handler.unary_stream(_message_of(raw, handler), context)

        return grpc.unary_stream_rpc_method_handler(
            call, response_serializer=handler.response_serializer
        )

    def _both_ways(self, handler: MethodHandler, room: _Room) -> Handler:
        async def call(raw: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
            requests = (_message_of(each, handler) async for each in raw)
            async with _Ending(context):
                with room:
                    async with aclosing(handler.stream_stream(requests, context)) as responses:
                        async for response in responses:
                            yield handler.response_serializer(response)

        return grpc.stream_stream_rpc_method_handler(call)


class _Ending:
    """Ends the call as what is raised inside says it; what is our own mistake is in the log."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def __aenter__(self) -> None:
        """Nothing has failed yet."""

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # A handler of the library's may have ended the call itself; whoever goes is not answered.
        if isinstance(error, Exception) and not isinstance(error, grpc.aio.AbortError):
            failure = failure_of_call(error)
            if failure.code is grpc.StatusCode.INTERNAL:
                logger.error("a call of the control service failed", exc_info=error)
            await abort_for(self._context, failure)


def secret_of(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    """The key that a call shows in `authorization: Bearer KEY`; None for none, or more than one."""
    shown = [value for name, value in metadata if name == "authorization"]
    if len(shown) != 1 or not isinstance(shown[0], str):
        return None
    scheme, secret = shown[0][: len(_BEARER)], shown[0][len(_BEARER) :].strip()
    return secret if scheme.lower() == _BEARER and secret else None


def _message_of(raw: bytes, handler: MethodHandler) -> Message:
    if len(raw) > MESSAGE_BYTES_MAX:
        words = f"a message of {len(raw):,} bytes: expected at most {MESSAGE_BYTES_MAX:,}"
        code = grpc.StatusCode.RESOURCE_EXHAUSTED
        violations = {"control service": words}
        raise CallRefused(
            RpcFailure(code=code, message=words, reason="MESSAGE_BYTES", violations=violations)
        )
    try:
        return handler.request_deserializer(raw)
    except DecodeError as error:
        raise CallRefused(
            RpcFailure(
                code=grpc.StatusCode.INVALID_ARGUMENT,
                message="the bytes are no message of this method",
                reason="UNREADABLE_MESSAGE",
            )
        ) from error


def _refusing(failure: RpcFailure) -> Handler:
    """A handler that reads nothing and refuses, whatever kind of call it is."""

    async def refuse(_: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        await abort_for(context, failure)
        yield b""

    return grpc.stream_stream_rpc_method_handler(refuse)


def _no_key() -> RpcFailure:
    return RpcFailure(
        code=grpc.StatusCode.UNAUTHENTICATED,
        message="expected the control service's key: metadata authorization, Bearer KEY",
        reason="UNAUTHENTICATED",
    )


def _no_method(method: str) -> RpcFailure:
    return RpcFailure(
        code=grpc.StatusCode.UNIMPLEMENTED,
        message=f"there is no method {method}",
        reason="NOT_SERVED",
    )

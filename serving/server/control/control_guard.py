"""What every call of the control port passes: the key, the limits, and how it ends.

A call without the key is refused before its message is read. Health alone needs none, because who
asks for it (a supervisor, a load balancer) has none. A check of it is over within seconds; who
watches it does so in a room apart, and for a while. Messages are read here, so that what cannot be
read is an INVALID_ARGUMENT, and handlers may raise: see `call_failure`. A call that changes
something is told in the log, with whose key asked for it and how it ended.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Protocol

import grpc
import grpc.aio
from google.protobuf.message import Message

from serving.access.secret import request_credential
from serving.server.connections.grpc_relay import NamedConnections
from serving.server.control.action_ledger import KEY_HEADER, ActionLedger
from serving.server.control.call_failure import failure_of_call, stream_over, too_many
from serving.server.gateway.grpc.call_messages import message_in
from serving.server.gateway.grpc.rpc_errors import (
    CallRefused,
    RpcFailure,
    abort_for,
    not_served,
    refusing,
)
from serving.server.gateway.grpc.stranger_answers import AnsweredContext, StrangerAnswers
from serving.wire.control_call import only_reads

# Below "vllm", where the API's process has configured handlers; a name of our own prints nothing.
logger = logging.getLogger(f"vllm.{__name__}")

CALLS_MAX: Final = 16
"""Calls at a time; one more is refused with RESOURCE_EXHAUSTED."""

WATCHES_MAX: Final = 32
"""Streams at a time, besides."""

HEALTH_WATCHES_MAX: Final = 64
"""Watches of health at a time, which need no key."""

HEALTH_CHECKS_MAX: Final = 128
"""Those that have not sent their message are among them, for as long as that is waited for."""

_CONNECTION_ANSWERS_MAX: Final = 8
_ANSWERS_MAX: Final = HEALTH_CHECKS_MAX // 2
"""Answers about health that are not taken, of one connection and of all: half of the checks that
there may be, so that they never keep others from theirs."""

MESSAGE_BYTES_MAX: Final = 64 * 2**10
"""Of a request; the longest that means something names every chip of a system."""

CALL_WALL_S_MAX: Final = 600.0
"""Of a call that is no stream, with what it does after it was answered: longer than any step, and
not for ever."""

LOOK_WALL_S_MAX: Final = 1.8
"""Of a call that changes nothing; what 2 s leave for the way there and back."""

_MOMENT_S: Final = 0.1
"""What a look has left when the engine's time is over, however late the loop is."""

STREAM_WALL_S_MAX: Final = 3_600.0
"""Of a stream; a client begins another where it ended."""

HEALTH_CHECK_WALL_S_MAX: Final = 5.0
"""Of a call without a key, with its message's way and the answer's; of a watch, till it is read."""

HEALTH_WATCH_WALL_S_MAX: Final = 600.0

_OPERATOR: Final = "operator"
_HEALTH: Final = "/grpc.health.v1.Health/"
_CONTROL: Final = "/ultraserve.v1.ControlService/"

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


class _CallLimit:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardLimits:
    """Wall seconds that calls, those that only look, streams, and calls about health may take."""

    call_wall_s_max: float = CALL_WALL_S_MAX
    look_wall_s_max: float = LOOK_WALL_S_MAX
    stream_wall_s_max: float = STREAM_WALL_S_MAX
    health_check_wall_s_max: float = HEALTH_CHECK_WALL_S_MAX
    health_watch_wall_s_max: float = HEALTH_WATCH_WALL_S_MAX


def unnamed(_: str | None) -> str:
    """Whose key it is, where keys have no names."""
    return "the run's key"


class ControlGuard(grpc.aio.ServerInterceptor):
    """Lets in who shows a key that `admits` knows; `named` says whose it is, for the log.

    `changed` is called when one that changes something is over, before it is answered; `names` is
    told whose connections they are.
    """

    def __init__(
        self,
        admits: Callable[[str | None], bool],
        *,
        named: Callable[[str | None], str] = unnamed,
        changed: Callable[[], None] = lambda: None,
        limits: GuardLimits | None = None,
        names: NamedConnections | None = None,
    ) -> None:
        self._connections = names or NamedConnections()
        self._answers = StrangerAnswers(
            self._connections.cut_off,
            cut_off_late=self._connections.cut_off_stranger,
            connection_max=_CONNECTION_ANSWERS_MAX,
            answers_max=_ANSWERS_MAX,
        )
        self._admits = admits
        self._named = named
        self._changed = changed
        self._limits = limits or GuardLimits()
        self.ledger = ActionLedger()
        self._calls = _CallLimit("calls", CALLS_MAX)
        self._watches = _CallLimit("streams", WATCHES_MAX)
        self._health_watches = _CallLimit("watchers of health", HEALTH_WATCHES_MAX)
        self._health_checks = _CallLimit("checks of health", HEALTH_CHECKS_MAX)

    @property
    def inside(self) -> int:
        """Calls and streams that have not ended."""
        limits = (self._calls, self._watches, self._health_watches, self._health_checks)
        return sum(limit.inside for limit in limits)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """The handler of one call, with everything around it."""
        method = handler_call_details.method
        about_health = method.startswith(_HEALTH)
        metadata = handler_call_details.invocation_metadata or ()
        secret = request_credential(metadata)
        if not about_health and not self._admits(secret):
            return refusing(_no_key())
        handler = await continuation(handler_call_details)
        if handler is None:
            return refusing(not_served(method))
        if about_health:
            is_watch = handler.response_streaming
            return self._health_watch(handler) if is_watch else self._health_check(handler)
        if handler.response_streaming:
            return self._streaming(handler)
        if changes_something(method):
            asked = f"{name_of(method)} by {self._named(secret)}"
            return self._changing(handler, method, asked, key_of(metadata))
        return self._unary(handler)

    def _showed_key(self, context: Context) -> None:
        """All keys of the service are its operator's, whatever they are called."""
        self._connections.showed(context.peer(), _OPERATOR)

    def _unary(self, handler: MethodHandler) -> Handler:
        async def call(raw: bytes, context: Context) -> bytes:
            self._showed_key(context)
            async with _Ending(context), _timeout(self._limits.look_wall_s_max):
                with self._calls:
                    response = await handler.unary_unary(_message_of(raw, handler), context)
                    return handler.response_serializer(response)

        return grpc.unary_unary_rpc_method_handler(call)

    def _changing(
        self, handler: MethodHandler, method: str, asked: str, key: str | None
    ) -> Handler:
        """One that changes something: it goes on when its client has gone, see `ActionLedger`."""

        async def call(raw: bytes, context: Context) -> bytes:
            self._showed_key(context)
            async with _Ending(context, asked):
                with self._calls:
                    request = _message_of(raw, handler)

                    async def act() -> bytes:
                        try:
                            async with asyncio.timeout(self._limits.call_wall_s_max):
                                response = await handler.unary_unary(request, context)
                        finally:  # one that fails may have changed something too
                            self._changed()
                        return handler.response_serializer(response)

                    answer: bytes = await self.ledger.outcome(key, (method, raw), act)
                    return answer

        return grpc.unary_unary_rpc_method_handler(call)

    def _streaming(self, handler: MethodHandler) -> Handler:
        async def call(raw: Any, context: Context) -> AsyncIterator[bytes]:
            self._showed_key(context)
            async with _Ending(context):
                with self._watches:
                    if handler.request_streaming:
                        requests = (_message_of(each, handler) async for each in raw)
                        made = handler.stream_stream(requests, context)
                    else:
                        made = handler.unary_stream(_message_of(raw, handler), context)
                    async with aclosing(made) as responses:
                        async for response in self._for_a_while(responses):
                            yield handler.response_serializer(response)

        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(call)
        return grpc.unary_stream_rpc_method_handler(call)

    async def _for_a_while(self, responses: AsyncIterator[Message]) -> AsyncIterator[Message]:
        """Hand on what comes within a stream's time; raises CallRefused at its end."""
        end_s = asyncio.get_running_loop().time() + self._limits.stream_wall_s_max
        while True:
            try:
                async with asyncio.timeout_at(end_s) as time:
                    response = await anext(responses)
            except StopAsyncIteration:
                return
            except TimeoutError:
                if time.expired():
                    raise stream_over() from None
                raise
            yield response

    # Who has no key may begin a call and never send its message: as a stream the call is handled
    # from its headers on, whatever it is to its client, so that its time begins there.

    def _health_check(self, handler: MethodHandler) -> Handler:
        async def call(raw: AsyncIterator[bytes], context: Context) -> None:
            wall_s_max = self._limits.health_check_wall_s_max
            async with _Ending(context), asyncio.timeout(wall_s_max):
                with self._health_checks:
                    request = _message_of(await anext(raw, b""), handler)
                    response = await handler.unary_unary(request, context)
                    answer = handler.response_serializer(response)
                    await self._answers.write(context, answer)

        return grpc.stream_stream_rpc_method_handler(call)

    def _health_watch(self, handler: MethodHandler) -> Handler:
        """The library's own writes to the context, and returns nothing."""

        async def call(raw: AsyncIterator[bytes], context: Context) -> None:
            async with _Ending(context):
                with self._health_watches:
                    async with asyncio.timeout(self._limits.health_check_wall_s_max):
                        request = _message_of(await anext(raw, b""), handler)
                    try:
                        async with asyncio.timeout(self._limits.health_watch_wall_s_max) as time:
                            answered = AnsweredContext(context, self._answers)
                            await handler.unary_stream(request, answered)
                    except TimeoutError:
                        if time.expired():
                            raise stream_over() from None
                        raise

        return grpc.stream_stream_rpc_method_handler(
            call, response_serializer=handler.response_serializer
        )


@asynccontextmanager
async def _timeout(wall_s: float) -> AsyncIterator[None]:
    """As asyncio.timeout, but whoever has waited in vain has a moment left to say so.

    On a loop that is late by more than that moment all times are over at once, and a look that was
    to show what is known would show nothing.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as time:
        at_s = loop.time() + wall_s
        last = loop.call_later(
            wall_s - _MOMENT_S, lambda: time.reschedule(max(at_s, loop.time() + _MOMENT_S))
        )
        try:
            yield
        finally:
            last.cancel()


class _Ending:
    """Ends the call by the exception raised inside; a defect of the server goes to the log.

    So is, in one line, the end of a call that `asked` describes.
    """

    def __init__(self, context: Context, asked: str = "") -> None:
        self._context = context
        self._asked = asked

    async def __aenter__(self) -> None:
        """Nothing has failed yet."""

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # A handler of the library's may have ended the call itself; whoever goes is not answered.
        over = (grpc.aio.AbortError, grpc.aio.InternalError)
        if error is None or not isinstance(error, Exception) or isinstance(error, over):
            self._tell("OK" if error is None else "CANCELLED")
            return
        failure = failure_of_call(error)
        if failure.code is grpc.StatusCode.INTERNAL and not isinstance(error, CallRefused):
            logger.error("a call of the control service failed", exc_info=error)
        self._tell(failure.code.name)
        await abort_for(self._context, failure)

    def _tell(self, code: str) -> None:
        if self._asked:
            logger.info("control call %s: %s", self._asked, code)


def key_of(metadata: Any) -> str | None:
    """The idempotency key of a call; None where it has none."""
    return next((str(value) for name, value in metadata if name == KEY_HEADER), None)


def name_of(method: str) -> str:
    """The last part of a method's path."""
    return method.rpartition("/")[2]


def changes_something(method: str) -> bool:
    """Whether it is one of the service's own methods that do more than look."""
    return method.startswith(_CONTROL) and not only_reads(name_of(method))


def _message_of(raw: bytes, handler: MethodHandler) -> Message:
    return message_in(
        raw,
        handler.request_deserializer,
        bytes_max=MESSAGE_BYTES_MAX,
        subject="control service",
    )


def _no_key() -> RpcFailure:
    return RpcFailure(
        code=grpc.StatusCode.UNAUTHENTICATED,
        message="expected the control service's key: metadata authorization, Bearer KEY",
        reason="UNAUTHENTICATED",
    )

"""Guards every call of the control port: key, limits, and the failure's code.

A call without the key is refused before its message is read; health needs none, as supervisors and
load balancers have none. Messages are parsed here, so that a malformed one is INVALID_ARGUMENT;
handlers raise, see `call_failure`. Each change is logged with its key's name and its end.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import grpc
import grpc.aio
from google.protobuf.message import Message

from emulator.errors import ConfigError
from serving.access.secret import request_credential
from serving.server.connections.grpc_relay import NamedConnections
from serving.server.console.call_answer import NO_REPLICAS, REPLICA_HEADER
from serving.server.control.action_ledger import KEY_HEADER, ActionLedger
from serving.server.control.call_failure import failure_of_call, stream_over, too_many
from serving.server.gateway.grpc.call_messages import message_in
from serving.server.gateway.grpc.rpc_errors import (
    CallRefused,
    RpcFailure,
    abort_for,
    failure_of,
    not_served,
    refusing,
)
from serving.server.gateway.grpc.stranger_answers import AnsweredContext, StrangerAnswers
from serving.wire.control_call import only_reads

# Below "vllm", where the API's process has configured handlers; a name of our own prints nothing.
logger = logging.getLogger(f"vllm.{__name__}")

CALLS_MAX: Final = 16
"""Concurrent calls; more are refused with RESOURCE_EXHAUSTED."""

WATCHES_MAX: Final = 32
"""Concurrent streams, in addition."""

HEALTH_WATCHES_MAX: Final = 64
"""Concurrent watches of health, which need no key."""

HEALTH_CHECKS_MAX: Final = 128
"""Includes those without their message yet."""

_CONNECTION_ANSWERS_MAX: Final = 8
_ANSWERS_MAX: Final = HEALTH_CHECKS_MAX // 2
"""Unread health answers per connection and in all: half of the checks, so that others get
theirs.
"""

MESSAGE_BYTES_MAX: Final = 64 * 2**10
"""Of a request; the longest names every chip of a system."""

CALL_WALL_S_MAX: Final = 600.0
"""Of a unary call, with its work after the answer: above any step."""

LOOK_WALL_S_MAX: Final = 1.8
"""Of a read; 2 s less the network."""

_MOMENT_S: Final = 0.1
"""Left to a read after the engine's time on a late loop."""

STREAM_WALL_S_MAX: Final = 3_600.0
"""A client then begins another stream."""

HEALTH_CHECK_WALL_S_MAX: Final = 5.0
"""Of a check, message and answer included; of a watch, until its message is read."""

HEALTH_WATCH_WALL_S_MAX: Final = 600.0

_OPERATOR: Final = "operator"
_HEALTH: Final = "/grpc.health.v1.Health/"
_CONTROL: Final = "/ultraserve.v1.ControlService/"

Context = grpc.aio.ServicerContext[Any, Any]
Handler = Any


class MethodHandler(Protocol):
    """gRPC's handler, with names that its types leave out."""

    request_streaming: bool
    response_streaming: bool
    request_deserializer: Callable[[bytes], Message]
    response_serializer: Callable[[Message], bytes]
    unary_unary: Callable[[Message, Any], Awaitable[Message]]
    unary_stream: Callable[[Message, Any], Any]
    stream_stream: Callable[[AsyncIterator[Message], Any], AsyncGenerator[Message, None]]


class _CallLimit:
    """A limit on concurrent calls."""

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
    """Wall-second limits."""

    call_wall_s_max: float = CALL_WALL_S_MAX
    look_wall_s_max: float = LOOK_WALL_S_MAX
    stream_wall_s_max: float = STREAM_WALL_S_MAX
    health_check_wall_s_max: float = HEALTH_CHECK_WALL_S_MAX
    health_watch_wall_s_max: float = HEALTH_WATCH_WALL_S_MAX


def unnamed(_: str | None) -> str:
    """The key's name, where keys have none."""
    return "the run's key"


class ControlGuard(grpc.aio.ServerInterceptor):
    """Admits calls whose key `admits` accepts; `named` names the key for the log.

    `changed` is called after each change, before its answer; `names` learns connections' owners.
    `relays`: calls go on to servers that keep the outcomes of changes themselves, and a call may
    name one of these.
    """

    def __init__(
        self,
        admits: Callable[[str | None], bool],
        *,
        named: Callable[[str | None], str] = unnamed,
        changed: Callable[[], None] = lambda: None,
        limits: GuardLimits | None = None,
        names: NamedConnections | None = None,
        relays: bool = False,
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
        self._relays = relays
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
        """The guarded handler of one call."""
        method = handler_call_details.method
        about_health = method.startswith(_HEALTH)
        metadata = handler_call_details.invocation_metadata or ()
        secret = request_credential(metadata)
        if not about_health and not self._admits(secret):
            return refusing(_no_key())
        replica = None if self._relays else replica_in(metadata)
        if replica is not None:
            return refusing(failure_of(ConfigError("replica", replica[:40], NO_REPLICAS)))
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
            if self._relays:
                return self._unary(handler, asked)
            return self._changing(handler, method, asked, key_of(metadata))
        return self._unary(handler)

    def _showed_key(self, context: Context) -> None:
        """All keys of the service are its operator's."""
        self._connections.showed(context.peer(), _OPERATOR)

    def _unary(self, handler: MethodHandler, asked: str = "") -> Handler:
        async def call(raw: bytes, context: Context) -> bytes:
            self._showed_key(context)
            async with _ending(context, asked), _timeout(self._limits.look_wall_s_max):
                with self._calls:
                    response = await handler.unary_unary(_message_of(raw, handler), context)
                    return handler.response_serializer(response)

        return grpc.unary_unary_rpc_method_handler(call)

    def _changing(
        self, handler: MethodHandler, method: str, asked: str, key: str | None
    ) -> Handler:
        """Continues without its client, see `ActionLedger`."""

        async def call(raw: bytes, context: Context) -> bytes:
            self._showed_key(context)
            async with _ending(context, asked):
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
            async with _ending(context):
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
        """Raises CallRefused at a stream's time limit."""
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
            async with _ending(context), asyncio.timeout(wall_s_max):
                with self._health_checks:
                    request = _message_of(await anext(raw, b""), handler)
                    response = await handler.unary_unary(request, context)
                    answer = handler.response_serializer(response)
                    await self._answers.write(context, answer)

        return grpc.stream_stream_rpc_method_handler(call)

    def _health_watch(self, handler: MethodHandler) -> Handler:
        """The library's handler writes to the context and returns nothing."""

        async def call(raw: AsyncIterator[bytes], context: Context) -> None:
            async with _ending(context):
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
    """As asyncio.timeout, but leaves the body a moment to answer after a failed wait.

    On a later loop all timeouts expire at once, and a read could not return its last reply.
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


@asynccontextmanager
async def _ending(context: Context, asked: str = "") -> AsyncIterator[None]:
    """Ends the call by the exception raised inside; logs defects, and the end of the call
    `asked`.
    """

    def tell(code: str) -> None:
        if asked:
            logger.info("control call %s: %s", asked, code)

    try:
        yield
    except (grpc.aio.AbortError, grpc.aio.InternalError):
        tell("CANCELLED")  # a handler of the library's may have ended the call itself
        raise
    except Exception as error:
        failure = failure_of_call(error)
        if failure.code is grpc.StatusCode.INTERNAL and not isinstance(error, CallRefused):
            logger.exception("a call of the control service failed")
        tell(failure.code.name)
        await abort_for(context, failure)
    except BaseException:
        tell("CANCELLED")  # whoever goes is not answered
        raise
    tell("OK")


def key_of(metadata: Any) -> str | None:
    """The idempotency key of a call, or None."""
    return next((str(value) for name, value in metadata if name == KEY_HEADER), None)


def replica_in(metadata: Any) -> str | None:
    """The replica that a call names, or None."""
    return next((str(value) for name, value in metadata if name == REPLICA_HEADER), None)


def name_of(method: str) -> str:
    """The last part of a method's path."""
    return method.rpartition("/")[2]


def changes_something(method: str) -> bool:
    """Whether it is the service's own and does more than read."""
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
        grpc.StatusCode.UNAUTHENTICATED,
        "UNAUTHENTICATED",
        "expected the control service's key: metadata authorization, Bearer KEY",
    )

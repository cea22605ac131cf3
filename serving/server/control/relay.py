"""Control calls to one of several servers on this machine: each goes on to the one that it names.

A call names a server by its number, in the metadata of `REPLICA_HEADER`. It need not where there is
one server, or for the description of the system, which is that of all.

Outcomes of changes are kept there, by the same idempotency key. A failure comes back with its code,
its words and its details.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import MappingProxyType, NoneType
from typing import Any, Final, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from emulator.errors import ConfigError
from serving.server.control.action_ledger import KEY_HEADER
from serving.server.control.call_failure import OUTCOME_UNKNOWN, RETRY_S, status_of
from serving.server.control.control_address import ControlAddress
from serving.server.control.control_guard import CALL_WALL_S_MAX, key_of, replica_in
from serving.server.control.control_messages import answered, request_message
from serving.server.control.generic_service import SERVICE
from serving.server.gateway.grpc.rpc_errors import CallRefused, RpcFailure, failure_in
from serving.wire.control_call import DESCRIBE_SYSTEM, PUBLISH, ROLLBACK, Rpc

logger = logging.getLogger("ultraserve.relay")

ANSWER_WALL_S_MAX: Final = 2.0
"""Wall seconds of a server's answer, within which it says at least that it has none yet."""

REPLICA_SILENT: Final = "REPLICA_SILENT"
"""Error reason: the server itself does not answer."""

_ASK_AGAIN_S: Final = 0.1

_FOLLOWED: Final = (PUBLISH.name, ROLLBACK.name)
"""Changes whose outcome is asked for until it is known, whether or not their client does."""

_FOLLOW_WALL_S_MAX: Final = CALL_WALL_S_MAX
_FOLLOWED_MAX: Final = 64
"""At a time; above it, an outcome is known if its client asks again."""

_CHANNEL: Final = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),
    # Or a server that has started again would be silent for as long as it was away.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1_000),  # a server that starts again is there in seconds
)

ShownT = TypeVar("ShownT")

Passed = Callable[[int, str, Message, Message], None]
"""Hears of each change that was done: the server's number, method, request and response."""

Check = Callable[[int, str], None]
"""Raises CallRefused where a client's call may not go on to the server of this number."""


Answer = Callable[[int, Message], Message]
"""Answers a call to the server of this number in its place; raises ConfigError."""


class ControlRelay:
    """The way to the servers at `addresses`, which know the key `key`.

    A gRPC generic handler for `ControlPorts`, and calls of this process's own. Of weights that are
    published or rolled back, `passed` hears once an outcome is known, also without the client.
    Calls of `own`, by name, do not go on.
    """

    def __init__(
        self,
        addresses: Sequence[ControlAddress],
        key: str,
        *,
        passed: Passed = lambda *_: None,
        check: Check = lambda *_: None,
        own: Mapping[str, Answer] = MappingProxyType({}),
    ) -> None:
        self._addresses = addresses
        self._key = ("authorization", f"Bearer {key}")
        self._passed = passed
        self._check = check
        self._own = own
        self._follows: dict[tuple[int, str], asyncio.Task[None]] = {}
        self._channels: dict[int, grpc.aio.Channel] = {}

    def handlers(self) -> grpc.GenericRpcHandler:
        """Handlers of control.proto's methods."""
        made: dict[str, Any] = {}
        for method in SERVICE.methods:
            read: Any = GetMessageClass(method.input_type).FromString
            write: Any = GetMessageClass(method.output_type).SerializeToString
            if method.server_streaming:
                streamed: Any = self._streamed(method.name)
                made[method.name] = grpc.unary_stream_rpc_method_handler(streamed, read, write)
            else:
                called: Any = self._called(method.name)
                made[method.name] = grpc.unary_unary_rpc_method_handler(called, read, write)
        return grpc.method_handlers_generic_handler(SERVICE.full_name, made)

    def number_of(self, named: str | None) -> int:
        """The server that a call names; raises ConfigError for none of them."""
        count = len(self._addresses)
        if named is None and count == 1:
            return 0
        if named is None or not (named.isascii() and named.isdecimal() and int(named) < count):
            shown = "(none)" if named is None else named[:40]
            raise ConfigError("replica", shown, f"0 to {count - 1}, by --replica")
        return int(named)

    async def call(self, number: int, rpc: Rpc[ShownT], **fields: object) -> ShownT:
        """What the server says to `rpc`; raises CallRefused, or ConfigError for a wrong word.

        A change without an outcome is asked again, until it has one.
        """
        kind = GetMessageClass(SERVICE.methods_by_name[rpc.name].input_type)
        request = request_message(kind, fields)
        action = None if rpc.only_reads else secrets.token_hex(8)
        while True:
            try:
                response = await self.raw(number, rpc.name, request, action=action)
                break
            except CallRefused as error:
                if error.failure.reason != OUTCOME_UNKNOWN:
                    raise
                await asyncio.sleep(_ASK_AGAIN_S)
        shown = None if rpc.shows is NoneType else answered(response, rpc.shows)
        assert isinstance(shown, rpc.shows)
        return shown

    async def raw(
        self,
        number: int,
        name: str,
        request: Message,
        *,
        action: str | None = None,
        wall_s: float = ANSWER_WALL_S_MAX,
    ) -> Message:
        """The server's response within `wall_s`; raises CallRefused."""
        method = self._method(number, name, "unary_unary")
        try:
            response: Message = await method(
                request, metadata=self._metadata(action), timeout=wall_s
            )
        except grpc.aio.AioRpcError as error:
            raise _failure(number, error) from error
        return response

    async def _any(self, name: str, request: Message) -> Message:
        """What the first that answers says: all are equal in it."""
        last = len(self._addresses) - 1
        for number in range(last):
            with contextlib.suppress(CallRefused):
                return await self.raw(number, name, request)
        return await self.raw(last, name, request)

    def _called(self, name: str) -> Callable[[Message, Any], Any]:
        async def call(request: Message, context: Any) -> Message:
            metadata = context.invocation_metadata()
            named = replica_in(metadata)
            if named is None and name == DESCRIBE_SYSTEM.name:
                return await self._any(name, request)
            number = self.number_of(named)
            if (own := self._own.get(name)) is not None:
                return own(number, request)
            self._check(number, name)
            action = key_of(metadata)
            if name in _FOLLOWED:
                return await self._followed(number, name, request, action or secrets.token_hex(8))
            response = await self.raw(number, name, request, action=action)
            self._passed(number, name, request, response)
            return response

        return call

    async def _followed(self, number: int, name: str, request: Message, action: str) -> Message:
        """As `raw`; `passed` hears of the outcome though it be known later."""
        try:
            response = await self.raw(number, name, request, action=action)
        except (CallRefused, asyncio.CancelledError) as error:
            if _is_unknown(error):
                self._follow(number, name, request, action)
            raise
        if (follow := self._follows.pop((number, action), None)) is not None:
            follow.cancel()
        self._passed(number, name, request, response)
        return response

    def _follow(self, number: int, name: str, request: Message, action: str) -> None:
        at = (number, action)
        if at in self._follows:
            return
        if len(self._follows) >= _FOLLOWED_MAX:
            logger.error("the outcome of %s on replica %d is not asked for", name, number)
            return
        task = asyncio.create_task(self._ask_on(number, name, request, action))
        self._follows[at] = task
        task.add_done_callback(lambda _: self._follows.pop(at, None))

    async def _ask_on(self, number: int, name: str, request: Message, action: str) -> None:
        """Ask for an outcome until there is one, or the server has ended."""
        try:
            async with asyncio.timeout(_FOLLOW_WALL_S_MAX):
                response = await self._outcome(number, name, request, action)
        except (CallRefused, TimeoutError) as error:
            logger.warning("%s on replica %d has no known outcome: %s", name, number, error)
            return
        self._passed(number, name, request, response)

    async def _outcome(self, number: int, name: str, request: Message, action: str) -> Message:
        while True:
            await asyncio.sleep(_ASK_AGAIN_S)
            self._check(number, name)  # a process that started anew would do it anew
            try:
                return await self.raw(number, name, request, action=action)
            except CallRefused as error:
                if not _is_unknown(error):
                    raise

    def _streamed(self, name: str) -> Callable[[Message, Any], AsyncIterator[Message]]:
        async def stream(request: Message, context: Any) -> AsyncIterator[Message]:
            number = self.number_of(replica_in(context.invocation_metadata()))
            method = self._method(number, name, "unary_stream")
            call = method(request, metadata=self._metadata(None))
            try:
                async for response in call:
                    yield response
            except grpc.aio.AioRpcError as error:
                raise _failure(number, error) from error
            finally:
                call.cancel()

        return stream

    def _method(self, number: int, name: str, kind: str) -> Any:
        if number not in self._channels:
            address = str(self._addresses[number])
            self._channels[number] = grpc.aio.insecure_channel(address, options=_CHANNEL)
        described = SERVICE.methods_by_name[name]
        return getattr(self._channels[number], kind)(
            f"/{SERVICE.full_name}/{name}",
            request_serializer=GetMessageClass(described.input_type).SerializeToString,
            response_deserializer=GetMessageClass(described.output_type).FromString,
        )

    def _metadata(self, action: str | None) -> list[tuple[str, str]]:
        return [self._key] if action is None else [self._key, (KEY_HEADER, action)]

    async def close(self) -> None:
        """End all connections; idempotent."""
        follows = list(self._follows.values())
        for follow in follows:
            follow.cancel()
        await asyncio.gather(*follows, return_exceptions=True)
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()


def _failure(number: int, error: grpc.aio.AioRpcError) -> CallRefused:
    """The server's own failure, or that it does not answer."""
    status, code = status_of(error), error.code()
    if status is not None:
        return CallRefused(failure_in(status, code))
    message = f"replica {number} does not answer: it may be starting; see `ultraserve replicas`"
    unavailable = grpc.StatusCode.UNAVAILABLE
    return CallRefused(RpcFailure(unavailable, REPLICA_SILENT, message, retry_after_s=RETRY_S))


def _is_unknown(error: BaseException) -> bool:
    """Whether the change may have been done, or may be yet, by a process that is there."""
    if not isinstance(error, CallRefused):
        return True  # the client has gone
    if error.failure.reason != REPLICA_SILENT:
        return error.failure.reason == OUTCOME_UNKNOWN
    cause = error.__cause__
    late = grpc.StatusCode.DEADLINE_EXCEEDED
    return isinstance(cause, grpc.aio.AioRpcError) and cause.code() is late

"""The control service's gRPC handlers, from control.proto's descriptors and the table of calls.

The engine's calls need no code: the request's fields become its request, its reply the response.
Others have a function marked `@answers(SLEEP)`, a stream `@streams("WatchEvents")`.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from types import NoneType
from typing import Any, Final, TypeVar

import grpc
import msgspec
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from protos.ultraserve.v1 import control_pb2 as pb
from serving.server.control.call_failure import answer
from serving.server.control.control_messages import request_fields, respond
from serving.server.control.engine_watch import EngineWatch
from serving.server.control.last_replies import LastReplies
from serving.server.engine_call import Engine
from serving.wire.control_call import FORMER_NAMES, RPCS, ControlReply, Rpc

SERVICE: Final = pb.DESCRIPTOR.services_by_name["ControlService"]

_MARK: Final = "answered_method"

ShownT = TypeVar("ShownT")
ServiceT = TypeVar("ServiceT")
RequestT = TypeVar("RequestT", bound=Message)
StreamT = TypeVar("StreamT", bound=Callable[..., AsyncIterator[Message]])

_Answer = Callable[[ServiceT, RequestT], Awaitable[ShownT]]


def answers(
    rpc: Rpc[ShownT],
) -> Callable[[_Answer[ServiceT, RequestT, ShownT]], _Answer[ServiceT, RequestT, ShownT]]:
    """Mark the function that answers `rpc` in the API's process with its result."""
    assert rpc.asks is None, f"the engine answers {rpc.name}"

    def mark(
        function: _Answer[ServiceT, RequestT, ShownT],
    ) -> _Answer[ServiceT, RequestT, ShownT]:
        setattr(function, _MARK, rpc.name)
        return function

    return mark


def streams(name: str) -> Callable[[StreamT], StreamT]:
    """Mark the function that answers the stream `name` with responses."""

    def mark(function: StreamT) -> StreamT:
        setattr(function, _MARK, name)
        return function

    return mark


class EngineAnswers:
    """Answers the engine's calls."""

    def __init__(self, engine: Engine, replies: LastReplies, watch: EngineWatch) -> None:
        self._engine = engine
        self._replies = replies
        self._watch = watch

    async def shown(self, rpc: Rpc[ShownT], message: Message) -> ShownT:
        """The engine's result; raises as `answer` does, and ConfigError."""
        assert rpc.asks is not None
        request, age_s = rpc.asks(**request_fields(message)), 0.0
        reply: ControlReply
        if rpc.keeps_last:
            reply, age_s = await self._replies.reply(request, ControlReply)
        else:
            reply = await answer(self._engine, request, ControlReply)
        if not rpc.only_reads:
            self._watch.look_now()
        return _with_age(_shown_of(rpc, reply), age_s)


def _shown_of(rpc: Rpc[ShownT], reply: ControlReply) -> ShownT:
    """The result in a reply: itself, or the field named as the response's first."""
    if isinstance(reply, rpc.shows):
        return reply
    (field,) = SERVICE.methods_by_name[rpc.name].output_type.fields[:1]
    shown = getattr(reply, field.name, None)
    assert isinstance(shown, rpc.shows), f"{rpc.name}: {reply}"
    return shown


def _with_age(shown: ShownT, age_s: float) -> ShownT:
    """Adds the reply's age in wall seconds, where the result has such a field."""
    if isinstance(shown, msgspec.Struct) and "age_s" in shown.__struct_fields__:
        return msgspec.structs.replace(shown, age_s=age_s)
    return shown


def generic_service(functions: object, engine: EngineAnswers) -> grpc.GenericRpcHandler:
    """Handlers of control.proto's methods, by the marked methods of `functions` and by `engine`.

    A deprecated method has the handler of its new name.
    """
    marked = _marked(functions)
    handlers: dict[str, Any] = {}
    for method in SERVICE.methods:
        if method.name in FORMER_NAMES:
            continue
        read: Any = GetMessageClass(method.input_type).FromString
        write: Any = GetMessageClass(method.output_type).SerializeToString
        function = marked.pop(method.name, None)
        if method.server_streaming:
            assert function is not None, f"no function streams {method.name}"
            streamed: Any = _stream(function)
            handlers[method.name] = grpc.unary_stream_rpc_method_handler(streamed, read, write)
        else:
            row = RPCS[method.name]
            assert (function is None) == (row.asks is not None), f"who answers {method.name}?"
            called: Any = _unary(row, function, engine)
            handlers[method.name] = grpc.unary_unary_rpc_method_handler(called, read, write)
    assert not marked, f"no methods of control.proto: {sorted(marked)}"
    handlers |= {old: handlers[new] for old, new in FORMER_NAMES.items()}
    return grpc.method_handlers_generic_handler(SERVICE.full_name, handlers)


def _marked(functions: object) -> dict[str, Callable[[Message], Any]]:
    found: dict[str, Callable[[Message], Any]] = {}
    for attribute in dir(type(functions)):
        name = getattr(getattr(type(functions), attribute), _MARK, None)
        if name is not None:
            assert name not in found, f"two functions answer {name}"
            found[name] = getattr(functions, attribute)
    return found


def _unary(
    rpc: Rpc[Any], function: Callable[[Message], Awaitable[Any]] | None, engine: EngineAnswers
) -> Callable[[Message, object], Awaitable[Message]]:
    kind = GetMessageClass(SERVICE.methods_by_name[rpc.name].output_type)

    async def call(request: Message, context: object) -> Message:
        del context
        asked = engine.shown(rpc, request) if function is None else function(request)
        shown = await asked
        return kind() if rpc.shows is NoneType else respond(kind, shown)

    return call


def _stream(
    function: Callable[[Message], AsyncIterator[Message]],
) -> Callable[[Message, object], AsyncIterator[Message]]:
    def call(request: Message, context: object) -> AsyncIterator[Message]:
        del context
        return function(request)

    return call

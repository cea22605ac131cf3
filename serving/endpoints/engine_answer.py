"""The engine's answer to a control call, or the gRPC status that says why there is none."""

from typing import Any, Final, TypeVar

import grpc
import grpc.aio

from serving.controller.engine_call import Engine, EngineFailed, EngineGone, ask
from serving.metrics.control_call import ControlReply, ControlRequest, Refusal, RefusalCode

_STATUS: Final = {
    RefusalCode.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    RefusalCode.PRECONDITION: grpc.StatusCode.FAILED_PRECONDITION,
}

ReplyT = TypeVar("ReplyT", bound=ControlReply)


async def answer(
    engine: Engine, request: ControlRequest, kind: type[ReplyT], context: "Context[Any, Any]"
) -> ReplyT:
    """The engine's reply, which is of `kind`; anything else ends the call with its status."""
    try:
        reply = await ask(engine, request)
    except EngineGone as error:
        await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
    except EngineFailed as error:
        await context.abort(grpc.StatusCode.INTERNAL, str(error))
    if isinstance(reply, Refusal):
        await context.abort(_STATUS[reply.code], reply.message)
    assert isinstance(reply, kind), reply
    return reply


Context = grpc.aio.ServicerContext

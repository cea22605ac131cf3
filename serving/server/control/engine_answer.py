"""The engine's answer to a control call, or what says why there is none."""

from typing import TypeVar

import grpc

from serving.server.control.call_failure import not_now
from serving.server.engine_call import Engine, ask
from serving.server.gateway.grpc.rpc_errors import CallRefused, RpcFailure
from serving.wire.control_call import ControlReply, ControlRequest, Refusal, RefusalCode

ReplyT = TypeVar("ReplyT", bound=ControlReply)


async def answer(engine: Engine, request: ControlRequest, kind: type[ReplyT]) -> ReplyT:
    """The engine's reply, which is of `kind`.

    Raises CallRefused with the engine's words, EngineGone, EngineFailed.
    """
    reply = await ask(engine, request)
    if isinstance(reply, Refusal):
        raise _refused(reply)
    assert isinstance(reply, kind), reply
    return reply


def _refused(refusal: Refusal) -> CallRefused:
    if refusal.code is RefusalCode.PRECONDITION:
        return not_now(refusal.message)
    return CallRefused(
        RpcFailure(
            code=grpc.StatusCode.INVALID_ARGUMENT,
            message=refusal.message,
            reason="INVALID_FIELD",
            field=refusal.field,
        )
    )

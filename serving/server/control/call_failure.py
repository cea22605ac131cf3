"""Failures of the control service's calls: exceptions of its handlers -> a code with details.

Handlers raise; `control_guard` ends the call. Nothing here is UNKNOWN: a defect of the server is
INTERNAL, and the log has more of it than the client.
"""

from typing import Final, TypeVar

import grpc

from serving.server.engine_call import Engine, EngineFailed, EngineGone, ask
from serving.server.gateway.grpc.rpc_errors import CallRefused, RpcFailure, failure_of
from serving.wire.control_call import ControlReply, ControlRequest, Refusal, RefusalCode

ReplyT = TypeVar("ReplyT", bound=ControlReply)

RETRY_S: Final = 1.0
"""Wall seconds. What a client is told to wait: calls are short, and a server that starts again
needs longer than anybody knows."""


STREAM_OVER: Final = "STREAM_OVER"
"""A reason that a client may want to know: it goes on with another stream."""


def not_now(message: str) -> CallRefused:
    """The failure of a call that is right, but not now."""
    code = grpc.StatusCode.FAILED_PRECONDITION
    return CallRefused(RpcFailure(code=code, message=message, reason="NOT_NOW"))


ENGINE_GONE: Final = "ENGINE_GONE"
"""A reason: of a call that changes something, that the engine had gone before it was asked."""

OUTCOME_UNKNOWN: Final = "OUTCOME_UNKNOWN"
"""A reason: what was asked may have been done; the same call with the same key says whether."""


def outcome_unknown(key: str, why: str) -> CallRefused:
    """A call that changes something, and has no outcome yet."""
    message = (
        f"{why}: what was asked may have been done, or may be yet; the same call with "
        f"idempotency-key {key} says which, and does it at most once"
    )
    return CallRefused(
        RpcFailure(
            code=grpc.StatusCode.DEADLINE_EXCEEDED,
            message=message,
            reason=OUTCOME_UNKNOWN,
            retry_after_s=RETRY_S,
        )
    )


def engine_busy(waited_s: float) -> CallRefused:
    """A question that changes nothing, to an engine that computes a long step, or starts chips."""
    return CallRefused(
        RpcFailure(
            code=grpc.StatusCode.DEADLINE_EXCEEDED,
            message=f"the engine is busy, and has not answered for {waited_s:.1f} s; try again",
            reason="ENGINE_BUSY",
            retry_after_s=RETRY_S,
        )
    )


def too_many(what: str, most: int) -> CallRefused:
    """One more than the server has room for."""
    message = f"at most {most} {what} at a time; try again"
    return CallRefused(
        RpcFailure(
            code=grpc.StatusCode.RESOURCE_EXHAUSTED,
            message=message,
            reason="CALLS",
            retry_after_s=RETRY_S,
            violations={"control service": message},
        )
    )


def server_ends() -> CallRefused:
    """The end of a stream when the server ends."""
    return CallRefused(
        RpcFailure(
            code=grpc.StatusCode.UNAVAILABLE,
            message="the server ends",
            reason="SERVER_ENDS",
            retry_after_s=RETRY_S,
        )
    )


def stream_over() -> CallRefused:
    """The end of a stream that has lasted as long as it may."""
    return CallRefused(
        RpcFailure(
            code=grpc.StatusCode.UNAVAILABLE,
            message="a stream lasts no longer; begin another",
            reason=STREAM_OVER,
            retry_after_s=0.0,
        )
    )


def watch_failed() -> CallRefused:
    """The end of a stream whose server cannot watch its engine any more."""
    return CallRefused(
        RpcFailure(
            code=grpc.StatusCode.INTERNAL,
            message="the server no longer watches its engine; its log says why",
            reason="WATCH_FAILED",
        )
    )


def failure_of_call(error: BaseException) -> RpcFailure:
    """How a call fails that met `error`."""
    match error:
        case EngineGone():
            return RpcFailure(
                code=grpc.StatusCode.UNAVAILABLE,
                message=str(error),
                reason=ENGINE_GONE,
                retry_after_s=RETRY_S,
            )
        case EngineFailed():
            code = grpc.StatusCode.INTERNAL
            return RpcFailure(code=code, message=str(error), reason="ENGINE_FAILED")
        case NotImplementedError():  # as generated code has it for what a servicer leaves out
            code = grpc.StatusCode.UNIMPLEMENTED
            return RpcFailure(code=code, message="no such method", reason="NOT_SERVED")
        case TimeoutError():
            return RpcFailure(
                code=grpc.StatusCode.DEADLINE_EXCEEDED,
                message="the engine did not answer in time; what was asked may have been applied",
                reason="TIME_LIMIT",
                retry_after_s=RETRY_S,
            )
    return failure_of(error)


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

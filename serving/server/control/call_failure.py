"""Failures of control calls: a handler's exception -> a code with details.

Handlers raise; `control_guard` ends the call. A defect of the server is INTERNAL, never UNKNOWN;
the log has more of it.
"""

from typing import Any, Final, TypeVar

from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from grpc import StatusCode

from serving.server.engine_call import Engine, EngineFailed, EngineGone, ask
from serving.server.gateway.grpc.rpc_errors import (
    STATUS_TRAILER,
    CallRefused,
    RpcFailure,
    failure_of,
)
from serving.wire.control_call import ControlReply, ControlRequest, Refusal, RefusalCode

ReplyT = TypeVar("ReplyT", bound=ControlReply)

RETRY_S: Final = 1.0
"""Default Retry-After, wall seconds: calls are short, a restart's time unknown."""

STREAM_OVER: Final = "STREAM_OVER"
"""Error reason: the stream's time limit; the client opens another."""

ENGINE_GONE: Final = "ENGINE_GONE"
"""Error reason: the engine ended before the change."""

OUTCOME_UNKNOWN: Final = "OUTCOME_UNKNOWN"
"""Error reason: possibly done; the same call with the same key says whether."""


def _refused(
    code: StatusCode, reason: str, message: str, retry_after_s: float | None = None, **more: Any
) -> CallRefused:
    failure = RpcFailure(code, reason, message, retry_after_s=retry_after_s, **more)
    return CallRefused(failure)


def not_now(message: str) -> CallRefused:
    """A valid call that the state does not allow."""
    return _refused(StatusCode.FAILED_PRECONDITION, "NOT_NOW", message)


def outcome_unknown(key: str, why: str) -> CallRefused:
    """A change without an outcome yet."""
    message = (
        f"{why}: what was asked may have been done, or may be yet; the same call with "
        f"idempotency-key {key} says which, and does it at most once"
    )
    return _refused(StatusCode.DEADLINE_EXCEEDED, OUTCOME_UNKNOWN, message, RETRY_S)


def engine_busy(waited_s: float) -> CallRefused:
    """A read during a long step, or while chips start."""
    message = f"the engine is busy, and has not answered for {waited_s:.1f} s; try again"
    return _refused(StatusCode.DEADLINE_EXCEEDED, "ENGINE_BUSY", message, RETRY_S)


def too_many(what: str, most: int) -> CallRefused:
    """A limit of the server is reached."""
    message = f"at most {most} {what} at a time; try again"
    violations = {"control service": message}
    return _refused(StatusCode.RESOURCE_EXHAUSTED, "CALLS", message, RETRY_S, violations=violations)


def server_ends() -> CallRefused:
    """The end of a stream with the server."""
    return _refused(StatusCode.UNAVAILABLE, "SERVER_ENDS", "the server ends", RETRY_S)


def stream_over() -> CallRefused:
    """The end of a stream by its time limit."""
    message = "a stream lasts no longer; begin another"
    return _refused(StatusCode.UNAVAILABLE, STREAM_OVER, message, 0.0)


def watch_failed() -> CallRefused:
    """The end of a stream without a watch of the engine."""
    message = "the server no longer watches its engine; its log says why"
    return _refused(StatusCode.INTERNAL, "WATCH_FAILED", message)


def failure_of_call(error: BaseException) -> RpcFailure:
    """The failure of a call that raised `error`."""
    match error:
        case EngineGone():
            refused = _refused(StatusCode.UNAVAILABLE, ENGINE_GONE, str(error), RETRY_S)
        case EngineFailed():
            refused = _refused(StatusCode.INTERNAL, "ENGINE_FAILED", str(error))
        case NotImplementedError():  # as generated code has it for what a servicer leaves out
            refused = _refused(StatusCode.UNIMPLEMENTED, "NOT_SERVED", "no such method")
        case TimeoutError():
            message = "the engine did not answer in time; what was asked may have been applied"
            refused = _refused(StatusCode.DEADLINE_EXCEEDED, "TIME_LIMIT", message, RETRY_S)
        case _:
            return failure_of(error)
    return refused.failure


def status_of(error: Any) -> Status | None:
    """The server's own status; None: the network failed."""
    said = [value for name, value in error.trailing_metadata() or () if name == STATUS_TRAILER]
    return Status.FromString(said[0]) if said else None


async def answer(engine: Engine, request: ControlRequest, kind: type[ReplyT]) -> ReplyT:
    """The engine's reply; raises CallRefused with the engine's words, EngineGone, EngineFailed."""
    reply = await ask(engine, request)
    if isinstance(reply, Refusal) and reply.code is RefusalCode.PRECONDITION:
        raise not_now(reply.message)
    if isinstance(reply, Refusal):
        code = StatusCode.INVALID_ARGUMENT
        raise _refused(code, "INVALID_FIELD", reply.message, field=reply.field)
    assert isinstance(reply, kind), reply
    return reply

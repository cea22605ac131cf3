"""Calls without a handler, refused by both ports alike and with google.rpc's details."""

from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from serving.server.gateway.grpc.rpc_errors import (
    CallRefused,
    RpcFailure,
    abort_for,
    exhausted,
    refused,
)

M = TypeVar("M")


def message_in(raw: bytes, deserialize: Callable[[bytes], M], *, bytes_max: int, subject: str) -> M:
    """The message; raises CallRefused for one that is too long for `subject`, or is none."""
    if len(raw) > bytes_max:
        words = f"expected a message of at most {bytes_max} bytes, not {len(raw)}"
        raise CallRefused(exhausted("MESSAGE_BYTES", words, subject=subject))
    try:
        return deserialize(raw)
    except DecodeError as error:
        message = "the message is none of the method's request type"
        code = grpc.StatusCode.INVALID_ARGUMENT
        raise refused(code, "UNREADABLE_MESSAGE", message) from error


def not_served(method: str) -> RpcFailure:
    """The failure of a call of an unknown method."""
    code = grpc.StatusCode.UNIMPLEMENTED
    return RpcFailure(code=code, message=f"{method}: no such method", reason="NOT_SERVED")


def refusing(failure: RpcFailure) -> Any:
    """A handler that ends the call at once and reads nothing of it, whatever kind of call it is."""

    async def refuse(
        messages: AsyncIterator[bytes], context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> None:
        del messages
        await abort_for(context, failure)

    return grpc.stream_stream_rpc_method_handler(refuse)

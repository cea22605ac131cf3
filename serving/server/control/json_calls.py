"""The control service's unary calls as JSON, through its own gRPC and guard.

The body is proto3's JSON (https://protobuf.dev/programming-guides/json/): names in camelCase,
64-bit integers as strings; answers include zeros of fields without presence.
"""

import asyncio
import base64
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf import json_format
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2 as details  # type: ignore[import-untyped]

from emulator.errors import ConfigError
from serving.server.console.call_answer import REPLICA_HEADER, CallAnswer, answered, failed
from serving.server.control.action_ledger import KEY_HEADER, checked_key
from serving.server.control.call_failure import status_of
from serving.server.control.control_guard import changes_something
from serving.server.control.generic_service import SERVICE
from serving.server.gateway.grpc.rpc_errors import RpcFailure, failure_of

_CODES: Final = {
    code: "canceled" if code is grpc.StatusCode.CANCELLED else code.name.lower()
    for code in grpc.StatusCode
}
"""Connect's names."""

_LONG_BYTES: Final = 32 * 2**10
"""Longer answers take milliseconds to encode, in a thread."""

_NESTED_MAX: Final = 32
"""Requests nest two deep at most."""


class JsonCalls:
    """Calls over the gRPC server's socket, from `start` to `stop`."""

    def __init__(self) -> None:
        self._channel: grpc.aio.Channel | None = None

    def start(self, grpc_socket: Path) -> None:
        """Begin."""
        options = [("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", -1)]
        self._channel = grpc.aio.insecure_channel(f"unix:{grpc_socket}", options=options)

    async def stop(self) -> None:
        """End, with calls under way; idempotent."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    def changes(self, method: str) -> bool:
        """Whether the method is known and does more than read."""
        known = method in SERVICE.methods_by_name
        return known and changes_something(f"/{SERVICE.full_name}/{method}")

    async def call(
        self,
        method: str,
        body: bytes,
        *,
        key: str | None,
        action: str | None = None,
        replica: str | None = None,
        wall_s: float | None = None,
    ) -> CallAnswer:
        """Call `method` with the JSON `body`; `action` is its idempotency key, `replica` names one
        of a service's.
        """
        described = SERVICE.methods_by_name.get(method)
        if described is None:
            words = f"/{SERVICE.full_name}/{method[:100]}: no such method"
            return failed("unimplemented", words, status=404)
        if described.server_streaming or described.client_streaming:
            words = f"{method} is a stream, which is for gRPC alone; see /stream"
            return failed("unimplemented", words)
        request = GetMessageClass(described.input_type)()
        try:
            if not body.lstrip().startswith(b"{"):  # the parser takes `[]` for an empty message
                raise json_format.ParseError("expected an object")
            json_format.Parse(body, request, max_recursion_depth=_NESTED_MAX)
        except (json_format.ParseError, ValueError) as error:
            return _unreadable(error)
        if self._channel is None:
            return failed("unavailable", "the server ends")
        answers = GetMessageClass(described.output_type)
        rpc: Any = self._channel.unary_unary(
            f"/{SERVICE.full_name}/{method}", response_deserializer=answers.FromString
        )
        try:
            shown = _metadata(key, action, replica)
        except ConfigError as error:
            return _refused(failure_of(error))
        try:
            response = await rpc(request.SerializeToString(), metadata=shown, timeout=wall_s)
        except grpc.aio.AioRpcError as error:
            return _failure(error)
        except grpc.aio.UsageError:  # the channel was closed under the call
            return failed("unavailable", "the server ends")
        if response.ByteSize() < _LONG_BYTES:
            return answered(_json_of(response))
        return answered(await asyncio.to_thread(_json_of, response))


def _metadata(
    key: str | None, action: str | None, replica: str | None
) -> tuple[tuple[str, str], ...]:
    """Omits a key that gRPC cannot carry; raises ConfigError for a malformed idempotency key."""
    shown = []
    if key is not None and key.isascii() and key.isprintable():
        shown.append(("authorization", f"Bearer {key}"))
    if action is not None:
        shown.append((KEY_HEADER, checked_key(action)))
    if replica is not None:
        if not (replica.isascii() and replica.isprintable()):
            raise ConfigError("replica", replica[:40], "a replica's number")
        shown.append((REPLICA_HEADER, replica))
    return tuple(shown)


def _json_of(message: Message) -> bytes:
    text = json_format.MessageToJson(
        message, indent=None, ensure_ascii=False, always_print_fields_with_no_presence=True
    )
    return text.encode()


def _unreadable(error: Exception) -> CallAnswer:
    words = " ".join(str(error).split())[:200]
    return _refused(
        RpcFailure(
            grpc.StatusCode.INVALID_ARGUMENT,
            "UNREADABLE_MESSAGE",
            f"the body is not the request's message in JSON: {words}",
        )
    )


def _refused(failure: RpcFailure) -> CallAnswer:
    status = failure.to_status()
    return failed(_CODES[failure.code], status.message, details=_details(status))


def _failure(error: grpc.aio.AioRpcError) -> CallAnswer:
    status = status_of(error)
    found = [] if status is None else _details(status)
    return failed(_CODES[error.code()], error.details() or "", details=found)


def _details(status: Any) -> list[dict[str, Any]]:
    return [_detail(each) for each in status.details]


def _detail(packed: AnyMessage) -> dict[str, Any]:
    """Connect's form: the type's name, the message in base64, and readable."""
    name = packed.TypeName()
    shown: dict[str, Any] = {
        "type": name,
        "value": base64.b64encode(packed.value).rstrip(b"=").decode(),
    }
    kind = getattr(details, name.rpartition(".")[2], None)
    if kind is not None and packed.Is(kind.DESCRIPTOR):
        shown["debug"] = json_format.MessageToDict(kind.FromString(packed.value))
    return shown

"""Failures of gRPC calls: a code, a sentence, and google.rpc's details for programs.

ErrorInfo's reason is a stable word in capitals; RetryInfo has the delay, QuotaFailure the limit's
owner, BadRequest the field. They travel in the trailer `grpc-status-details-bin`, as
google.rpc.Status (https://google.aip.dev/193).
"""

import dataclasses
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import grpc
import grpc.aio
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2 as details  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

from emulator.errors import ConfigError, UltraServeError
from serving.policy.admission.refusal import Refused

DOMAIN: Final = "ultraserve"
"""ErrorInfo's domain of these reasons."""

STATUS_TRAILER: Final = "grpc-status-details-bin"

PUSHBACK_TRAILER: Final = "grpc-retry-pushback-ms"
"""For gRPC's own retries: https://github.com/grpc/proposal/blob/master/A6-client-retries.md"""

_TEXT_BYTES_MAX: Final = 480
"""Bytes of a sentence, which travels three times, percent-encoded and in base64, in 8 KiB of
trailers (gRPC's default soft limit of a call's metadata)."""

_WORD_BYTES_MAX: Final = 120
"""Bytes of a name or value beside the sentence."""


@dataclass(frozen=True, slots=True)
class RpcFailure:
    """The failure of one call; `reason` and `metadata` are ErrorInfo's.

    Attributes:
        retry_after_s: wall seconds until the same call may succeed; None: never.
        violations: the limit's owner (a key, the engine) -> which limit was reached, and how.
        field: the request's wrong field, if any.
    """

    code: grpc.StatusCode
    reason: str
    message: str
    _: dataclasses.KW_ONLY
    retry_after_s: float | None = None
    violations: Mapping[str, str] = dataclasses.field(default_factory=dict)
    field: str | None = None
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def to_status(self) -> Status:
        """google.rpc's message, its texts cut to what trailers carry."""
        message = _cut(self.message, _TEXT_BYTES_MAX)
        parts: list[Message] = [
            details.ErrorInfo(
                reason=self.reason,
                domain=DOMAIN,
                metadata={_word(name): _word(value) for name, value in self.metadata.items()},
            )
        ]
        if self.retry_after_s is not None:
            delay = Duration()
            delay.FromMilliseconds(max(0, round(self.retry_after_s * 1e3)))
            parts.append(details.RetryInfo(retry_delay=delay))
        if self.violations:
            violations = [
                details.QuotaFailure.Violation(
                    subject=_word(subject), description=_cut(text, _TEXT_BYTES_MAX)
                )
                for subject, text in self.violations.items()
            ]
            parts.append(details.QuotaFailure(violations=violations))
        if self.field is not None:
            wrong = details.BadRequest.FieldViolation(field=_word(self.field), description=message)
            parts.append(details.BadRequest(field_violations=[wrong]))
        status = Status(code=self.code.value[0], message=message)
        for part in parts:
            packed = AnyMessage()
            packed.Pack(part)
            status.details.append(packed)
        return status


def failure_in(status: Status, code: grpc.StatusCode) -> RpcFailure:
    """The failure that `to_status` has written."""
    info, delay = details.ErrorInfo(), details.RetryInfo()
    quota, wrong = details.QuotaFailure(), details.BadRequest()
    for part in status.details:
        for kind in (info, delay, quota, wrong):
            part.Unpack(kind)
    return RpcFailure(
        code,
        info.reason,
        status.message,
        retry_after_s=(
            delay.retry_delay.ToMilliseconds() / 1e3 if delay.HasField("retry_delay") else None
        ),
        violations={each.subject: each.description for each in quota.violations},
        field=next((each.field for each in wrong.field_violations), None),
        metadata=dict(info.metadata),
    )


class CallRefused(UltraServeError):
    """A call refused before it runs; its client gets `failure`."""

    def __init__(self, failure: RpcFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def failure_of(error: BaseException, *, subject: str = "engine") -> RpcFailure:
    """The failure of a call that met `error`; `subject` owns the key's limits.

    An unknown exception is INTERNAL, its text only in the log.
    """
    if isinstance(error, CallRefused):
        return error.failure
    if isinstance(error, Refused):
        whose = subject if error.reason.is_of_key else "engine"
        violations = {} if error.reason.is_of_server else {whose: str(error)}
        overloaded = grpc.StatusCode.RESOURCE_EXHAUSTED
        return RpcFailure(
            grpc.StatusCode.UNAVAILABLE if error.reason.is_of_server else overloaded,
            error.reason.value.upper(),
            str(error),
            retry_after_s=error.retry_after_s,
            violations=violations,
        )
    if isinstance(error, ConfigError):
        return RpcFailure(
            grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", str(error), field=error.field
        )
    return RpcFailure(
        grpc.StatusCode.INTERNAL, "INTERNAL", "the server failed at this call; its log says at what"
    )


def refused(code: grpc.StatusCode, reason: str, message: str) -> CallRefused:
    """A refusal that a retry would meet too."""
    return CallRefused(RpcFailure(code, reason, message))


def exhausted(
    reason: str, message: str, *, subject: str = "engine", retry_after_s: float | None = None
) -> RpcFailure:
    """The failure of a call beyond the room of `subject`."""
    return RpcFailure(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        reason,
        message,
        retry_after_s=retry_after_s,
        violations={subject: message},
    )


async def abort_for(
    context: "grpc.aio.ServicerContext[Any, Any]",
    failure: RpcFailure,
    *,
    trailers: tuple[tuple[str, str | bytes], ...] = (),
) -> NoReturn:
    """End the call with `failure` and `trailers`; raises what ends a handler."""
    status = failure.to_status()
    described: list[tuple[str, str | bytes]] = [(STATUS_TRAILER, status.SerializeToString())]
    if failure.retry_after_s is not None:
        described.append((PUSHBACK_TRAILER, str(max(0, round(failure.retry_after_s * 1e3)))))
    await context.abort(failure.code, status.message, (*trailers, *described))
    raise AssertionError("abort raises")


def not_served(method: str) -> RpcFailure:
    """UNIMPLEMENTED, for an unknown method."""
    code = grpc.StatusCode.UNIMPLEMENTED
    return RpcFailure(code, "NOT_SERVED", f"{method}: no such method")


def refusing(failure: RpcFailure) -> Any:
    """A handler that ends a call of any kind at once, unread."""

    async def refuse(
        messages: AsyncIterator[bytes], context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> None:
        del messages
        await abort_for(context, failure)

    return grpc.stream_stream_rpc_method_handler(refuse)


def _word(text: str) -> str:
    return _cut(text, _WORD_BYTES_MAX)


def _cut(text: str, bytes_max: int) -> str:
    line = " ".join(text.split())
    clean = "".join(letter if letter.isprintable() else "�" for letter in line)
    raw = clean.encode("utf-8", "replace")
    if len(raw) <= bytes_max:
        return raw.decode()
    return raw[: bytes_max - 3].decode("utf-8", "ignore") + "..."

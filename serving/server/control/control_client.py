"""A blocking client of the control service for commands."""

import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, TracebackType
from typing import Any, Final, Self, TypeVar

import grpc
from google.protobuf.message_factory import GetMessageClass
from google.rpc.error_details_pb2 import ErrorInfo  # type: ignore[import-untyped]

from emulator.errors import ConfigError, UltraServeError
from protos.ultraserve.v1 import control_pb2 as pb
from protos.ultraserve.v1 import control_pb2_grpc as pb_grpc
from serving.server.console.call_answer import REPLICA_HEADER
from serving.server.control.action_ledger import KEY_HEADER
from serving.server.control.call_failure import ENGINE_GONE, STREAM_OVER, status_of
from serving.server.control.control_address import ControlAddress
from serving.server.control.control_messages import answered, request_message
from serving.server.control.generic_service import SERVICE
from serving.wire.control_call import Rpc
from serving.wire.telemetry import MachineEvent, Telemetry


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlTls:
    """PEM files: the server's authority (None: the system's), and the client's certificate with its
    key, for a server that asks. Raises ConfigError for one of the two alone.
    """

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("tls_cert", self.certificate, "both --tls-cert and --tls-key")

    def credentials(self) -> grpc.ChannelCredentials:
        """Read the files; raises ConfigError."""
        return grpc.ssl_channel_credentials(
            root_certificates=_read("tls_ca", self.ca),
            private_key=_read("tls_key", self.key),
            certificate_chain=_read("tls_cert", self.certificate),
        )


def _read(field: str, path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(field, path, f"a file to read ({error.strerror})") from error


ReplyT = TypeVar("ReplyT")
ShownT = TypeVar("ShownT")


DONE: Final = 0
NOT_DONE: Final = 3
UNKNOWN: Final = 4
"""Exit codes of a change: done, not done, possibly done."""


class ServerUnreachable(UltraServeError):
    """No answer in time; indefinite when a call was under way."""


class OutcomeUnknown(ServerUnreachable):
    """A change without an outcome yet; the same call with the key `key` says how it ended."""

    exit_code = UNKNOWN

    def __init__(self, key: str, words: str) -> None:
        super().__init__(f"unknown: {words}; ask again with --idempotency-key {key}")
        self.key = key


class _StreamOver(Exception):
    """A stream's time limit; another continues from there."""


class RefusedByServer(UltraServeError):
    """Refused in the server's words; definite: nothing has changed."""


_REFUSALS: Final = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)

_OF_WHAT_WAS_ASKED: Final = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNIMPLEMENTED,
)
"""Refusals that hold for all calls with one key, not only the last."""

_NEVER_SENT: Final = ("failed to connect", "connection refused", "Connection refused")
"""gRPC's words without a connection."""

_ASK_AGAIN_S: Final = 0.1

_NO_KEY: Final = (
    "the server does not know the key that was shown; see --control-key-file, which finds the key "
    "of a server of this user by itself"
)


class ControlClient:
    """One connection; each call ends within `timeout_s`, which must cover a long step of the
    engine.

    Changes carry an idempotency key, `action_key` or a random one; those without an outcome are
    asked again for `patience_s`. Beyond loopback the connection is TLS, by `tls` or the system's
    authorities, so that `key` never travels in plain text. `replica` names one of a
    service's. Calls raise ServerUnreachable or RefusedByServer.
    """

    def __init__(
        self,
        address: ControlAddress,
        timeout_s: float,
        *,
        key: str | None = None,
        tls: ControlTls | None = None,
        action_key: str | None = None,
        replica: int | None = None,
        patience_s: float = 0.0,
    ) -> None:
        self.run: str | None = None
        self._action_key = action_key
        self._patience_s = patience_s
        self._address = address
        self._timeout_s = timeout_s
        self._metadata: tuple[tuple[str, str], ...] = ()
        if key is not None:
            self._metadata += (("authorization", f"Bearer {key}"),)
        if replica is not None:
            self._metadata += ((REPLICA_HEADER, str(replica)),)
        # A proxy of the environment's has no way to this machine's loopback.
        options = [("grpc.enable_http_proxy", 0)]
        if tls is None and address.is_loopback:
            self._channel = grpc.insecure_channel(str(address), options=options)
        else:
            credentials = (tls or ControlTls()).credentials()
            self._channel = grpc.secure_channel(str(address), credentials, options=options)
        self._stub = pb_grpc.ControlServiceStub(self._channel)

    def call(self, rpc: Rpc[ShownT], **fields: object) -> ShownT:
        """The result of `rpc` with these request fields, an enum's value as its word. Raises
        ConfigError for an unknown word, KeyError for an unknown field.
        """
        described = SERVICE.methods_by_name[rpc.name]
        kind = GetMessageClass(described.output_type)
        method = self._channel.unary_unary(
            f"/{SERVICE.full_name}/{rpc.name}",
            request_serializer=GetMessageClass(described.input_type).SerializeToString,
            response_deserializer=kind.FromString,
        )
        request = request_message(GetMessageClass(described.input_type), fields)
        response = self._call(method, request) if rpc.only_reads else self._change(method, request)
        shown = None if rpc.shows is NoneType else answered(response, rpc.shows)
        assert isinstance(shown, rpc.shows)
        return shown

    def telemetry(self, interval_s: float) -> Iterator[tuple[Telemetry, int]]:
        """Telemetry each `interval_s` wall seconds, and the number of skipped intervals."""
        request = pb.WatchTelemetryRequest(interval_s=interval_s)
        while True:
            try:
                for response in self._stream(self._stub.WatchTelemetry, request):
                    yield answered(response, Telemetry), response.skipped
                return
            except _StreamOver:
                continue

    def events(
        self, after: int | None = None, *, run: str | None = None
    ) -> Iterator[tuple[MachineEvent, int]]:
        """Each event after that number (None: from now on), and the number forgotten before it.

        `run` is the server run of `after`; the attribute `run` then holds the current one.
        """
        while True:
            request = pb.WatchEventsRequest(after=after, run=run)
            try:
                for response in self._stream(self._stub.WatchEvents, request):
                    after, run = response.event.number, response.run
                    self.run = response.run
                    yield answered(response, MachineEvent), response.lost
                return
            except _StreamOver:
                continue

    def _call(self, method: Callable[..., ReplyT], request: object) -> ReplyT:
        try:
            return method(request, timeout=self._timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise self._in_our_words(error) from error

    def _change(self, method: Callable[..., ReplyT], request: object) -> ReplyT:
        """Raises OutcomeUnknown, or RefusedByServer or ServerUnreachable with the exit code
        NOT_DONE.
        """
        key = self._action_key or secrets.token_hex(8)
        metadata = (*self._metadata, (KEY_HEADER, key))
        end_s, again = time.monotonic() + self._patience_s, False
        while True:
            try:
                return method(request, timeout=self._timeout_s, metadata=metadata)
            except grpc.RpcError as error:
                failure = self._failure_of_change(error, key, again=again)
                again = True
                if not isinstance(failure, OutcomeUnknown) or time.monotonic() >= end_s:
                    raise failure from error
                time.sleep(_ASK_AGAIN_S)  # another process works on it

    def _failure_of_change(self, error: grpc.RpcError, key: str, *, again: bool) -> UltraServeError:
        """`again`: an earlier attempt failed."""
        assert isinstance(error, grpc.Call)  # what the library raises is both
        failure, said = self._in_our_words(error), error.details() or ""
        never_sent = error.code() is grpc.StatusCode.UNAVAILABLE and any(
            words in said for words in _NEVER_SENT
        )
        gone_before = _reason_of(error) == ENGINE_GONE
        definite = isinstance(failure, RefusedByServer) or never_sent or gone_before
        if definite and not (again and error.code() not in _OF_WHAT_WAS_ASKED):
            failure.exit_code = NOT_DONE
            return failure
        words = said if status_of(error) is not None else str(failure)
        return OutcomeUnknown(key, words.partition("; the same call")[0])

    def _stream(self, method: Callable[..., Any], request: object) -> Iterator[Any]:
        call = method(request, metadata=self._metadata)
        try:
            yield from call
        except grpc.RpcError as error:
            if _reason_of(error) == STREAM_OVER:
                raise _StreamOver from error
            raise self._in_our_words(error) from error
        finally:
            call.cancel()

    def _in_our_words(self, error: grpc.RpcError) -> UltraServeError:
        assert isinstance(error, grpc.Call)  # what the library raises is both
        code, words = error.code(), " ".join((error.details() or "").split())
        if code in _REFUSALS:
            return RefusedByServer(words)
        if code is grpc.StatusCode.UNAUTHENTICATED:
            return RefusedByServer(f"control service at {self._address}: {_NO_KEY}")
        if code is grpc.StatusCode.UNIMPLEMENTED:
            words = "it does not know this call; is it an older server?"
            return RefusedByServer(f"control service at {self._address}: {words}")
        if code is grpc.StatusCode.DEADLINE_EXCEEDED and status_of(error) is None:
            words = f"no answer within {self._timeout_s:g} s"
        elif code is grpc.StatusCode.UNAVAILABLE and status_of(error) is None:
            words = "nobody answers; is `ultraserve serve` running there?"
        return ServerUnreachable(f"control service at {self._address}: {words or code.name}")

    def close(self) -> None:
        """End the connection; idempotent."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _reason_of(error: grpc.RpcError) -> str:
    info, status = ErrorInfo(), status_of(error)
    parts = () if status is None else status.details
    return str(info.reason) if any(part.Unpack(info) for part in parts) else ""

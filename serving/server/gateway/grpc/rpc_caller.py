"""The caller of a gRPC call, and the rights that each method needs: a pure table."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import grpc

from serving.access.key_ring import KeyRing
from serving.access.secret import request_credential
from serving.policy.admission.work import Client, WorkClass
from serving.server.gateway.grpc.generate_request import CLASS_METADATA, work_class_of
from serving.server.gateway.grpc.rpc_errors import CallRefused, refused

ENGINE: Final = "/vllm.grpc.engine.VllmEngine/"
GENERATE: Final = f"{ENGINE}Generate"
ABORT: Final = f"{ENGINE}Abort"

Metadata = Iterable[tuple[str, str | bytes]]


_PROBES: Final = frozenset(
    {
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/List",
        "/grpc.health.v1.Health/Watch",
        f"{ENGINE}HealthCheck",
    }
)
"""Methods without a key; all others need one for inference, where keys are configured."""

_EMBED: Final = f"{ENGINE}Embed"

_CONTROL_CALLS: Final[Mapping[str, str]] = {
    f"{ENGINE}FlushCache": "ResetPrefixCache",
    f"{ENGINE}StartProfile": "RecordSteps",
    f"{ENGINE}StopProfile": "GetRecording",
}
"""Administrative methods of the published service -> the control service's calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The client of a call; `work_class` is its metadata's, else the client's."""

    client: Client
    work_class: WorkClass


def needs_no_key(method: str) -> bool:
    """Whether any client may call it."""
    return method in _PROBES


def caller_of(method: str, metadata: Metadata, keys: KeyRing) -> Caller:
    """The caller of `method`; raises CallRefused for one without the right."""
    if (call := _CONTROL_CALLS.get(method)) is not None:
        raise refused(
            grpc.StatusCode.PERMISSION_DENIED,
            "NOT_SERVED_HERE",
            f"not served here: use {call} of the control service ultraserve.v1.ControlService, "
            "on the control port",
        )
    if method == _EMBED:
        raise refused(
            grpc.StatusCode.UNIMPLEMENTED, "NOT_SERVED", "this engine generates text; nothing else"
        )
    if needs_no_key(method):
        return Caller(client=Client(), work_class=Client().work_class)
    metadata = tuple(metadata)
    said = {key.lower(): value for key, value in metadata if isinstance(value, str)}
    secret = request_credential(metadata)
    client = keys.client_of(secret)
    if client is None:
        raise _turned_away(keys, secret)
    return Caller(client=client, work_class=work_class_of(said.get(CLASS_METADATA), client))


def _turned_away(keys: KeyRing, secret: str | None) -> CallRefused:
    wanted = "expected a key for inference"
    if keys.key_of(secret) is not None:
        return refused(grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED", wanted)
    return refused(
        grpc.StatusCode.UNAUTHENTICATED,
        "UNAUTHENTICATED",
        f"{wanted}, in the metadata `authorization: Bearer ...`",
    )

"""The client protocol and its settings: request in, reply out, no exceptions.

Times are readings of the system's monotonic clock, in whole ns.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from loadgen.records.arrays import Int64s
from loadgen.records.request import Request
from loadgen.records.run_record import Api


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSpec:
    """Settings common to a class's requests; picklable.

    `timeout_s` is wall time for a whole reply. `grpc_target` is HOST:PORT, needed for grpc; `ca` a
    file of trusted certificates in place of the system's. `key` goes with every request and is in
    no repr. `headers` (gRPC: metadata) and `extra_body` (fields of the JSON body, or of gRPC's
    SamplingParams) override the client's own. Raises ValueError for grpc without a target or a
    timeout not above 0.
    """

    api: Api
    url: str
    model: str
    timeout_s: float
    grpc_target: str | None = None
    ca: Path | None = None
    key: str = field(default="", repr=False)
    temperature: float = 0.0
    ignore_eos: bool = True
    priority: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    extra_body: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.api == "grpc" and not self.grpc_target:
            raise ValueError("gRPC needs a HOST:PORT")
        if not self.timeout_s > 0:
            raise ValueError(f"a timeout of {self.timeout_s} s")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reply:
    """The reply to one request.

    `chunk_ns` is the arrival of each chunk with generated text, int64[chunks]; a chunk may carry
    several tokens. Token counts are the server's, or None. `error` is None for a complete reply,
    else its kind, explained by `message`. `text` and `token_ids` are set if kept by the request and
    sent by the server. `resent`: see `records.result.Result`.
    """

    sent_ns: int
    ended_ns: int
    chunk_ns: Int64s
    input_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None = None
    error: str | None = None
    message: str = ""
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    resent: bool = False


class RequestClient(Protocol):
    """Sends requests of one run to one server, concurrently."""

    async def send(self, request: Request) -> Reply:
        """Send and await the whole reply; cancelling this gives a reply of kind ABORTED."""
        ...

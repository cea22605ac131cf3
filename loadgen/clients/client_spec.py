"""How a traffic class reaches its server: plain, picklable values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadgen.records.run_record import Api


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSpec:
    """Settings common to a class's requests; picklable.

    `timeout_s` is wall time for a whole reply. `grpc_target` is HOST:PORT, needed when `api` is
    grpc; `ca` a file of certificates to trust instead of the system's. `key` goes with every
    request and is in no repr. `headers` (gRPC: metadata) and `extra_body` (fields of the JSON body,
    or of gRPC's SamplingParams) override the client's own. Raises ValueError for grpc without a
    target and for a timeout that is not positive.
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
    headers: Mapping[str, str] = field(default_factory=dict)
    extra_body: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.api == "grpc" and not self.grpc_target:
            raise ValueError("gRPC needs a HOST:PORT")
        if not self.timeout_s > 0:
            raise ValueError(f"a timeout of {self.timeout_s} s")

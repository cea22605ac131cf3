"""What the server's process is told of its doors: read from flags once, passed on as JSON.

vLLM starts the process's app and hands it nothing of ours, so the settings travel in the
environment. No secret is in them: keys are hashed or lie in files.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import msgspec

ENVIRONMENT: Final = "ULTRASERVE_FRONT_DOOR"


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorLimits:
    """How much waits at most, and what interactive work is promised.

    Attributes:
        queue_requests, queue_tokens: interactive requests that have entered and wait for their
            first token, and the tokens of their prompts.
        batch_queue_requests, batch_queue_tokens: the same for batch work that waits at the door.
        batch_wait_s: emulated seconds that batch work waits at most.
        ttft_target_s: emulated; interactive work that would wait longer is refused at once. None:
            no target.
        reserve: share of the engine's seats and KV that batch work leaves to interactive work.
    """

    queue_requests: int = 8_192
    queue_tokens: int = 32_000_000
    batch_queue_requests: int = 65_536
    batch_queue_tokens: int = 256_000_000
    batch_wait_s: float = 86_400.0
    ttft_target_s: float | None = None
    reserve: float = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files. With `client_ca` clients must show a certificate of it (mTLS)."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontDoorSettings:
    """The doors of one server.

    Attributes:
        grpc_host, grpc_port: of `vllm.grpc.engine.VllmEngine`; None: no such door.
        key_file: keys of clients, see `serving.access`; None: none.
        key_hashes: of keys given by flag or environment, as `serving.access` hashes them.
        control_key_file: where the control service's own key lies, see `serving.access`.
        tls: for HTTP, gRPC, and the control service beyond loopback; None: plain text.
        body_bytes_max: of a request, both protocols.
        request_wall_s_max: wall seconds that a request may take.
        drain_wall_s_max: wall seconds that requests have to end when the server is told to.
    """

    limits: DoorLimits = field(default_factory=DoorLimits)
    grpc_host: str = "127.0.0.1"
    grpc_port: int | None = None
    key_file: Path | None = None
    key_hashes: tuple[str, ...] = ()
    control_key_file: Path | None = None
    tls: TlsFiles | None = None
    body_bytes_max: int = 16 * 2**20
    request_wall_s_max: float = 3_600.0
    drain_wall_s_max: float = 30.0

    def to_environment(self) -> dict[str, str]:
        """The variable that `from_environment` reads."""
        return {ENVIRONMENT: msgspec.json.encode(self, enc_hook=str).decode()}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """The settings of this process; the defaults when it was given none."""
        text = environment.get(ENVIRONMENT)
        return cls() if text is None else msgspec.json.decode(text, type=cls, dec_hook=_path)


def _path(kind: type, value: object) -> object:
    if kind is Path:
        return Path(str(value))
    raise NotImplementedError(kind)

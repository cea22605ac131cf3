"""Limits of what a client may make the server hold, and for how long, before and in a request.

For HTTP and gRPC alike; `ingress_account` counts. Figures without a source are assumed: no
well-meaning client comes near them.
"""

import math
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Self

from emulator.errors import ConfigError


class Limit(StrEnum):
    """A reached limit, as the metrics count it."""

    HEAD_BYTES = "head_bytes"
    HEAD_FIELDS = "head_fields"
    HEAD_TIME = "head_time"
    MALFORMED = "malformed_request"
    UPGRADE = "unauthenticated_upgrade"
    PIPELINED_REQUESTS = "pipelined_requests"
    BODY_TIME = "body_time"
    UNREAD_BODY = "unread_body"
    UNREAD_ANSWER = "unread_answer"
    HANDSHAKE_TIME = "handshake_time"
    STRANGERS = "unauthenticated_connections"
    STRANGER_BYTES = "unauthenticated_bytes"
    KEY_BYTES = "key_bytes"
    KEY_CONNECTIONS = "key_connections"
    TOTAL_BYTES = "total_bytes"
    MESSAGE_TIME = "message_time"
    CALLS = "unauthenticated_calls"


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressLimits:
    """The bounds of one server; raises ConfigError for a limit that nothing passes.

    Attributes:
        head_bytes_max, head_fields_max: of an HTTP request's head with its request line. Go's
            default is 1 MiB, nginx's 32 KiB, h11's 64 KiB; vLLM's limit of fields is 256.
        head_wait_s: wall seconds from a connection, or a head's first byte, to the head's end.
        pipelined_requests_max: of one connection before its first is answered.
        body_wait_s, bytes_per_s_min: wall seconds of a body or message, and one more for each
            `bytes_per_s_min` of it, as Apache's mod_reqtimeout counts (body=20,MinRate=500).
        answer_wait_s: wall seconds in which a client must read some of its answer.
        linger_s: wall seconds that an answered client may go on to send: closing earlier resets the
            connection, and the answer with it.
        handshake_wait_s: wall seconds of TLS.
        strangers_max: connections without authentication; one more closes the oldest.
        stranger_bytes_max, key_bytes_max, total_bytes_max: bytes held of all clients without a key,
            of one key, of all keys.
        key_connections_max: open HTTP connections of one key; gRPC has its own limits. Without keys
            all clients are one, so it is more than an engine of 8,192 seats runs and queues.
    """

    head_bytes_max: int = 64 * 2**10
    head_fields_max: int = 256
    head_wait_s: float = 20.0
    pipelined_requests_max: int = 16
    body_wait_s: float = 20.0
    bytes_per_s_min: float = 64 * 2**10
    answer_wait_s: float = 60.0
    linger_s: float = 2.0
    handshake_wait_s: float = 10.0
    strangers_max: int = 4_096
    stranger_bytes_max: int = 48 * 2**20
    key_connections_max: int = 16_384
    key_bytes_max: int = 64 * 2**20
    total_bytes_max: int = 512 * 2**20

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 < value < math.inf:
                raise ConfigError(field.name, value, "above 0")

    @classmethod
    def of(cls, body_bytes_max: int) -> Self:
        """Limits of a server that takes bodies of this size: a key may send two at once."""
        defaults = cls()
        key_bytes_max = max(defaults.key_bytes_max, 2 * body_bytes_max)
        return cls(
            key_bytes_max=key_bytes_max,
            total_bytes_max=max(defaults.total_bytes_max, 2 * key_bytes_max),
        )

    def time_s(self, received_bytes: int) -> float:
        """Wall seconds of a body or message of which `received_bytes` have come."""
        return self.body_wait_s + received_bytes / self.bytes_per_s_min

"""What a client may make the server hold, and for how long, before and while it says what it wants.

The limits of HTTP and gRPC alike, each with a name; `ingress_account` counts against them. Figures
without a source are assumed: no client that means well comes near them.
"""

import math
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Self

from emulator.errors import ConfigError


class Limit(StrEnum):
    """A limit that was reached, as it is counted in the metrics."""

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
    """The bounds of one server.

    Attributes:
        head_bytes_max, head_fields_max: of the head of an HTTP request, with its request line. Go's
            default is 1 MiB, nginx's 32 KiB, h11's 64 KiB; vLLM's limit of fields is 256.
        head_wait_s: wall seconds from a connection, or a head's first byte, to the head's end.
        pipelined_requests_max: that one connection may send before its first is answered.
        body_wait_s, bytes_per_s_min: wall seconds that a body or message has, and one more for each
            `bytes_per_s_min` of it, as Apache's mod_reqtimeout counts (body=20,MinRate=500).
        answer_wait_s: wall seconds in which a client that is written to has to take something.
        linger_s: wall seconds that a client may go on to send what nobody reads, once answered: a
            connection that is closed while its client sends is reset, and the answer with it.
        handshake_wait_s: of TLS.
        strangers_max: connections that have not been authenticated; the one that came first is
            closed for one more.
        stranger_bytes_max: that everybody without a key has sent and that is held, in all.
        key_connections_max: of HTTP, that the holder of one key has open at a time; gRPC has its
            own limits of connections and calls. Without keys all clients are one, so that it is
            more than the requests that an engine of 8,192 seats runs and has waiting.
        key_bytes_max: that the holder of one key has sent and that is held.
        total_bytes_max: that all holders of keys have sent and that is held.

    Raises:
        ConfigError: a limit that nothing passes.
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
                raise ConfigError(field=field.name, value=value, expected="above 0")

    @classmethod
    def of(cls, body_bytes_max: int) -> Self:
        """Those of a server that takes bodies of this size: a key's holder may send two at once."""
        defaults = cls()
        key_bytes_max = max(defaults.key_bytes_max, 2 * body_bytes_max)
        return cls(
            key_bytes_max=key_bytes_max,
            total_bytes_max=max(defaults.total_bytes_max, 2 * key_bytes_max),
        )

    def time_s(self, received_bytes: int) -> float:
        """Wall seconds that a body or message has of which so much has come."""
        return self.body_wait_s + received_bytes / self.bytes_per_s_min

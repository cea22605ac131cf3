"""Options of gRPC's core for our ports: how long connections last, and what one may send.

A silent connection is asked for a sign of life. Each has an end: after its life it takes no new
call, and it is closed when the calls on it have had their time.
"""

from typing import Final

_KEEPALIVE_S: Final = 60
"""Without a sign of life in _KEEPALIVE_ANSWER_S a connection and its calls are ended."""

_KEEPALIVE_ANSWER_S: Final = 20

_MILLISECONDS_MAX: Final = 2**31 - 1
"""The core's integers."""

METADATA_BYTES_MAX: Final = 16 * 2**10
"""Of a call's headers, decompressed; a fourth more is refused by the core without a word."""

WINDOW_BYTES: Final = 16 * 2**10
"""What a call may send before it is its turn; the core would begin with 4 MiB, and grow that."""

_IDLE_MS: Final = 20_000
"""A connection without a call ends, so that those who only connect keep nobody else off for longer;
a client makes another when it needs one."""

HANDSHAKE_WALL_S: Final = 10.0
"""For TLS and the first bytes, and as long for HTTP/2's first frames."""


def connection_options(
    *, message_bytes_max: int, life_wall_s: float, grace_wall_s: float, streams_max: int
) -> list[tuple[str, int]]:
    """Options that every port of ours has; the core adds a tenth to a life, or takes it off."""
    return [
        ("grpc.max_receive_message_length", message_bytes_max),
        ("grpc.max_metadata_size", METADATA_BYTES_MAX),
        ("grpc.max_concurrent_streams", streams_max),
        ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.max_connection_idle_ms", _IDLE_MS),
        ("grpc.http2.settings_timeout", _milliseconds(HANDSHAKE_WALL_S)),
        # As vLLM's launcher has it: a call that does not stream is silent while it is at work, and
        # a client's pings in that time are no abuse.
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.keepalive_time_ms", _KEEPALIVE_S * 1_000),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_ANSWER_S * 1_000),
        ("grpc.max_connection_age_ms", _milliseconds(life_wall_s)),
        ("grpc.max_connection_age_grace_ms", _milliseconds(grace_wall_s)),
        # A second server on the port is told so instead of taking half of the calls.
        ("grpc.so_reuseport", 0),
    ]


def _milliseconds(wall_s: float) -> int:
    return min(round(max(wall_s, 1.0) * 1e3), _MILLISECONDS_MAX)

"""Options of gRPC's core for our ports.

After its life a connection takes no new call, and closes when its calls have had their time.
"""

from typing import Final

_KEEPALIVE_S: Final = 60
"""Time between pings; one unanswered for _KEEPALIVE_ANSWER_S ends the connection and its calls."""

_KEEPALIVE_ANSWER_S: Final = 20

_MILLISECONDS_MAX: Final = 2**31 - 1
"""The core's largest integer."""

METADATA_BYTES_MAX: Final = 16 * 2**10
"""Bytes of a call's headers, decompressed; the core silently refuses a fourth more."""

WINDOW_BYTES: Final = 16 * 2**10
"""Bytes that a call may send before its turn; the core would begin with 4 MiB, and grow that."""

_IDLE_MS: Final = 20_000
"""Time after which a connection without calls ends, to make room; its client may connect again."""

HANDSHAKE_WALL_S: Final = 10.0
"""Time for TLS and the first bytes, and again for HTTP/2's first frames."""


def connection_options(
    *, message_bytes_max: int, life_wall_s: float, grace_wall_s: float, streams_max: int
) -> list[tuple[str, int]]:
    """Options of every port; the core varies a life by a tenth."""
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

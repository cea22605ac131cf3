"""The server-sent events of a replica's answer, as they come."""

from collections.abc import AsyncIterator
from typing import Final

import aiohttp

from serving.server.replicas.completion_stream import ReplicaFailed

_EVENT_BYTES_MAX: Final = 64 * 2**20


async def events_of(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Each without the empty line that ends it; raises ReplicaFailed for one without an end."""
    kept = b""
    async for part in content.iter_any():
        *events, kept = (kept + part).split(b"\n\n")
        for event in events:
            yield event
        if len(kept) > _EVENT_BYTES_MAX:
            raise ReplicaFailed(b"an event without an end")
    if kept.strip():
        yield kept

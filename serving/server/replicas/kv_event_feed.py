"""The KV events of all replicas, from their engines to what the router knows of each.

An engine binds a socket of this run, and the service subscribes to it, whichever process is there.
A batch that is missing, or another process's first, begins anew: what is not known is only computed
again.
"""

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import zmq
import zmq.asyncio

from serving.server.replicas.held_blocks import HeldBlocks, KvEventBatch, token_hashes
from serving.server.replicas.live_replica import LiveReplica
from serving.server.replicas.prompt_tokens import PromptReader

logger = logging.getLogger("ultraserve.replicas")

FLAG: Final = "--kv-events-config"
_LONG_BYTES: Final = 8 * 2**10
"""Of a request that is read beside the loop, as its tokens take a millisecond."""

_BATCHES_MAX: Final = 100_000
"""That wait here, as many as wait at vLLM's publisher; more are lost, and all begins anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvRouting:
    """Of routing by KV events: whose tokenizer reads prompts, and tokens of a block."""

    weights_dir: Path
    block_tokens: int


class KvEventFeed:
    """From `start` to `stop`; made before the replicas' processes, which get `words`. Its sockets
    lie in `directory`, which nobody else can enter.
    """

    def __init__(self, routing: KvRouting, directory: Path) -> None:
        self._block_tokens = routing.block_tokens
        self._reader = PromptReader(routing.weights_dir)
        self._directory = directory
        self._context = zmq.asyncio.Context()
        self._tasks: list[asyncio.Task[None]] = []

    def words(self, number: int) -> list[str]:
        """The flags of a replica's process that publishes."""
        config = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": self._endpoint(number),
        }
        return [FLAG, json.dumps(config)]

    async def hashes(self, body: bytes) -> Sequence[int]:
        """The blocks of a request's prompt."""
        if len(body) < _LONG_BYTES:
            return self._hashes(body)
        return await asyncio.to_thread(self._hashes, body)

    def _hashes(self, body: bytes) -> tuple[int, ...]:
        return token_hashes(self._reader.tokens(body), self._block_tokens)

    def start(self, replicas: Sequence[LiveReplica]) -> None:
        """Listen, and let each replica be known by its events."""
        for replica in replicas:
            replica.prefixes = held = HeldBlocks(self._block_tokens)
            self._tasks.append(asyncio.create_task(self._listen(replica.place.number, held)))

    async def stop(self) -> None:
        """End; idempotent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._context.destroy(linger=0)

    def _endpoint(self, number: int) -> str:
        return f"ipc://{self._directory}/kv-{number}"

    async def _listen(self, number: int, held: HeldBlocks) -> None:
        decoder = msgspec.msgpack.Decoder(KvEventBatch)
        due = 0
        with self._context.socket(zmq.SUB) as socket:
            socket.set_hwm(_BATCHES_MAX)
            socket.subscribe(b"")
            socket.connect(self._endpoint(number))
            while True:
                _, sequence, payload = await socket.recv_multipart()
                came = int.from_bytes(sequence, "big")
                if came != due:
                    held.clear()
                due = came + 1
                try:
                    held.take(decoder.decode(payload))
                except (msgspec.MsgspecError, ValueError) as error:
                    logger.error("replica %d: KV events that cannot be read: %s", number, error)
                    held.clear()

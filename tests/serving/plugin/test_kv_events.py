"""The KV events of an engine's ranks, held against what vLLM's own block pools hold."""

import random
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq
from vllm.config.kv_events import KVEventsConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request

from serving.server.replicas.held_blocks import HeldBlocks, KvEventBatch, token_hashes
from tests.serving.plugin.driven_schedulers import (
    BLOCK_TOKENS,
    Asked,
    DrivenLockstep,
    EngineShape,
    FastTurn,
)
from tests.serving.plugin.engine_config import block_hasher

pytestmark = pytest.mark.long

RANKS = 2


class Published:
    """An engine of two ranks with few blocks, and who listens to it."""

    def __init__(self, directory: Path, *, kv_blocks: int) -> None:
        endpoint = f"ipc://{directory}/events"
        config = KVEventsConfig(enable_kv_cache_events=True, publisher="zmq", endpoint=endpoint)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.subscribe(b"")
        self.engine = DrivenLockstep(
            EngineShape(
                ranks=RANKS,
                kv_blocks=kv_blocks,
                policy="none",
                options={"kv_events_config": config},
            )
        )
        self._socket.connect(endpoint)
        self._socket.poll(200)  # a subscription takes its time
        self.held = HeldBlocks(BLOCK_TOKENS)
        self.ranks_seen: set[int | None] = set()

    def listen(self) -> None:
        decoder = msgspec.msgpack.Decoder(KvEventBatch)
        while self._socket.poll(50):
            batch = decoder.decode(self._socket.recv_multipart()[2])
            self.ranks_seen.add(batch.data_parallel_rank)
            self.held.take(batch)

    def hits(self, text: list[int]) -> int:
        return self.held.hit_tokens(token_hashes(np.asarray(text, dtype=np.int32), BLOCK_TOKENS))

    def true_hits(self, text: list[int]) -> int:
        """By vLLM's pools: the longest beginning that one rank holds."""
        request = Request(
            *("probe", text, SamplingParams(max_tokens=1), None),
            block_hasher=block_hasher(BLOCK_TOKENS),
        )
        return max(self._hits(rank, request) for rank in self.engine.scheduler.ranks)

    def _hits(self, rank: Any, request: Request) -> int:
        pool, blocks = rank.kv_cache_manager.block_pool, 0
        for each in request.block_hashes:
            if pool.get_cached_block(each, [0]) is None:
                break
            blocks += 1
        return blocks * BLOCK_TOKENS

    def close(self) -> None:
        self.engine.scheduler.shutdown()
        self._context.destroy(linger=0)


@pytest.fixture
def published(tmp_path: Path) -> Any:
    made = Published(tmp_path, kv_blocks=24)
    yield made
    made.close()


def test_what_events_say_is_what_the_pools_hold_through_evictions_and_a_reset(
    published: Published,
) -> None:
    chance, engine = random.Random(1), published.engine
    names: list[str] = []
    evicted = False
    for turn in range(40):
        follows = chance.choice(names) if names and chance.random() < 0.6 else None
        prompt = tuple(chance.randrange(5, 90) for _ in range(chance.randrange(10, 60)))
        asked = Asked(name=f"r{turn}", prompt=prompt, max_tokens=6, follows=follows)
        engine.take(FastTurn(asked=(asked,)))
        names.append(asked.name)
        if turn % 4 == 3:
            while engine.scheduler.has_unfinished_requests():
                engine.take(FastTurn())
            published.listen()
            for name in names:
                text = engine.texts[name]
                assert published.hits(text) == published.true_hits(text)
                evicted |= published.true_hits(text) < (len(text) - 1) // BLOCK_TOKENS
    assert evicted
    assert published.ranks_seen == {0, 1}
    assert any(published.hits(engine.texts[name]) for name in names)

    engine.take(FastTurn(reset=False))
    engine.take(FastTurn(asked=(Asked(name="last", prompt=(7,) * 40, max_tokens=2),)))
    engine.take(FastTurn())
    published.listen()
    for name in names:
        assert published.hits(engine.texts[name]) == published.true_hits(engine.texts[name])

"""Engines' ends of an exchange over real sockets, without the engines: what is held, and reads."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self, TypeVar

import numpy as np

from emulator.specs.kv_blocks import KvBlocks
from emulator.specs.step import KvSource
from serving.engine.remote_kv.arrivals import KvArrivals
from serving.engine.remote_kv.kv_loop import KvLoop
from serving.engine.remote_kv.layout import KvLayout
from serving.engine.remote_kv.limits import KvLimits
from serving.engine.remote_kv.messages import EngineFacts, Pull
from serving.engine.remote_kv.offers import KvOffer, KvOffers
from serving.engine.remote_kv.port import KvPort
from serving.engine.remote_kv.sources import CameKv, KvSources
from tests.e2e.server_process import free_port

Result = TypeVar("Result")

KEY = b"k" * 40
LAYOUT = KvLayout(layers=2, heads=2, key_width=4, value_width=4, latent=False)
BLOCK_TOKENS = 4
SHORT = KvLimits(handshake_wall_s=0.5, stall_wall_s=0.5, answer_wall_s=0.8)


def facts(
    name: str = "holder",
    *,
    port: int = 1,
    tp: int = 1,
    layout: KvLayout | None = LAYOUT,
    lease_s: float = 30.0,
) -> EngineFacts:
    return EngineFacts(
        engine_id=name,
        host="127.0.0.1",
        port=port,
        system="system",
        model="model",
        lease_s=lease_s,
        token_bytes=8,
        block_tokens=BLOCK_TOKENS,
        tp=tp,
        layout=layout,
    )


def random_kv(blocks: int, *, tp: int = 1, layout: KvLayout = LAYOUT) -> tuple[KvBlocks, ...]:
    random = np.random.default_rng(blocks)
    arrays = [
        random.standard_normal(shape).astype(np.float32)
        for shape in layout.shapes(tp, blocks=blocks, block_tokens=BLOCK_TOKENS)
    ]
    return tuple(
        KvBlocks(keys=keys, values=values)
        for keys, values in zip(arrays[::2], arrays[1::2], strict=True)
    )


def wait_for(look: Callable[[], Result], wall_s: float = 10.0) -> Result:
    end_s = time.monotonic() + wall_s
    while not (found := look()):
        assert time.monotonic() < end_s, "it did not come"
        time.sleep(0.002)
    return found


@dataclass(kw_only=True)
class Holder:
    """An engine's port, and what it holds."""

    tp: int = 1
    layout: KvLayout | None = LAYOUT
    limits: KvLimits = SHORT
    lease_s: float = 30.0
    port: int = field(default_factory=free_port)
    offers: KvOffers = field(default_factory=KvOffers)
    arrivals: KvArrivals = field(default_factory=KvArrivals)

    def __enter__(self) -> Self:
        self.loop = KvLoop()
        self.facts = facts(port=self.port, tp=self.tp, layout=self.layout, lease_s=self.lease_s)
        KvPort(
            self.loop,
            key=KEY,
            facts=self.facts,
            offers=self.offers,
            arrivals=self.arrivals,
            limits=self.limits,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.close()

    def hold(self, name: str, kv: tuple[KvBlocks, ...], *, blocks: int) -> None:
        offer = KvOffer(
            request_id=name, rank=0, blocks=[*range(blocks)], tokens=blocks, prompt=b"prompt"
        )
        self.offers.add(offer)
        self.offers.has_read(offer, kv, weights="weights")


class Reader:
    """An engine that reads from others."""

    def __init__(
        self, *, key: bytes = KEY, layout: KvLayout | None = LAYOUT, limits: KvLimits = SHORT
    ) -> None:
        self.loop = KvLoop()
        own = facts("reader", layout=layout)
        self.sources = KvSources(self.loop, key=key, facts=own, limits=limits)
        self._number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.close()

    def begin(self, port: int, name: str, *, blocks: int, first_block: int = 0) -> str:
        """Begin to read; its name."""
        self._number += 1
        read = f"read{self._number}"
        pull = Pull(
            request_id=name,
            read=read,
            first_block=first_block,
            blocks=blocks,
            tokens=1,
            prompt=b"prompt",
            weights="weights",
        )
        self.sources.pull(self.source(port, name), pull)
        return read

    def source(self, port: int, name: str) -> KvSource:
        return KvSource(host="127.0.0.1", port=port, engine_id="holder", request_id=name)

    def came(self, read: str) -> CameKv:
        return wait_for(lambda: self.sources.came(read))

    def read(self, port: int, name: str, *, blocks: int, first_block: int = 0) -> CameKv:
        return self.came(self.begin(port, name, blocks=blocks, first_block=first_block))

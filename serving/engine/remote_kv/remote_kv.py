"""An engine's keys and values for others, and those of others for it, as its steps go on.

Both engines charge a transfer, each by its own clock: the sender its links and the reads of its
HBM, the receiver the writes to its own. Its time is that of a plan's pools
(`prompt_transfer_ns`), from the receiver's decision on; the bytes themselves cross a socket
meanwhile.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from emulator.errors import ChipLost
from emulator.fleet import Fleet
from emulator.specs.kv_blocks import KvBlocks
from emulator.specs.step import KvPull, KvRelease
from emulator.units import NS_PER_S
from serving.engine.live_machine import LiveMachine
from serving.engine.remote_kv.messages import EngineFacts, Pull
from serving.engine.remote_kv.offers import KvOffers, KvSent
from serving.engine.remote_kv.port import KvPort
from serving.engine.remote_kv.sources import KvSources

_REST_WALL_S: Final = 0.001

logger = logging.getLogger(f"vllm.{__name__}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KvExchangeSettings:
    """Where an engine gives out KV, to engines with the `key`, and for how long: `lease_s` emulated
    seconds from its prompt's end on.
    """

    engine_id: str
    host: str
    port: int
    key: bytes
    lease_s: float


class RemoteKv:
    """What an engine exchanges with others; used between its steps."""

    def __init__(self, settings: KvExchangeSettings, facts: EngineFacts, offers: KvOffers) -> None:
        self._lease_ns = round(settings.lease_s * NS_PER_S)
        self._offers = offers
        self._sources = KvSources(settings.key, facts)
        self._port = KvPort(
            settings.host, settings.port, key=settings.key, facts=facts, offers=offers
        )

    def close(self) -> None:
        """Close the port and all connections."""
        self._port.close()
        self._sources.close()

    @property
    def holds(self) -> bool:
        """Whether KV is held for others."""
        return bool(self._offers)

    def rest(self) -> None:
        """Sleep a moment, where an engine has nothing to do but to hold KV, or to wait for some."""
        time.sleep(_REST_WALL_S)

    def look(self, live: LiveMachine, weights_of: Callable[[int], str], now_ns: int) -> None:
        """Read the blocks that have come to be held, and give up what is held for too long."""
        for offer in self._offers.unread_blocks():
            try:
                kv = _read(live, offer.rank, offer.blocks)
            except ChipLost:  # which the next step meets
                self._offers.end(offer.request_id)
                continue
            until_ns = now_ns + self._lease_ns
            self._offers.has_read(offer, kv, weights=weights_of(offer.rank), until_ns=until_ns)
        for name in self._offers.expire(now_ns):
            logger.warning(
                "KV of request %s is freed: no engine has asked for it within kv_lease_duration, "
                "%g emulated seconds",
                name,
                self._lease_ns / NS_PER_S,
            )

    def take_sent(self) -> list[KvSent]:
        """What has gone to others since last asked."""
        return self._offers.take_sent()

    def pull(self, pull: KvPull, weights: str) -> None:
        """Begin to read."""
        message = Pull(
            request_id=pull.source.request_id,
            read=pull.request_id,
            first_block=pull.first_block,
            tokens=pull.prompt_tokens,
            prompt=pull.prompt,
            weights=weights,
        )
        self._sources.pull(pull.source, message)

    def release(self, release: KvRelease) -> None:
        """Tell another engine that what it holds is not needed."""
        self._sources.release(release.source)

    def came(self, pull: KvPull) -> bool:
        """Whether a read has ended, well or not."""
        return self._sources.came(pull.source, pull.request_id) is not None

    def has_failed(self, pull: KvPull) -> bool:
        """Whether a read has come to nothing; says why."""
        came = self._sources.came(pull.source, pull.request_id)
        if came is None or came.reason is None:
            return False
        logger.warning(
            "request %s is computed here, as its KV does not come: %s",
            pull.request_id,
            came.reason,
        )
        return True

    def take(self, pull: KvPull, live: LiveMachine) -> None:
        """Write what came into the rank's blocks; raises ChipLost."""
        came = self._sources.came(pull.source, pull.request_id)
        assert came is not None
        if isinstance(live.tokens, Fleet):
            live.tokens.write_kv(pull.to_rank, pull.to_blocks, came.kv)

    def end(self, pull: KvPull, *, taken: bool) -> None:
        """Tell the source that its blocks are needed no more."""
        taken_tokens = pull.tokens if taken else 0
        self._sources.end(pull.source, pull.request_id, taken_tokens=taken_tokens)


def _read(live: LiveMachine, rank: int, blocks: list[int]) -> tuple[KvBlocks, ...]:
    return live.tokens.read_kv(rank, blocks) if isinstance(live.tokens, Fleet) else ()

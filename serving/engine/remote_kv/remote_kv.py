"""An engine's keys and values for others, and those of others for it, as its steps go on.

Both engines charge a transfer, each by its own clock: the sender its links and the reads of its
HBM, the receiver the writes to its own. Its time is that of a plan's pools
(`prompt_transfer_ns`), from the receiver's decision on; the bytes themselves cross a socket
meanwhile.
"""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from emulator.errors import ChipLost
from emulator.fleet import Fleet
from emulator.specs.kv_blocks import KvBlocks
from emulator.specs.step import KvAwait, KvPull, KvRelease
from emulator.units import NS_PER_S
from serving.engine.live_machine import LiveMachine
from serving.engine.remote_kv.kv_loop import KvLoop
from serving.engine.remote_kv.limits import KvLimits
from serving.engine.remote_kv.messages import EngineFacts, Pull
from serving.engine.remote_kv.offers import KvOffer, KvOffers, KvSent
from serving.engine.remote_kv.port import KvPort
from serving.engine.remote_kv.sources import KvSources

_REST_WALL_S: Final = 0.001

_BEATS: Final = 6
"""Heartbeats in the shortest lease, as in vLLM; by the wall, since a holder's clock is not known
here.
"""

logger = logging.getLogger(f"vllm.{__name__}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KvExchangeSettings:
    """An engine gives out KV to engines with the `key`, for `lease_s` emulated seconds from its
    prompt's end on.
    """

    key: bytes
    lease_s: float
    limits: KvLimits = field(default_factory=KvLimits)


class RemoteKv:
    """What an engine of `facts` exchanges with others; used between its steps. Copies on the host
    of what it holds have at most `copies_bytes_max`, and those of what it reads as much.
    """

    def __init__(
        self,
        settings: KvExchangeSettings,
        facts: EngineFacts,
        offers: KvOffers,
        *,
        copies_bytes_max: int,
    ) -> None:
        self._lease_ns = round(settings.lease_s * NS_PER_S)
        self._offers = offers
        self._layout = facts.layout
        block_bytes = 0 if facts.layout is None else facts.layout.block_bytes(facts.block_tokens)
        offers.bound(block_bytes=block_bytes, bytes_max=copies_bytes_max)
        self._loop = loop = KvLoop()
        key, limits = settings.key, settings.limits
        try:
            KvPort(loop, key=key, facts=facts, offers=offers, limits=limits)
        except BaseException:
            loop.close()
            raise
        self._beaten_wall_s = -math.inf
        self._sources = KvSources(loop, key=key, facts=facts, limits=limits)
        self._sources.bound(block_bytes=block_bytes, bytes_max=copies_bytes_max)

    def close(self) -> None:
        """Close the port and all connections."""
        self._loop.close()

    @property
    def holds(self) -> bool:
        """Whether KV is held for others."""
        return bool(self._offers)

    def rest(self) -> None:
        """Sleep a moment, where an engine has nothing to do but to hold KV, or to wait for some."""
        time.sleep(_REST_WALL_S)

    def look(self, live: LiveMachine, weights_of: Callable[[int], str], now_ns: int) -> None:
        """Read the blocks that have come to be held, and `keep_leases`."""
        for offer in self._offers.unread_blocks():
            try:
                kv = self._read(live, offer)
            except ChipLost:  # which the next step meets
                self._offers.end(offer.request_id)
                continue
            self._offers.has_read(offer, kv, weights=weights_of(offer.rank))
        self.keep_leases(now_ns)

    def keep_leases(self, now_ns: int) -> None:
        """Give up what is held for too long, and let other engines hold what is waited for here."""
        self._expire(now_ns)
        now_wall_s = time.monotonic()
        if now_wall_s >= self._beaten_wall_s + self._sources.lease_s / _BEATS:
            self._beaten_wall_s = now_wall_s
            self._sources.beat()

    def end_leases_by_wall(self) -> int:
        """Give up what was held for as long by the wall: where emulated time passes in steps alone,
        and there are none. Returns the emulated end of the first lease that is over, 0 without one.
        """
        over_ns = self._offers.over_ns()
        if over_ns is None:
            return 0
        self._expire(over_ns)
        return over_ns

    def _expire(self, now_ns: int) -> None:
        for late in self._offers.expire(now_ns, self._lease_ns):
            logger.warning(
                "KV of request %s is freed: %s within kv_lease_duration, %g emulated seconds",
                late.request_id,
                "its reader has not ended" if late.is_read else "no engine has asked for it",
                self._lease_ns / NS_PER_S,
            )

    def _read(self, live: LiveMachine, offer: KvOffer) -> tuple[KvBlocks, ...]:
        if not isinstance(live.tokens, Fleet) or self._layout is None:
            return ()
        return self._layout.sent(live.tokens.read_kv(offer.rank, offer.blocks))

    def take_sent(self) -> list[KvSent]:
        """What has gone to others since last asked."""
        return self._offers.take_sent()

    def pull(self, pull: KvPull, weights: str) -> None:
        """Begin to read."""
        message = Pull(
            request_id=pull.source.request_id,
            read=pull.request_id,
            first_block=pull.first_block,
            blocks=len(pull.to_blocks),
            tokens=pull.prompt_tokens,
            prompt=pull.prompt,
            weights=weights,
        )
        self._sources.pull(pull.source, message)

    def await_room(self, awaits: KvAwait) -> None:
        """Have it held until it is read or released."""
        self._sources.await_room(awaits.source, awaits.request_id)

    def release(self, release: KvRelease) -> None:
        """Tell another engine that what it holds is not needed."""
        self._sources.release(release.source, release.request_id)

    def came(self, pull: KvPull) -> bool:
        """Whether a read has ended, well or not."""
        return self._sources.came(pull.request_id) is not None

    def has_failed(self, pull: KvPull) -> bool:
        """Whether a read has come to nothing; says why."""
        came = self._sources.came(pull.request_id)
        if came is None or came.reason is None:
            return False
        logger.warning(
            "request %s is computed here, as its KV does not come: %s",
            pull.request_id,
            came.reason,
        )
        return True

    def take(self, pull: KvPull, live: LiveMachine) -> None:
        """Write what came into the rank's blocks; raises ChipLost, and ConnectionError where the
        other engine was lost at this moment.
        """
        came = self._sources.came(pull.request_id)
        assert came is not None
        if came.reason is not None:
            raise ConnectionError(came.reason)
        if isinstance(live.tokens, Fleet) and self._layout is not None:
            kv = self._layout.whole(came.kv)
            live.tokens.write_kv(pull.to_rank, pull.to_blocks, kv)

    def end(self, pull: KvPull, *, taken: bool) -> None:
        """Tell the source that its blocks are needed no more."""
        taken_tokens = pull.tokens if taken else 0
        self._sources.end(pull.source, pull.request_id, taken_tokens=taken_tokens)

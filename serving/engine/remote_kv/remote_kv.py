"""An engine's keys and values for others, and those of others for it, as its steps go on.

A prompt's go when another engine asks for them, or, where the request says which one will decode
it, with each of the steps that compute it.

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
from emulator.specs.step import KvAwait, KvPull, KvPush, KvRelease
from emulator.units import NS_PER_S
from serving.engine.live_machine import LiveMachine
from serving.engine.remote_kv.arrivals import KvArrivals
from serving.engine.remote_kv.kv_loop import KvLoop
from serving.engine.remote_kv.limits import KvLimits
from serving.engine.remote_kv.messages import EngineFacts, Pull, Push
from serving.engine.remote_kv.offers import KvOffer, KvOffers, KvSent
from serving.engine.remote_kv.port import KvPort
from serving.engine.remote_kv.sources import KvSources, PushedPart

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


@dataclass(slots=True, kw_only=True)
class _Pushing:
    """A prompt that a rank pushes: `parts` without an answer; all that is to go has been given."""

    rank: int
    parts: list[PushedPart] = field(default_factory=list)
    is_over: bool = False
    is_refused: bool = False


class RemoteKv:
    """What an engine of `facts` exchanges with others; used between its steps. Copies on the host
    of what it holds have at most `copies_bytes_max`; those of what it reads, of what it pushes, and
    of what is pushed to it, as much each. `buffer_bytes` bound the last in emulated memory.
    """

    def __init__(
        self,
        settings: KvExchangeSettings,
        facts: EngineFacts,
        offers: KvOffers,
        *,
        copies_bytes_max: int,
        arrivals: KvArrivals | None = None,
        buffer_bytes: float = 0,
    ) -> None:
        self._lease_ns = round(settings.lease_s * NS_PER_S)
        self._offers = offers
        self._layout = facts.layout
        block_bytes = 0 if facts.layout is None else facts.layout.block_bytes(facts.block_tokens)
        offers.bound(block_bytes=block_bytes, bytes_max=copies_bytes_max)
        self.arrivals = arrivals = KvArrivals() if arrivals is None else arrivals
        arrivals.bound(
            token_bytes=facts.token_bytes,
            buffer_bytes=buffer_bytes,
            block_bytes=block_bytes,
            copies_bytes=copies_bytes_max,
        )
        self._copies_blocks_max = copies_bytes_max // block_bytes if block_bytes else math.inf
        self._pushing: dict[str, _Pushing] = {}
        self._loop = loop = KvLoop()
        key, limits = settings.key, settings.limits
        try:
            KvPort(loop, key=key, facts=facts, offers=offers, arrivals=arrivals, limits=limits)
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
        """Give up what is held, or was pushed, for too long, and let other engines hold what is
        waited for here.
        """
        self._expire(now_ns)
        self.arrivals.expire(now_ns, self._lease_ns)
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
        return self._blocks_of(live, offer.rank, offer.blocks)

    def _blocks_of(self, live: LiveMachine, rank: int, blocks: list[int]) -> tuple[KvBlocks, ...]:
        if not isinstance(live.tokens, Fleet) or self._layout is None:
            return ()
        return self._layout.sent(live.tokens.read_kv(rank, blocks))

    def take_sent(self) -> list[KvSent]:
        """What has gone to others since last asked."""
        sent = self._offers.take_sent()
        for name, pushing in tuple(self._pushing.items()):
            for part in pushing.parts:
                pushing.is_refused = pushing.is_refused or part.to_chips == 0
                if part.to_chips:
                    push = part.push
                    sent.append(
                        KvSent(
                            rank=pushing.rank,
                            tokens=push.tokens,
                            to_chips=part.to_chips,
                            is_last=push.is_last,
                        )
                    )
            pushing.parts = [part for part in pushing.parts if part.to_chips is None]
            if pushing.is_over and not pushing.parts:
                del self._pushing[name]
        return sent

    def push(self, push: KvPush, live: LiveMachine, *, weights: str, step_ns: int) -> None:
        """Send what a step has computed, which took `step_ns`, unless a part before it was refused,
        or copies of parts that have no answer would be too many; raises ChipLost.
        """
        name = push.target.request_id
        pushing = self._pushing.setdefault(name, _Pushing(rank=push.rank))
        pushing.is_over = push.is_last or not push.blocks
        on_way = sum(part.push.blocks for each in self._pushing.values() for part in each.parts)
        if any(part.to_chips == 0 for part in pushing.parts):
            pushing.is_refused = True
        if on_way + len(push.blocks) > self._copies_blocks_max:
            pushing.is_refused = True
        message = Push(
            request_id=name,
            read=f"{name} {push.first_block}",
            first_block=push.first_block,
            blocks=len(push.blocks),
            tokens=push.tokens,
            prompt_tokens=push.prompt_tokens,
            prompt=push.prompt,
            weights=weights,
            step_ns=step_ns,
            is_last=push.is_last,
        )
        if not push.blocks:
            self._sources.give_up(push.target, message)
        elif not pushing.is_refused:
            kv = self._blocks_of(live, push.rank, push.blocks)
            pushing.parts.append(self._sources.push(push.target, message, kv))

    def pull(self, pull: KvPull, weights: str) -> None:
        """Begin to read; what was pushed of the prompt is not, or no longer, waited for."""
        self.arrivals.drop(pull.source.engine_id, pull.source.request_id)
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
        self.arrivals.await_room(awaits.source)
        self._sources.await_room(awaits.source, awaits.request_id)

    def release(self, release: KvRelease) -> None:
        """Tell another engine that what it holds is not needed, nor what it has pushed here."""
        self.arrivals.drop(release.source.engine_id, release.source.request_id)
        self._sources.release(release.source, release.request_id)

    def came(self, pull: KvPull) -> bool:
        """Whether a read has ended, well or not."""
        if self.arrivals.taken(pull.request_id) is not None:
            return True
        return self._sources.came(pull.request_id) is not None

    def has_failed(self, pull: KvPull) -> bool:
        """Whether a read has come to nothing; says why."""
        if self.arrivals.taken(pull.request_id) is not None:
            return False
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
        pushed = self.arrivals.taken(pull.request_id)
        if pushed is not None:
            sent = pushed.blocks_from(pull.first_block)
        else:
            came = self._sources.came(pull.request_id)
            assert came is not None
            if came.reason is not None:
                raise ConnectionError(came.reason)
            sent = came.kv
        if isinstance(live.tokens, Fleet) and self._layout is not None:
            live.tokens.write_kv(pull.to_rank, pull.to_blocks, self._layout.whole(sent))

    def end(self, pull: KvPull, *, taken: bool) -> None:
        """Tell the source that its blocks are needed no more."""
        self.arrivals.has_read(pull.request_id)
        taken_tokens = pull.tokens if taken else 0
        self._sources.end(pull.source, pull.request_id, taken_tokens=taken_tokens)

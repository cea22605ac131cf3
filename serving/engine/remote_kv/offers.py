"""Keys and values that an engine holds for others: told by its scheduler, read by its port."""

import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final
from weakref import WeakValueDictionary

from emulator.specs.kv_blocks import KvBlocks
from emulator.units import NS_PER_S


@dataclass(slots=True, kw_only=True, eq=False)
class KvOffer:
    """The first `tokens` tokens of a request, in `blocks` of a rank, held.

    `prompt` is their digest. The engine adds `weights`, the hash of those that computed it; `kv`,
    the numbers by part (none where none are computed); and until when it is held, in emulated time
    and by the wall: a lease that begins anew with a reader, and with each heartbeat.
    """

    request_id: str
    rank: int
    blocks: list[int]
    tokens: int
    prompt: bytes
    weights: str = ""
    kv: tuple[KvBlocks, ...] | None = None
    until_ns: int | None = None
    until_wall_s: float = 0.0
    is_read: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KvSent:
    """`tokens` that have gone from a rank to one of `to_chips` chips of another engine; all of a
    request's, or a part, the last one or not.
    """

    rank: int
    tokens: int
    to_chips: int
    is_last: bool = True


class KvOffers:
    """What is held, by request. Its numbers are copies on the host, of which there is a bound."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._offers: dict[str, KvOffer] = {}
        self._ended: dict[int, list[str]] = defaultdict(list)  # by rank
        self._sent: list[KvSent] = []
        self._block_bytes = self._bytes_max = 0
        self.on_loss: Callable[[str, str], None] = lambda _, __: None
        self.on_news: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self._offers)

    def bound(self, *, block_bytes: int, bytes_max: int) -> None:
        """Let the numbers of all that is held, so many in a block, have at most so many bytes."""
        self._block_bytes, self._bytes_max = block_bytes, bytes_max

    def has_room(self, blocks: int) -> bool:
        """Whether as many more may be held (scheduler)."""
        with self._lock:
            held = sum(len(each.blocks) for each in self._offers.values())
        return (held + blocks) * self._block_bytes <= self._bytes_max

    def add(self, offer: KvOffer) -> None:
        """Hold a request's KV (scheduler)."""
        with self._lock:
            assert offer.request_id not in self._offers, "its KV is held already"
            self._offers[offer.request_id] = offer

    def lose(self, request_id: str) -> None:
        """Hold it no more: its blocks are lost (scheduler)."""
        with self._lock:
            self._offers.pop(request_id, None)
        self.on_loss(request_id, "a chip that held it was lost")

    def take_ended(self, rank: int) -> list[str]:
        """Requests of a rank whose blocks are needed no more, each once (scheduler)."""
        with self._lock:
            return self._ended.pop(rank, [])

    def unread_blocks(self) -> list[KvOffer]:
        """Offers whose blocks the engine has yet to read."""
        with self._lock:
            return [each for each in self._offers.values() if each.kv is None]

    def has_read(self, offer: KvOffer, kv: tuple[KvBlocks, ...], *, weights: str) -> None:
        """Add what the engine has read (engine)."""
        with self._lock:
            offer.weights, offer.kv = weights, kv
        self.on_news()

    def expire(self, now_ns: int, lease_ns: int) -> list[KvOffer]:
        """Give up what was held for too long, and let leases begin that are new (engine)."""
        late = []
        with self._lock:
            for each in tuple(self._offers.values()):
                if each.kv is None:
                    continue
                if each.until_ns is None:
                    each.until_ns = now_ns + lease_ns
                    each.until_wall_s = time.monotonic() + lease_ns / NS_PER_S
                elif each.until_ns <= now_ns:
                    late.append(each)
                    self._end(each)
        for each in late:
            self.on_loss(each.request_id, "it was held for longer than kv_lease_duration")
        return late

    def over_ns(self) -> int | None:
        """The end of the first lease that has ended by the wall; None without one (engine). Those
        that have not do not end with it: the rest of theirs begins then.
        """
        now_wall_s = time.monotonic()
        with self._lock:
            begun = [each for each in self._offers.values() if each.until_ns is not None]
            ends = [each.until_ns for each in begun if each.until_wall_s <= now_wall_s]
            over_ns = min((each for each in ends if each is not None), default=None)
            if over_ns is None:
                return None
            for each in begun:
                rest_ns = math.ceil((each.until_wall_s - now_wall_s) * NS_PER_S)
                if rest_ns > 0 and each.until_ns is not None and each.until_ns <= over_ns:
                    each.until_ns = over_ns + rest_ns
        return over_ns

    def take_sent(self) -> list[KvSent]:
        """What has gone since last asked (engine)."""
        with self._lock:
            sent, self._sent = self._sent, []
        return sent

    def get(self, request_id: str) -> KvOffer | None:
        """What is held for a request (any thread, as all below)."""
        with self._lock:
            return self._offers.get(request_id)

    def begin_read(self, offer: KvOffer) -> None:
        """One reader has it, and the lease begins anew."""
        with self._lock:
            offer.is_read, offer.until_ns = True, None

    def renew(self, request_ids: Iterable[str]) -> None:
        """Let leases begin anew."""
        with self._lock:
            for name in request_ids:
                if (offer := self._offers.get(name)) is not None:
                    offer.until_ns = None

    def put_back(self, request_id: str) -> None:
        """Its reader is gone: another may have it, until its lease ends."""
        with self._lock:
            offer = self._offers.get(request_id)
            if offer is not None:
                offer.is_read = False

    def end(self, request_id: str, *, sent_tokens: int = 0, to_chips: int = 0) -> None:
        """A reader needs it no more, and has had `sent_tokens` of it, as it says: at most all."""
        with self._lock:
            offer = self._offers.get(request_id)
            if offer is None:
                return
            self._end(offer)
            if sent_tokens:
                tokens = min(sent_tokens, offer.tokens)
                self._sent.append(KvSent(rank=offer.rank, tokens=tokens, to_chips=to_chips))
        self.on_news()

    def _end(self, offer: KvOffer) -> None:
        del self._offers[offer.request_id]
        self._ended[offer.rank].append(offer.request_id)


_OFFERS: Final[WeakValueDictionary[str, KvOffers]] = WeakValueDictionary()


def kv_offers_of(instance: str) -> KvOffers:
    """The offers shared by engine and scheduler, which vLLM makes apart, in one process."""
    return _OFFERS.setdefault(instance, KvOffers())

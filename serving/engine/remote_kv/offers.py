"""Keys and values that an engine holds for others: told by its scheduler, read by any thread."""

import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from weakref import WeakValueDictionary

from emulator.specs.kv_blocks import KvBlocks
from serving.engine.remote_kv.connection import STALL_WALL_S


@dataclass(slots=True, kw_only=True, eq=False)
class KvOffer:
    """The first `tokens` tokens of a request, in `blocks` of a rank, held.

    `prompt` is their digest. The engine adds `weights`, the hash of those that computed it; `kv`,
    the numbers by attending chip (none where none are computed); and when it is held until.
    """

    request_id: str
    rank: int
    blocks: list[int]
    tokens: int
    prompt: bytes
    weights: str = ""
    kv: tuple[KvBlocks, ...] | None = None
    until_ns: int | None = None
    is_read: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KvSent:
    """`tokens` that have gone from a rank to one of `to_chips` chips of another engine."""

    rank: int
    tokens: int
    to_chips: int


class KvOffers:
    """What is held, by request. One that is read is not given up before its reader."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._offers: dict[str, KvOffer] = {}
        self._ended: dict[int, list[str]] = defaultdict(list)  # by rank
        self._sent: list[KvSent] = []
        self.on_loss: Callable[[str], None] = lambda _: None

    def __len__(self) -> int:
        return len(self._offers)

    def add(self, offer: KvOffer) -> None:
        """Hold a request's KV (scheduler)."""
        with self._changed:
            assert offer.request_id not in self._offers, "its KV is held already"
            self._offers[offer.request_id] = offer

    def lose(self, request_id: str) -> None:
        """Hold it no more: its blocks are lost (scheduler)."""
        with self._changed:
            self._offers.pop(request_id, None)
            self._changed.notify_all()
        self.on_loss(request_id)

    def take_ended(self, rank: int) -> list[str]:
        """Requests of a rank whose blocks are needed no more, each once (scheduler)."""
        with self._changed:
            return self._ended.pop(rank, [])

    def unread_blocks(self) -> list[KvOffer]:
        """Offers whose blocks the engine has yet to read."""
        with self._changed:
            return [each for each in self._offers.values() if each.kv is None]

    def has_read(
        self, offer: KvOffer, kv: tuple[KvBlocks, ...], *, weights: str, until_ns: int
    ) -> None:
        """Add what the engine has read (engine)."""
        with self._changed:
            offer.weights, offer.until_ns = weights, until_ns
            offer.kv = kv
            self._changed.notify_all()

    def expire(self, now_ns: int) -> list[str]:
        """Give up what no engine has asked for in time (engine)."""
        with self._changed:
            late = [
                each
                for each in self._offers.values()
                if each.until_ns is not None and each.until_ns <= now_ns and not each.is_read
            ]
            for each in late:
                self._end(each)
        return [each.request_id for each in late]

    def take_sent(self) -> list[KvSent]:
        """What has gone since last asked (engine)."""
        with self._changed:
            sent, self._sent = self._sent, []
        return sent

    def read(self, request_id: str) -> KvOffer | None:
        """An offer with its numbers, which the engine may be about to read (any thread)."""

        def is_known() -> bool:
            offer = self._offers.get(request_id)
            return offer is None or offer.kv is not None

        with self._changed:
            self._changed.wait_for(is_known, STALL_WALL_S)
            offer = self._offers.get(request_id)
            if offer is None or offer.kv is None or offer.is_read:
                return None
            offer.is_read = True
            return offer

    def put_back(self, request_id: str) -> None:
        """Its reader is gone: it is held as long as it would be without (any thread)."""
        with self._changed:
            offer = self._offers.get(request_id)
            if offer is not None:
                offer.is_read = False

    def end(self, request_id: str, *, sent_tokens: int = 0, to_chips: int = 0) -> None:
        """A reader needs it no more, and has had `sent_tokens` of it (any thread)."""
        with self._changed:
            offer = self._offers.get(request_id)
            if offer is None:
                return
            self._end(offer)
            if sent_tokens:
                self._sent.append(KvSent(rank=offer.rank, tokens=sent_tokens, to_chips=to_chips))

    def _end(self, offer: KvOffer) -> None:
        del self._offers[offer.request_id]
        self._ended[offer.rank].append(offer.request_id)
        self._changed.notify_all()


_OFFERS: Final[WeakValueDictionary[str, KvOffers]] = WeakValueDictionary()


def kv_offers_of(instance: str) -> KvOffers:
    """The offers shared by engine and scheduler, which vLLM makes apart, in one process."""
    return _OFFERS.setdefault(instance, KvOffers())

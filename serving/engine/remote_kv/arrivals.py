"""Keys and values of prompts that another engine is still computing: each step's part as it comes.

They lie in a buffer of a rank until the request comes that decodes them, as with the
P2pNcclConnector of earlier releases of vLLM, whose `kv_buffer_size` bounds them. The rank is the
one with the fewest requests, counting those that are coming, when the first part comes. Assumed:
the buffer is in the HBM that `--gpu-memory-utilization` leaves. A part without room is refused, and
with it the whole prompt: it is read when its request comes, as what never came here.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakValueDictionary

import numpy as np

from emulator.errors import ConfigError
from emulator.specs.kv_blocks import KvBlocks
from emulator.specs.step import KvSource
from serving.engine.remote_kv.layout import ComingKv
from serving.engine.remote_kv.messages import EngineFacts, Gone, Part, Push, Taken, There
from serving.engine.wake_request import WakeRequest

if TYPE_CHECKING:
    from serving.engine.engine_time import EngineTime

logger = logging.getLogger(f"vllm.{__name__}")

_Name = tuple[str, str]
"""Of the engine that computes a prompt, and of the request there."""


class PartTime(Protocol):
    """When a part is there that a step computed; raises ConfigError where engines do not fit."""

    def __call__(
        self, *, tokens: int, from_chips: int, begin_ns: int, end_ns: int, free_ns: int
    ) -> int:
        """From its begin to its end; the way is taken until `free_ns`."""
        ...


def _not_followed(**_: int) -> int:
    raise AssertionError("the engine's time is not known")


@dataclass(slots=True, kw_only=True, eq=False)
class KvArrival:
    """What has come to a rank of one prompt, whose digest is `prompt`: its first `blocks`, computed
    by `weights` and there from `there_ns` on, in this engine's emulated time; `kv` is part by part.
    The last part was announced at `heard_ns`; a request here that `is_asked_for` waits for it.
    """

    rank: int
    prompt: bytes
    weights: str
    prompt_tokens: int
    blocks: int = 0
    tokens: int = 0
    there_ns: int = 0
    heard_ns: int = 0
    is_asked_for: bool = False
    kv: list[tuple[KvBlocks, ...]] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether no part is missing."""
        return self.tokens == self.prompt_tokens

    def blocks_from(self, first_block: int) -> tuple[KvBlocks, ...]:
        """The numbers by chip from a block on; none where none are computed."""
        return tuple(
            KvBlocks(
                keys=np.concatenate([each.keys for each in parts], axis=1)[:, first_block:],
                values=np.concatenate([each.values for each in parts], axis=1)[:, first_block:],
            )
            for parts in zip(*self.kv, strict=True)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCame:
    """`tokens` that have come to a rank from one of `from_chips` chips of another engine."""

    rank: int
    tokens: int
    from_chips: int


class KvArrivals:
    """What has come to an engine, by prompt; used by its scheduler, its steps and its port."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arrivals: dict[_Name, KvArrival] = {}
        self._taken: dict[str, KvArrival] = {}  # by request here
        self._came: list[KvCame] = []
        self._token_bytes = self._block_bytes = 0
        self._buffer_bytes = self._copies_bytes = 0.0
        self._time: EngineTime | None = None
        self._wake = WakeRequest()
        self._part_ns: PartTime = _not_followed
        self._weights_of: Callable[[int], str] = lambda _: ""
        self._requests_of: Callable[[], Sequence[int | None]] = tuple

    def bound(
        self, *, token_bytes: int, buffer_bytes: float, block_bytes: int, copies_bytes: float
    ) -> None:
        """Let emulated KV have at most `buffer_bytes` on a rank, and the host's copies
        `copies_bytes` in all; an engine that is not bound takes nothing.
        """
        self._token_bytes, self._buffer_bytes = token_bytes, buffer_bytes
        self._block_bytes, self._copies_bytes = block_bytes, copies_bytes

    def follow(
        self,
        time: "EngineTime",
        wake: WakeRequest,
        requests_of: Callable[[], Sequence[int | None]],
    ) -> None:
        """Take from these the engine's present, whether its next step begins with the last one's
        end, and the requests of each rank (None: it takes none).
        """
        self._time, self._wake, self._requests_of = time, wake, requests_of

    def _now_ns(self) -> int:
        assert self._time is not None, "the engine's time is not known"
        return self._time.now_ns

    def ask(self, *, weights_of: Callable[[int], str], part_ns: PartTime) -> None:
        """Take the hash of a rank's weights, and the time of parts, from these."""
        self._weights_of, self._part_ns = weights_of, part_ns

    def refusal(self, name: _Name, push: Push) -> str | None:
        """Why a part is not taken, and what has come before it is given up; None where it is."""
        with self._lock:
            known = self._arrivals.get(name)
            rank = self._next_rank() if known is None else known.rank
            held = [each for each in self._arrivals.values() if each is not known]
            end_tokens = push.tokens + (0 if known is None else known.tokens)
            end_blocks = push.blocks + (0 if known is None else known.blocks)
            tokens = end_tokens + sum(each.tokens for each in held if each.rank == rank)
            blocks = end_blocks + sum(each.blocks for each in held)
            reason = None
            if rank is None:
                reason = "no rank takes requests"
            elif push.first_block != (0 if known is None else known.blocks):
                reason = "the part before it has not come"
            elif known is not None and (known.prompt, known.weights) != (push.prompt, push.weights):
                reason = "it is of another prompt, or of other weights, than the part before it"
            elif end_tokens > push.prompt_tokens:
                reason = "it is more than the prompt has"
            elif tokens * self._token_bytes > self._buffer_bytes:
                reason = f"its buffer has {self._buffer_bytes / 1e6:.0f} MB"
            elif blocks * self._block_bytes > self._copies_bytes:
                reason = f"copies of what comes have {self._copies_bytes / 1e6:.0f} MB"
            if reason is not None:
                self._arrivals.pop(name, None)
            elif known is None and rank is not None:
                self._arrivals[name] = KvArrival(
                    rank=rank,
                    prompt=push.prompt,
                    weights=push.weights,
                    prompt_tokens=push.prompt_tokens,
                    heard_ns=self._now_ns(),
                )
        return reason

    def _next_rank(self) -> int | None:
        """That with the fewest requests and prompts on their way, the first of several."""
        coming = Counter(each.rank for each in self._arrivals.values())
        loads = [
            (requests + coming[rank], rank)
            for rank, requests in enumerate(self._requests_of())
            if requests is not None
        ]
        return min(loads)[1] if loads else None

    def there_ns(self, name: _Name, push: Push, from_chips: int) -> int:
        """When a part is there that is not refused, announced now; raises ConfigError."""
        end_ns = self._now_ns()
        with self._lock:
            known = self._arrivals.get(name)
            free_ns = 0
            if known is not None:
                known.heard_ns, free_ns = end_ns, known.there_ns
        return self._part_ns(
            tokens=push.tokens,
            from_chips=from_chips,
            begin_ns=end_ns - push.step_ns,
            end_ns=end_ns,
            free_ns=free_ns,
        )

    def add(
        self, name: _Name, push: Push, kv: tuple[KvBlocks, ...], *, there_ns: int, from_chips: int
    ) -> bool:
        """Take a part whose numbers have come; whether its prompt is still waited for."""
        with self._lock:
            arrival = self._arrivals.get(name)
            if arrival is None or arrival.blocks != push.first_block:
                return False
            came = KvCame(rank=arrival.rank, tokens=push.tokens, from_chips=from_chips)
            self._came.append(came)
            arrival.kv.append(kv)
            arrival.blocks += push.blocks
            arrival.tokens += push.tokens
            arrival.there_ns = max(arrival.there_ns, there_ns)
            return True

    def take_came(self) -> list[KvCame]:
        """Parts that have come since last asked (engine)."""
        with self._lock:
            came, self._came = self._came, []
        return came

    def find(self, source: KvSource, rank: int) -> KvArrival | None:
        """All of a prompt, computed by the rank's weights; None where that has not come to it
        (scheduler).
        """
        arrival = self._arrivals.get((source.engine_id, source.request_id))
        if arrival is None or not arrival.is_whole or arrival.rank != rank:
            return None
        return arrival if arrival.weights == self._weights_of(rank) else None

    def is_there(self, arrival: KvArrival) -> bool:
        """Whether the step that is decided now can read it (scheduler)."""
        assert self._time is not None, "the engine's time is not known"
        begins_ns = self._time.accounted_ns if self._wake.continues else self._time.now_ns
        return arrival.there_ns <= begins_ns

    def await_room(self, source: KvSource) -> None:
        """Keep what has come of a prompt until its request is served, or ends (engine)."""
        with self._lock:
            arrival = self._arrivals.get((source.engine_id, source.request_id))
            if arrival is not None:
                arrival.is_asked_for = True

    def take(self, source: KvSource, arrival: KvArrival, request_id: str) -> None:
        """Let a request here have what came, which is `taken` until it is read (scheduler)."""
        self.drop(source.engine_id, source.request_id)
        self._taken[request_id] = arrival

    def taken(self, request_id: str) -> KvArrival | None:
        """What came for a request that reads it (engine)."""
        return self._taken.get(request_id)

    def has_read(self, request_id: str) -> None:
        """It is read, or will not be (engine)."""
        self._taken.pop(request_id, None)

    def drop(self, engine_id: str, request_id: str) -> None:
        """Forget a prompt: it is read, or will not be (any thread)."""
        with self._lock:
            self._arrivals.pop((engine_id, request_id), None)

    def lose(self, rank: int) -> None:
        """Forget all that is not taken: a rank has lost it (scheduler)."""
        with self._lock:
            self._arrivals = {
                name: each for name, each in self._arrivals.items() if each.rank != rank
            }

    def expire(self, now_ns: int, lease_ns: int) -> None:
        """Forget what no request, and no further part, has come for within a lease (engine)."""
        with self._lock:
            for name, each in tuple(self._arrivals.items()):
                if not each.is_asked_for and each.heard_ns + lease_ns <= now_ns:
                    del self._arrivals[name]

    def __len__(self) -> int:
        return len(self._arrivals)


class PushReader:
    """Takes what one engine pushes; in the port's loop. `facts` are this engine's own."""

    def __init__(self, arrivals: KvArrivals, facts: EngineFacts, other: EngineFacts) -> None:
        self._arrivals = arrivals
        self._facts = facts
        self._other = other
        self._coming: dict[str, tuple[Push, ComingKv, int]] = {}
        self._begun: set[str] = set()
        """Requests of which parts have come, and more are to come."""
        self._said: set[str] = set()

    def hear(self, message: Push | Part | There) -> Taken | Gone | None:
        """Take a message, and answer a part's end, or its begin where it is refused; raises
        ConnectionError for numbers that do not fit.
        """
        match message:
            case Push():
                return self._begin(message)
            case Part():
                if message.read in self._coming:
                    self._coming[message.read][1].add(message.data)
                return None
            case There():
                return self._end(message.read)

    def _begin(self, push: Push) -> Gone | None:
        if push.read in self._coming:
            raise ConnectionError("two parts of one name")
        if not push.blocks:
            self._drop(push.request_id)
            return None
        name = self._name(push)
        reason = self._arrivals.refusal(name, push)
        there_ns = 0
        try:
            if reason is None:
                there_ns = self._arrivals.there_ns(name, push, self._other.tp)
        except ConfigError as error:  # no such engine is in this system
            reason = str(error)
        if reason is not None:
            if reason not in self._said:
                self._said.add(reason)
                logger.warning(
                    "KV of request %s, and of others, is read once its prompt is computed: %s",
                    push.request_id,
                    reason,
                )
            self._drop(push.request_id)
            return Gone(read=push.read, reason=reason)
        layout = self._facts.layout
        shapes: list[tuple[int, ...]] = []
        if layout is not None:
            tp, block_tokens = self._other.tp, self._other.block_tokens
            shapes = layout.shapes(tp, blocks=push.blocks, block_tokens=block_tokens)
        self._begun.add(push.request_id)
        self._coming[push.read] = push, ComingKv(shapes), there_ns
        return None

    def _end(self, read: str) -> Taken | Gone | None:
        if read not in self._coming:  # it was refused
            return None
        push, coming, there_ns = self._coming.pop(read)
        taken = self._arrivals.add(
            self._name(push), push, coming.whole(), there_ns=there_ns, from_chips=self._other.tp
        )
        if not taken or push.is_last:
            self._begun.discard(push.request_id)
        if not taken:
            return Gone(read=read, reason="it is not waited for any more")
        return Taken(request_id=push.request_id, read=read, tokens=push.tokens)

    def _drop(self, request_id: str) -> None:
        """The prompt's other parts do not come."""
        self._begun.discard(request_id)
        self._arrivals.drop(self._other.engine_id, request_id)

    def leave(self) -> None:
        """The engine is gone: what of its prompts is not whole is forgotten."""
        for request_id in tuple(self._begun):
            self._drop(request_id)

    def _name(self, push: Push) -> _Name:
        return self._other.engine_id, push.request_id


_ARRIVALS: Final[WeakValueDictionary[str, KvArrivals]] = WeakValueDictionary()


def kv_arrivals_of(instance: str) -> KvArrivals:
    """Those shared by engine and scheduler, which vLLM makes apart, in one process."""
    return _ARRIVALS.setdefault(instance, KvArrivals())

"""One replica as the service sees it: its state, what it holds, which prompts it was sent."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from serving.server.replicas.prefix_memory import PrefixMemory
from serving.server.replicas.published_weights import PublishedWeights
from serving.server.replicas.replica_place import ReplicaPlace


class ReplicaState(StrEnum):
    """A replica's state; requests go to ready ones alone."""

    STARTING = "starting"
    READY = "ready"
    NOT_READY = "not ready"
    GONE = "gone"


class HeldPrefixes(Protocol):
    """Which prompts' blocks a replica has."""

    def hit_tokens(self, hashes: Sequence[int]) -> int:
        """Tokens of the prompt's beginning that it has."""

    def begin(self, hashes: Sequence[int]) -> None:
        """A prompt is sent."""

    def end(self, hashes: Sequence[int]) -> None:
        """Its request has ended."""

    def clear(self) -> None:
        """Forget all: the replica has started anew."""


@dataclass(slots=True, kw_only=True)
class LiveReplica:
    """A replica, changed by its watch and by the requests that it holds.

    Attributes:
        url: of its HTTP server; another with each start.
        reason: why it takes no requests, in its words.
        load_tokens: estimated tokens of prompts, and tokens made, of the requests that it holds.
        losses: requests that it lost, and another took over.
        fingerprint: `system_fingerprint` of its last answer since its start, which names its
            weights' version.
        is_prepared: whether its process has been made what the one before it was.
        engine_answered_s: when its engine last answered, by the monotonic clock; `engine_asked_s`,
            when the service last asked for it.
        prefixes: by its KV events, or a guess.
        published: weights that its next process has to publish again.
    """

    place: ReplicaPlace
    url: str = ""
    state: ReplicaState = ReplicaState.STARTING
    reason: str = ""
    pid: int | None = None
    restarts: int = 0
    requests: int = 0
    in_flight: int = 0
    load_tokens: int = 0
    losses: int = 0
    fingerprint: str = ""
    is_prepared: bool = False
    engine_answered_s: float = 0.0
    engine_asked_s: float = 0.0
    prefixes: HeldPrefixes = field(default_factory=PrefixMemory, repr=False)
    published: PublishedWeights = field(default_factory=PublishedWeights, repr=False)

    @property
    def is_ready(self) -> bool:
        """Whether it takes requests."""
        return self.state is ReplicaState.READY

    def tokens_left(self, hashes: Sequence[int], /) -> int:
        """`load_tokens`, less those of a prompt of these block hashes that it has."""
        return self.load_tokens - self.prefixes.hit_tokens(hashes)

    def become(self, state: ReplicaState, reason: str = "") -> bool:
        """Change the state; whether it is another."""
        is_other = state is not self.state
        self.state, self.reason = state, reason
        return is_other

    @contextlib.contextmanager
    def holding(self, hashes: Sequence[int], tokens: int) -> Iterator["HeldTokens"]:
        """Count a request of `tokens` prompt tokens while the block runs."""
        held = HeldTokens(self, tokens)
        self.prefixes.begin(hashes)
        self.requests += 1
        self.in_flight += 1
        try:
            yield held
        finally:
            self.in_flight -= 1
            self.prefixes.end(hashes)
            held.end()


class HeldTokens:
    """The tokens of one request on its replica."""

    __slots__ = ("_replica", "_tokens")

    def __init__(self, replica: LiveReplica, tokens: int) -> None:
        self._replica = replica
        self._tokens = 0
        self.add(tokens)

    def add(self, tokens: int) -> None:
        """Count more."""
        self._tokens += tokens
        self._replica.load_tokens += tokens

    def end(self) -> None:
        """Count none of them any more."""
        self.add(-self._tokens)

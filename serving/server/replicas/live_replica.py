"""One replica as the service sees it: its state, what it holds, which prompts it was sent."""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Protocol

from serving.policy.rank_roles import RankRole
from serving.server.replicas.drawn_ports import HOST
from serving.server.replicas.prefix_memory import PrefixMemory
from serving.server.replicas.published_weights import PublishedWeights
from serving.server.replicas.replica_place import ReplicaPlace
from serving.server.replicas.replica_roles import RequestPart, engine_id


class ReplicaState(StrEnum):
    """A replica's state; requests go to ready ones alone."""

    STARTING = "starting"
    READY = "ready"
    NOT_READY = "not ready"
    GONE = "gone"


class HeldPrefixes(Protocol):
    """Which prompts' blocks a replica has; `is_guess`: by what it was sent alone."""

    is_guess: ClassVar[bool]

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
        url: of its HTTP server; another with each start, as `kv_port` on loopback (0 without one).
        reason: why it takes no requests, in its words.
        role: its place's at the start; None where replicas exchange no KV.
        load_tokens: estimated tokens of prompts, and tokens made, of the requests that it holds.
        prompt_tokens: of prompts that it has yet to compute, for itself or another, as far as the
            service knows: until their first token (an answer that is not streamed: until its end),
            without those that it has cached by its KV events. A request that is whole on one that
            decodes (several prompts or answers, `echo`, other APIs) decodes from its begin.
        prefills: requests that these are of.
        prompts: those that it computes for another, in the order in which they were sent: the
            task that asks it, and its tokens. One that is cancelled is asked elsewhere.
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
    role: RankRole | None = field(init=False)
    role_changes: int = 0
    url: str = ""
    kv_port: int = 0
    state: ReplicaState = ReplicaState.STARTING
    reason: str = ""
    pid: int | None = None
    restarts: int = 0
    requests: int = 0
    in_flight: int = 0
    load_tokens: int = 0
    prompt_tokens: int = 0
    prefills: int = 0
    prompts: "dict[asyncio.Task[Any], int]" = field(default_factory=dict, repr=False)
    losses: int = 0
    fingerprint: str = ""
    is_prepared: bool = False
    engine_answered_s: float = 0.0
    engine_asked_s: float = 0.0
    prefixes: HeldPrefixes = field(default_factory=PrefixMemory, repr=False)
    published: PublishedWeights = field(default_factory=PublishedWeights, repr=False)

    def __post_init__(self) -> None:
        self.role = self.place.role

    @property
    def is_ready(self) -> bool:
        """Whether it takes requests."""
        return self.state is ReplicaState.READY

    @property
    def decodes(self) -> int:
        """Requests that decode there, or whose KV comes."""
        return self.in_flight - self.prefills

    @property
    def kv_target(self) -> dict[str, Any] | None:
        """Its engine's KV port, as the engine hears that pushes KV there; None without one."""
        if not self.kv_port:
            return None
        number = engine_id(self.place.number)
        return {"host": HOST, "port": self.kv_port, "engine_id": number}

    def tokens_left(self, hashes: Sequence[int], /) -> int:
        """`load_tokens`, less those of a prompt of these block hashes that it has."""
        return self.load_tokens - self.prefixes.hit_tokens(hashes)

    def become(self, state: ReplicaState, reason: str = "") -> bool:
        """Change the state; whether it is another."""
        is_other = state is not self.state
        self.state, self.reason = state, reason
        return is_other

    @contextlib.contextmanager
    def expecting(self, tokens: int) -> Iterator[None]:
        """Count the tokens of a request while another replica computes its prompt for this one."""
        self.load_tokens += tokens
        try:
            yield
        finally:
            self.load_tokens -= tokens

    @contextlib.contextmanager
    def holding(
        self, hashes: Sequence[int], tokens: int, part: RequestPart = RequestPart.WHOLE
    ) -> Iterator["HeldTokens"]:
        """Count a request's part, of `tokens` prompt tokens, while the block runs."""
        left = 0
        if part is RequestPart.PROMPT:
            cached = 0 if self.prefixes.is_guess else self.prefixes.hit_tokens(hashes)
            left = max(1, tokens - cached)
        held = HeldTokens(self, tokens, prompt_tokens=left)
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
    """The tokens of one request on its replica; it decodes once none of `prompt_tokens` is left to
    compute.
    """

    __slots__ = ("_prompt_tokens", "_replica", "_tokens")

    def __init__(self, replica: LiveReplica, tokens: int, *, prompt_tokens: int = 0) -> None:
        self._replica = replica
        self._tokens = 0
        self._prompt_tokens = prompt_tokens
        replica.prompt_tokens += prompt_tokens
        replica.prefills += prompt_tokens > 0
        self._add(tokens)

    @property
    def prompt_tokens(self) -> int:
        """Of its prompt, to be computed there."""
        return self._prompt_tokens

    def made(self, tokens: int) -> None:
        """Count more: its prompt is computed."""
        self._decode()
        self._add(tokens)

    def end(self) -> None:
        """Count none of them any more."""
        self._decode()
        self._add(-self._tokens)

    def _decode(self) -> None:
        if self._prompt_tokens:
            self._replica.prompt_tokens -= self._prompt_tokens
            self._replica.prefills -= 1
            self._prompt_tokens = 0

    def _add(self, tokens: int) -> None:
        self._tokens += tokens
        self._replica.load_tokens += tokens

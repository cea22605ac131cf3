"""Requests of a soak's clients, and their endings; all follow from the seed."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from serving.policy.admission.refusal import RefusalReason

BATCH_KEY, NARROW_KEY, SLOW_KEY = 1, 2, 3
CONTEXT_TOKENS = 4_096
"""Of the server; too long prompts exceed it."""
PREFIXES, PREFIX_TOKENS = 8, 96
FIRST_TOKEN, LAST_TOKEN = 300, 1_000
"""Token ids of the bundled model that are plain pieces of text."""

PROMPT_TOKENS_MEDIAN, PROMPT_TOKENS_MAX = 60, 700
NEW_TOKENS_MEDIAN, NEW_TOKENS_MAX = 16, 160
SPREAD = 0.9
"""Standard deviation of the logarithm of the log-normal lengths."""


class Protocol(StrEnum):
    HTTP = "http"
    GRPC = "grpc"


class Fate(StrEnum):
    """The client's behaviour before the answer is complete."""

    STAYS = "stays"
    LEAVES = "leaves"  # closes the connection, or cancels the call
    ABORTS = "aborts"  # gRPC: asks the engine to end its request, by another call
    DEADLINE = "deadline"  # gRPC: gave the call less time than it takes


class Fault(StrEnum):
    NONE = "none"
    NO_KEY = "no_key"
    UNKNOWN_KEY = "unknown_key"
    UNREADABLE = "unreadable"
    TOO_LONG = "too_long"
    TOO_BIG = "too_big"
    BAD_PARAMETER = "bad_parameter"


_KEYS: dict[str, int] = {
    RefusalReason.CONCURRENT: NARROW_KEY,
    RefusalReason.REQUESTS_PER_MINUTE: SLOW_KEY,
    RefusalReason.TOKENS_PER_MINUTE: SLOW_KEY,
}
"""The key whose limit a reason is, if any."""

FATES = {Fate.STAYS: 0.72, Fate.LEAVES: 0.14, Fate.ABORTS: 0.07, Fate.DEADLINE: 0.07}
FAULTS = {
    Fault.NONE: 0.9,
    Fault.NO_KEY: 0.02,
    Fault.UNKNOWN_KEY: 0.02,
    Fault.UNREADABLE: 0.02,
    Fault.TOO_LONG: 0.015,
    Fault.TOO_BIG: 0.005,
    Fault.BAD_PARAMETER: 0.02,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request.

    Attributes:
        key: index of the key; BATCH_KEY is of the class "batch", NARROW_KEY may have few requests
            at once, SLOW_KEY few in a minute.
        batch: of the class "batch".
        sequences: vLLM's `n`.
        leaves_after_s: wall seconds after which a client that does not stay goes.
    """

    name: str
    protocol: Protocol
    key: int
    batch: bool
    streams: bool
    chats: bool
    prompt: tuple[int, ...]
    new_tokens: int
    sequences: int
    fate: Fate
    leaves_after_s: float
    fault: Fault
    seed: int

    @property
    def may_wait(self) -> bool:
        """Whether it is batch work, by request or key: a refusal may come later."""
        return self.batch or self.key == BATCH_KEY

    @property
    def enters(self) -> bool:
        """Whether it passes the gateway: a fault, if any, is seen behind it."""
        return self.fault not in (Fault.NO_KEY, Fault.UNKNOWN_KEY, Fault.TOO_BIG)

    def may_be_refused(self, reason: str) -> bool:
        """Whether the gateway can have given it `reason`."""
        return (
            self.enters
            and reason in set(RefusalReason)
            and _KEYS.get(reason, self.key) == self.key
            and (reason != "batch_wait" or self.may_wait)
        )

    @property
    def sent_prompt(self) -> list[int]:
        if self.fault is Fault.TOO_LONG:
            return [FIRST_TOKEN] * (CONTEXT_TOKENS + 100)
        return list(self.prompt)


def asks(seed: int, user: int, *, keys: int) -> Iterator[Ask]:
    """The endless requests of one user."""
    rng = np.random.default_rng([seed, user])
    prefixes = np.random.default_rng(seed).integers(
        FIRST_TOKEN, LAST_TOKEN, (PREFIXES, PREFIX_TOKENS)
    )
    number = 0
    while True:
        number += 1
        prompt = rng.integers(FIRST_TOKEN, LAST_TOKEN, _length(rng, PROMPT_TOKENS_MEDIAN)).tolist()
        if rng.random() < 0.5:
            prompt = prefixes[rng.integers(PREFIXES)].tolist() + prompt
        protocol = Protocol.GRPC if rng.random() < 0.5 else Protocol.HTTP
        fate = _drawn(rng, FATES)
        if protocol is Protocol.HTTP and fate is not Fate.STAYS:
            fate = Fate.LEAVES
        yield Ask(
            name=f"soak-{user}-{number}",
            protocol=protocol,
            key=int(rng.integers(keys)),
            batch=bool(rng.random() < 0.3),
            streams=bool(rng.random() < 0.6),
            chats=bool(rng.random() < 0.5),
            prompt=tuple(prompt[:PROMPT_TOKENS_MAX]),
            new_tokens=min(NEW_TOKENS_MAX, _length(rng, NEW_TOKENS_MEDIAN)),
            sequences=int(rng.choice([1, 1, 1, 1, 1, 2, 4])),
            fate=fate,
            leaves_after_s=float(rng.exponential(0.6)),
            fault=_drawn(rng, FAULTS),
            seed=int(rng.integers(2**31)),
        )


def _length(rng: np.random.Generator, median: int) -> int:
    return max(1, int(median * np.exp(SPREAD * rng.standard_normal())))


def _drawn(rng: np.random.Generator, chances: dict[Any, float]) -> Any:
    return list(chances)[rng.choice(len(chances), p=list(chances.values()))]


class End(StrEnum):
    """The end of a request as its client saw it."""

    FINISHED = "finished"
    LEFT = "left"  # the client went, its deadline passed, or it had its request ended
    REFUSED = "refused"  # with a reason, and when to come back
    INVALID = "invalid"  # it was wrong, and was told so
    BROKEN = "broken"  # anything else


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The end of one request; `reason` is the server's, `wall_s` its duration.

    `begun`: its client had some of an answer, so it had entered, and its turn.
    """

    end: End
    reason: str = ""
    begun: bool = False
    wall_s: float = 0.0

"""Routers: which of several engines a request goes to, by what they hold when it arrives."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from emulator.errors import ConfigError
from serving.simulator.lockstep_schedulers import LockstepSchedulers

Router = Callable[[int, Sequence[LockstepSchedulers]], int]
"""The number of the engine for a request (its number in order of arrival). Any function will do."""


def round_robin(request: int, engines: Sequence[LockstepSchedulers]) -> int:
    """By turns."""
    return request % len(engines)


def least_loaded(request: int, engines: Sequence[LockstepSchedulers]) -> int:
    """The engine that holds the fewest tokens, computed or not; the first of several."""
    del request
    loads = [engine.load_tokens for engine in engines]
    return loads.index(min(loads))


def prefix_aware(request: int, engines: Sequence[LockstepSchedulers]) -> int:
    """The engine with the fewest tokens, less those of the prompt that it has cached."""
    left = [engine.load_tokens - engine.hit_tokens(request) for engine in engines]
    return left.index(min(left))


ROUTERS: Final[Mapping[str, Router]] = {
    "round-robin": round_robin,
    "least-loaded": least_loaded,
    "prefix-aware": prefix_aware,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSet:
    """Equal engines behind a router, by name or a function of one's own.

    Raises ConfigError for fewer than one, and for an unknown router.
    """

    count: int = 1
    router: str | Router = "round-robin"

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ConfigError(field="replicas", value=self.count, expected="at least 1")
        if isinstance(self.router, str) and self.router not in ROUTERS:
            expected = f"one of {', '.join(ROUTERS)}"
            raise ConfigError(field="router", value=self.router, expected=expected)

    def choose(self, request: int, engines: Sequence[LockstepSchedulers]) -> int:
        """The engine for a request that arrives."""
        router = ROUTERS[self.router] if isinstance(self.router, str) else self.router
        return router(request, engines)


ONE_ENGINE: Final = ReplicaSet()

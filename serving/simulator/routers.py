"""Routers: which of several engines a request goes to, by what they hold when it arrives."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from emulator.errors import ConfigError
from serving.policy.routing import (
    ROUTERS,
    check_router,
    least_loaded,
    prefix_aware,
    round_robin,
    routed,
)
from serving.simulator.lockstep_schedulers import LockstepSchedulers

Router = Callable[[int, Sequence[LockstepSchedulers]], int]
"""Which of these engines gets a request of the traffic, by its number. Any function will do.

Engines that are down are not among them.
"""


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
        if isinstance(self.router, str):
            check_router(self.router)

    @property
    def takes_turns(self) -> bool:
        """Whether the n-th request that arrives goes to the n-th engine, over and over."""
        return self.router in ("round-robin", round_robin)

    @property
    def looks_at_loads(self) -> bool:
        """Whether requests go to the engine that holds the fewest tokens, less what it has cached
        of their prompts where it `looks_at_prefixes`.
        """
        return self.router in ("least-loaded", least_loaded) or self.looks_at_prefixes

    @property
    def looks_at_prefixes(self) -> bool:
        """Whether what engines have cached of a prompt counts."""
        return self.router in ("prefix-aware", prefix_aware)

    def choose(self, request: int, engines: Sequence[LockstepSchedulers], *, arrived: int) -> int:
        """The engine for a request that arrives after `arrived` others.

        Raises ConfigError where the router names none of them.
        """
        router = ROUTERS[self.router] if isinstance(self.router, str) else self.router
        number = routed(router, request, engines, arrived=arrived)
        if not 0 <= number < len(engines):
            raise ConfigError("router", number, f"an engine, 0 to {len(engines) - 1}")
        return number


ONE_ENGINE: Final = ReplicaSet()

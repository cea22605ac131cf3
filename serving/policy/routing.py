"""Rules by which a request goes to one of several engines: those of `simulate` and of a server.

An engine's load is the tokens that its requests hold or have yet to compute.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

from emulator.errors import ConfigError

Asked_contra = TypeVar("Asked_contra", contravariant=True)


class RoutedEngine(Protocol[Asked_contra]):
    """What a rule reads of an engine."""

    @property
    def load_tokens(self) -> int:
        """Tokens that requests hold or have yet to compute."""

    def tokens_left(self, request: Asked_contra, /) -> int:
        """`load_tokens`, less those of the request that the engine has cached."""


def round_robin(arrived: int, engines: Sequence[object]) -> int:
    """By turns: `arrived` requests came before."""
    return arrived % len(engines)


def least_loaded(request: object, engines: Sequence[RoutedEngine[Asked_contra]]) -> int:
    """The engine that holds the fewest tokens, computed or not; the first of several."""
    del request
    loads = [engine.load_tokens for engine in engines]
    return loads.index(min(loads))


def prefix_aware(request: Asked_contra, engines: Sequence[RoutedEngine[Asked_contra]]) -> int:
    """The engine with the fewest tokens, less those of the prompt that it has cached."""
    left = [engine.tokens_left(request) for engine in engines]
    return left.index(min(left))


ROUTERS: Final[Mapping[str, Callable[[Any, Sequence[Any]], int]]] = {
    "round-robin": round_robin,
    "least-loaded": least_loaded,
    "prefix-aware": prefix_aware,
}
DEFAULT_ROUTER: Final = "prefix-aware"
"""Of a server."""


def routed(
    router: Callable[[Any, Sequence[Any]], int],
    request: object,
    engines: Sequence[object],
    *,
    arrived: int,
) -> int:
    """The engine for a request that comes after `arrived` others, by one of these rules or
    another.
    """
    return router(arrived if router is round_robin else request, engines)


def check_router(name: str) -> None:
    """Raise ConfigError for a name that is none of ROUTERS."""
    if name not in ROUTERS:
        raise ConfigError(field="router", value=name, expected=f"one of {', '.join(ROUTERS)}")

"""An attack: a name, a sender, and a budget."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.attacks.attacker import Attacker


class Server(StrEnum):
    """The server under attack; both have keys."""

    PLAIN = "plain"
    TLS = "tls"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The most that an attack spends; spending any of these ends it successfully.

    Attributes:
        bytes_per_s: limits the sending rate, so that the attacker does not take the cores.
        wall_s: duration; every connection is closed at its end.
    """

    connections: int = 1
    sent_bytes: int = 80_000_000
    bytes_per_s: int = 25_000_000
    wall_s: float = 2.5

    def __post_init__(self) -> None:
        for name in ("connections", "sent_bytes", "bytes_per_s", "wall_s"):
            value = getattr(self, name)
            if value <= 0:
                raise ValueError(f"{name}: expected a positive number, got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One client's attack.

    Attributes:
        name: words with hyphens, for `--only`.
        what: the traffic, in a line.
        needs_key: whether it sends a client's key.
        cheap: whether the everyday tests run it.
    """

    name: str
    what: str
    run: "Callable[[Attacker], Awaitable[None]]"
    needs_key: bool = False
    on: Server = Server.PLAIN
    cheap: bool = False
    budget: Budget = Budget()

"""What an attack is: a name, what it sends, and the most that it may spend."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.attacks.attacker import Attacker


class Server(StrEnum):
    """Which of the two servers is attacked; both have keys."""

    PLAIN = "plain"
    TLS = "tls"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The most that an attack spends; it ends, with a success, when one of these is spent.

    Attributes:
        connections: connections that it opens.
        sent_bytes: bytes that it hands to its sockets.
        bytes_per_s: at most so many a second, so that the attacker is not what keeps the cores.
        wall_s: seconds that it lasts; at this time every connection of it is closed.
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
    """One client's ill will.

    Attributes:
        name: words with hyphens; `--only` takes it.
        what: what is sent, in a line.
        run: sends it.
        needs_key: whether it shows a client's key.
        on: which server.
        cheap: whether the everyday tests run it.
    """

    name: str
    what: str
    run: "Callable[[Attacker], Awaitable[None]]"
    needs_key: bool = False
    on: Server = Server.PLAIN
    cheap: bool = False
    budget: Budget = Budget()

"""Bytes that the server holds, by sender: one account for HTTP and gRPC. Pure, no clock.

A holding is one connection, body or call, a stranger's until it is authenticated. Strangers are
never refused for others' sake: when they are too many, or hold too much together, the account
closes the oldest, as an honest client is a stranger for milliseconds. Each key has its own limit.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

from serving.server.gateway.ingress_limits import IngressLimits, Limit


class Owner(Protocol):
    """The connection or call behind a holding."""

    def cut_off(self, limit: Limit) -> None:
        """Close it at once; its holding has left the account."""


class Holding:
    """Bytes of one connection, body or call; changed by its account alone.

    `key` is the name of its authenticated key, None for a stranger.
    """

    __slots__ = ("held_bytes", "is_open", "key", "owner")

    def __init__(self, owner: Owner | None, key: str | None) -> None:
        self.owner = owner
        self.key = key
        self.held_bytes = 0
        self.is_open = True


class IngressAccount:
    """The holdings of one server.

    `refusals` counts refused and cut-off holdings by limit; `on_refusal` is called for each.
    """

    def __init__(
        self,
        limits: IngressLimits | None = None,
        *,
        on_refusal: Callable[[Limit], None] = lambda _: None,
    ) -> None:
        self.limits: Final = limits or IngressLimits()
        self.stranger_bytes = 0
        self.keyed_bytes = 0
        self.refusals: Counter[Limit] = Counter()
        self._on_refusal = on_refusal
        self._strangers: dict[Holding, None] = {}  # in the order in which they came
        self._key_bytes: Counter[str] = Counter()
        self._key_connections: Counter[str] = Counter()

    @property
    def strangers(self) -> int:
        """Holdings that are not authenticated."""
        return len(self._strangers)

    @property
    def held_bytes(self) -> int:
        """Bytes of all holdings."""
        return self.stranger_bytes + self.keyed_bytes

    def bytes_of(self, key: str) -> int:
        """Bytes of one key."""
        return self._key_bytes[key]

    def arrive(self, owner: Owner) -> Holding:
        """Begin a stranger's holding; the oldest makes room for one too many."""
        holding = Holding(owner, None)
        self._strangers[holding] = None
        if len(self._strangers) > self.limits.strangers_max:
            self._cut_off_first(Limit.STRANGERS)
        return holding

    def open(self, key: str) -> Holding:
        """Begin a holding of `key`."""
        return Holding(None, key)

    def connections_of(self, key: str) -> int:
        """Open connections of one key."""
        return self._key_connections[key]

    def authenticate(self, holding: Holding, key: str) -> Limit | None:
        """Move the holding and its bytes to `key`, also from another key.

        Returns the limit, and moves nothing, where the key has too many connections. Bytes are not
        refused: a head holds little.
        """
        if not holding.is_open or holding.key == key:
            return None
        is_connection = holding.owner is not None
        if is_connection and self._key_connections[key] >= self.limits.key_connections_max:
            return self.refuse(Limit.KEY_CONNECTIONS)
        size_bytes = holding.held_bytes
        self.release(holding, size_bytes)
        self._strangers.pop(holding, None)
        self._forget_connection(holding)
        holding.key = key
        if is_connection:
            self._key_connections[key] += 1
        self._count(holding, size_bytes)
        return None

    def hold(self, holding: Holding, size_bytes: int) -> Limit | None:
        """Count `size_bytes`, or return the limit that forbids it.

        Older strangers make room for a stranger's bytes, unless those are too many by themselves.
        """
        assert size_bytes >= 0
        if not holding.is_open:
            return Limit.STRANGER_BYTES  # it was cut off
        forbidden = self._forbids(holding, size_bytes)
        if forbidden is not None:
            return self.refuse(forbidden)
        self._count(holding, size_bytes)
        while holding.key is None and self.stranger_bytes > self.limits.stranger_bytes_max:
            self._cut_off_first(Limit.STRANGER_BYTES, besides=holding)
        return None

    def release(self, holding: Holding, size_bytes: int) -> None:
        """Count `size_bytes` less, but no less than 0."""
        self._count(holding, -min(size_bytes, holding.held_bytes))

    def leave(self, holding: Holding) -> None:
        """End a holding with all its bytes; idempotent."""
        if holding.is_open:
            self.release(holding, holding.held_bytes)
            self._strangers.pop(holding, None)
            self._forget_connection(holding)
            holding.is_open = False

    def refuse(self, limit: Limit) -> Limit:
        """Count a refusal because of `limit`, and return it."""
        self.refusals[limit] += 1
        self._on_refusal(limit)
        return limit

    def check(self) -> None:
        """Assert that the total is the sum of all holders' bytes."""
        held = sum(holding.held_bytes for holding in self._strangers)
        assert held == self.stranger_bytes, (held, self.stranger_bytes)
        assert sum(self._key_bytes.values()) == self.keyed_bytes
        assert all(size > 0 for size in self._key_bytes.values())
        assert all(0 < n <= self.limits.key_connections_max for n in self._key_connections.values())

    def _forbids(self, holding: Holding, size_bytes: int) -> Limit | None:
        limits = self.limits
        if holding.key is None:
            too_many = holding.held_bytes + size_bytes > limits.stranger_bytes_max
            return Limit.STRANGER_BYTES if too_many else None
        if self._key_bytes[holding.key] + size_bytes > limits.key_bytes_max:
            return Limit.KEY_BYTES
        if self.keyed_bytes + size_bytes > limits.total_bytes_max:
            return Limit.TOTAL_BYTES
        return None

    def _count(self, holding: Holding, size_bytes: int) -> None:
        holding.held_bytes += size_bytes
        if holding.key is None:
            self.stranger_bytes += size_bytes
            return
        self.keyed_bytes += size_bytes
        self._key_bytes[holding.key] += size_bytes
        if not self._key_bytes[holding.key]:
            del self._key_bytes[holding.key]

    def _forget_connection(self, holding: Holding) -> None:
        """Uncount its connection; a body or call of a key is none."""
        if holding.key is None or holding.owner is None:
            return
        self._key_connections[holding.key] -= 1
        if not self._key_connections[holding.key]:
            del self._key_connections[holding.key]

    def _cut_off_first(self, limit: Limit, *, besides: Holding | None = None) -> None:
        """Cut off the oldest stranger, or for bytes the oldest that holds any."""
        wants_bytes = limit is Limit.STRANGER_BYTES
        first = next(
            each
            for each in self._strangers
            if each is not besides and (each.held_bytes or not wants_bytes)
        )
        self.leave(first)
        self.refuse(limit)
        assert first.owner is not None
        first.owner.cut_off(limit)

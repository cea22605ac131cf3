"""Who holds the bytes of an HBM stack: frozen, so that state reports can carry it."""

from dataclasses import dataclass
from enum import StrEnum


class HbmUse(StrEnum):
    """What HBM is held for; TRAINING is all that a training job holds, told apart by names."""

    WEIGHTS = "weights"
    KV = "kv"
    ACTIVATIONS = "activations"
    COLLECTIVES = "collectives"
    MICROCODE = "microcode"
    TRAINING = "training"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class HbmOwner:
    """One owner of bytes; `name` tells owners of one use apart, as tensor groups of weights."""

    use: HbmUse
    name: str = ""

    def __str__(self) -> str:
        return f"{self.use}/{self.name}" if self.name else str(self.use)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBytes:
    """What `owner` holds of one stack on the account of a logical core of the chip."""

    owner: HbmOwner
    core: int
    held_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StackUsage:
    """One HBM stack; `held` is ordered by core, then owner, and leaves out who holds nothing."""

    stack: int
    capacity_bytes: int
    held: tuple[HeldBytes, ...]

    @property
    def free_bytes(self) -> int:
        """Bytes without an owner."""
        return self.capacity_bytes - sum(each.held_bytes for each in self.held)

    def bytes_by_owner(self) -> dict[HbmOwner, int]:
        """Bytes of each owner, all cores together, in the order of owners."""
        totals: dict[HbmOwner, int] = {}
        for each in sorted(self.held, key=lambda each: each.owner):
            totals[each.owner] = totals.get(each.owner, 0) + each.held_bytes
        return totals

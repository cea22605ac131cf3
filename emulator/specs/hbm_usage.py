"""Owners of an HBM stack's bytes; frozen, for state reports."""

from dataclasses import dataclass
from enum import StrEnum


class HbmUse(StrEnum):
    """Uses of HBM; TRAINING is all that a training job holds, divided by names."""

    WEIGHTS = "weights"
    KV = "kv"
    ACTIVATIONS = "activations"
    COLLECTIVES = "collectives"
    MICROCODE = "microcode"
    TRAINING = "training"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class HbmOwner:
    """One owner of bytes; `name` distinguishes owners of one use, as tensor groups of weights."""

    use: HbmUse
    name: str = ""

    def __str__(self) -> str:
        return f"{self.use}/{self.name}" if self.name else str(self.use)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBytes:
    """Bytes of one stack held by `owner`, on the account of a logical core of the chip."""

    owner: HbmOwner
    core: int
    held_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StackUsage:
    """One HBM stack; `held` is ordered by core, then owner, without empty owners."""

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

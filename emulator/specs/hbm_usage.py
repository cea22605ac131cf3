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


def use_of(owner: str) -> HbmUse:
    """What an owner of that name holds bytes for; raises ValueError for no such use."""
    return HbmUse(owner.partition("/")[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBytes:
    """Bytes of one stack held by `owner`, on the account of a logical core of the chip."""

    owner: HbmOwner
    core: int
    held_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StackUsage:
    """One HBM stack: bytes of its capacity by the owner's name, all cores together.

    What allocators say of their stacks, and what travels to all that show it.
    """

    stack: int
    failed: bool = False
    capacity_bytes: int
    owner_bytes: dict[str, int]

    @property
    def held_bytes(self) -> int:
        """Bytes of all owners."""
        return sum(self.owner_bytes.values())

    @property
    def free_bytes(self) -> int:
        """Bytes without an owner."""
        return self.capacity_bytes - self.held_bytes

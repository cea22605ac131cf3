"""Owners of an HBM stack's bytes; frozen, for state reports."""

from dataclasses import dataclass
from enum import StrEnum


class HbmUse(StrEnum):
    """Uses of HBM; TRAINING is a training job's whole state, divided by names."""

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
    """The use of an owner's name; raises ValueError for another."""
    return HbmUse(owner.partition("/")[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBytes:
    """Bytes of one stack held by `owner`, for a logical core of the chip."""

    owner: HbmOwner
    core: int
    held_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StackUsage:
    """One HBM stack: bytes of its capacity by the owner's name, all cores together."""

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
        """Free bytes."""
        return self.capacity_bytes - self.held_bytes

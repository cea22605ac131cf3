"""Who holds the bytes of an HBM stack."""

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


def use_of(owner: str) -> HbmUse:
    """What an owner of that name holds bytes for; raises ValueError for no such use."""
    return HbmUse(owner.partition("/")[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBytes:
    """What `owner` holds of one stack on the account of a logical core of the chip."""

    owner: HbmOwner
    core: int
    held_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StackUsage:
    """One HBM stack: who holds what of its capacity, by the owner's name, all cores together.

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

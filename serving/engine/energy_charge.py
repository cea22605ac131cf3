"""Counting joules that chips drew beyond what steps and idle chips do."""

from collections.abc import Collection
from typing import Protocol


class Spend(Protocol):
    """Takes joules of `chips`, by their numbers in the machine; of all alike without them."""

    def __call__(self, joules: float, chips: Collection[int] | None = None) -> None:
        """Count them."""

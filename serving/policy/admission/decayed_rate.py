"""How much of something happens per second in which it could: the newest seconds count most."""

import math
from dataclasses import dataclass


@dataclass(slots=True)
class DecayedRate:
    """Amount over busy time, both forgotten exponentially in busy time.

    Time in which nothing could happen neither counts nor forgets, so that what was measured before
    an idle night holds in the morning.

    `memory_s` is the time after which 1/e of a second's weight is left.
    """

    memory_s: float
    amount: float = 0.0
    busy_s: float = 0.0

    def add(self, amount: float) -> None:
        """Count what happened now."""
        self.amount += amount

    def spend(self, seconds: float) -> None:
        """Count time in which it could have happened."""
        kept = math.exp(-seconds / self.memory_s)
        self.amount *= kept
        # The integral of exp(-t / memory) over the time that was spent.
        self.busy_s = self.busy_s * kept + self.memory_s * (1.0 - kept)

    @property
    def per_s(self) -> float | None:
        """None before it happened at all."""
        return self.amount / self.busy_s if self.amount > 0 and self.busy_s > 0 else None

"""Token bucket: a limit per minute or less."""

import math
from dataclasses import dataclass
from typing import Final

MINUTE_S: Final = 60.0


@dataclass(slots=True)
class RateBudget:
    """A bucket of one `period_s`'s limit, filled at the limit's rate; initially full.

    In any `t` seconds at most `limit * (1 + t / period_s)` is taken, less returns; corrections may
    make it negative until time has filled it.
    """

    limit: int
    level: float
    at_s: float
    period_s: float = MINUTE_S

    @classmethod
    def full(cls, limit: int, now_s: float, *, period_s: float = MINUTE_S) -> "RateBudget":
        """A full bucket."""
        return cls(limit=limit, level=float(limit), at_s=now_s, period_s=period_s)

    def left(self, now_s: float) -> float:
        """Present level; negative in debt."""
        if now_s > self.at_s:
            filled = self.level + (now_s - self.at_s) * self.limit / self.period_s
            self.level = min(float(self.limit), filled)
            self.at_s = now_s
        return self.level

    def wait_s(self, amount: int, now_s: float) -> float:
        """Seconds until it holds `amount`; infinite above the limit."""
        if amount > self.limit:
            return math.inf
        short = amount - self.left(now_s)
        return max(0.0, short * self.period_s / self.limit)

    def full_in_s(self, now_s: float) -> float:
        """Seconds until it is full."""
        return (self.limit - self.left(now_s)) * self.period_s / self.limit

    def take(self, amount: int, now_s: float) -> None:
        """Take `amount`, also into debt; a negative amount gives back, up to full."""
        self.level = min(float(self.limit), self.left(now_s) - amount)

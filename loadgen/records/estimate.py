"""A figure and how sure it is."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A figure and its 95 % confidence interval; `low` and `high` are None where there are too few
    samples to say.
    """

    value: float
    low: float | None = None
    high: float | None = None

"""A figure with its confidence interval."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A figure and its 95 % confidence interval; `low` and `high` are None with too few samples."""

    value: float
    low: float | None = None
    high: float | None = None

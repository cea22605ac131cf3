"""Service level objectives as users write them: `ttft=200ms,tpot=20ms@p99`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """`measure` (a name of `definitions.DISTRIBUTIONS`) at `percentile` is at most `limit`."""

    measure: str
    limit: float
    percentile: float = 99.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLevel:
    """All bounds that a class has to keep; `words` is how it was written."""

    bounds: tuple[Bound, ...]
    words: str

"""Figures as short words that keep their width from one moment to the next."""

import math


def clock_words(seconds: float | None) -> str:
    """Minutes and seconds, rounded up: `0:12`, `1:02:03`; `-` for what is unknown."""
    if seconds is None:
        return "-"
    minutes, whole = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{whole:02d}" if hours else f"{minutes}:{whole:02d}"


def ms_words(value_ms: float | None) -> str:
    """Milliseconds with three figures or so: `0.45`, `12.3`, `1,234`."""
    return "-" if value_ms is None else _three_figures(value_ms)


def rate_words(per_s: float | None) -> str:
    """A rate with three figures or so."""
    return "-" if per_s is None else _three_figures(per_s)


def count_words(done: int, whole: int | None) -> str:
    """`12/1,000`, or `12` where nobody knows how many there will be."""
    return f"{done:,}" if whole is None else f"{done:,}/{whole:,}"


def _three_figures(value: float) -> str:
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:,.{digits}f}"

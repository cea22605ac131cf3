"""Durations as users write them: `200ms`, `1.5s`, `2m`, `1h30m`; a bare number is seconds."""

import math
import re
from typing import Final

_NUMBER: Final = r"(?:\d+(?:\.\d*)?|\.\d+)"
_TERM: Final = re.compile(rf"({_NUMBER})(us|ms|s|m|h)", re.ASCII)
_WRITTEN: Final = re.compile(rf"{_NUMBER}|(?:{_TERM.pattern})+", re.ASCII)
_UNIT_S: Final = {"h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}
EXPECTED: Final = "a time such as 200ms, 1.5s, 2m or 1h30m"


def parse_duration_s(text: str) -> float:
    """Seconds, at least 0: the sum of the terms, each in a smaller unit than the one before.

    Raises ValueError with the expected form.
    """
    written = text.strip()
    terms = _TERM.findall(written)
    units = [list(_UNIT_S).index(unit) for _, unit in terms]
    if _WRITTEN.fullmatch(written) is None or units != sorted(set(units)):
        raise ValueError(f"expected {EXPECTED}, not {text!r}")
    seconds = sum(float(number) * _UNIT_S[unit] for number, unit in terms)
    if not terms:
        seconds = float(written)
    if not math.isfinite(seconds):
        raise ValueError(f"expected {EXPECTED}, not {text!r}")
    return seconds


def duration_words(seconds: float) -> str:
    """Write a duration as `parse_duration_s` reads it, in the largest whole unit."""
    for unit, size in (("h", 3_600.0), ("m", 60.0)):
        if seconds >= size and (seconds / size).is_integer():
            return f"{seconds / size:.0f}{unit}"
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size or not seconds:
            return f"{seconds / size:g}{unit}"
    return f"{seconds * 1e6:g}us"

"""Lengths of time as users write them: `200ms`, `1.5s`, `2m`, `1h`; a bare number is seconds."""

import math
import re
from typing import Final

_WRITTEN: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(us|ms|s|m|h|)", re.ASCII)
_UNIT_S: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "h": 3_600.0}
EXPECTED: Final = "a time such as 200ms, 1.5s, 2m or 1h"


def parse_duration_s(text: str) -> float:
    """Seconds, at least 0; raises ValueError saying what was expected."""
    written = _WRITTEN.fullmatch(text.strip())
    if written is None:
        raise ValueError(f"expected {EXPECTED}, not {text!r}")
    seconds = float(written[1]) * _UNIT_S[written[2]]
    if not math.isfinite(seconds):
        raise ValueError(f"expected {EXPECTED}, not {text!r}")
    return seconds


def duration_words(seconds: float) -> str:
    """Write a length of time as `parse_duration_s` reads it, in the largest unit that is whole."""
    for unit, size in (("h", 3_600.0), ("m", 60.0)):
        if seconds >= size and (seconds / size).is_integer():
            return f"{seconds / size:.0f}{unit}"
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size or not seconds:
            return f"{seconds / size:g}{unit}"
    return f"{seconds * 1e6:g}us"

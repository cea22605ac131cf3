"""Numbers as users write them, and counts in sentences."""

import math
import re
from typing import Final

_WRITTEN: Final = re.compile(r"(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def plain_number(text: str) -> float:
    """A finite number from 0 on: `4`, `0.5`, `1e3`; raises ValueError, which quotes the text.

    Narrower than float(), which also reads `1_0`, `nan`, and digits of other scripts.
    """
    value = float(text) if _WRITTEN.fullmatch(text) else math.nan
    if not 0.0 <= value < math.inf:
        raise ValueError(f"{text[:40]!r} is not a number from 0 on")
    return value


def counted(count: int, noun: str, many: str = "") -> str:
    """`1 request`, `1,000 requests`; `many` is an irregular plural."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {many or f'{noun}s'}"

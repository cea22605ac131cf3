"""Service level objectives as users write them: `ttft=200ms,tpot=20ms@p99`."""

import math
import re
from dataclasses import dataclass
from typing import Final

from loadgen.durations import parse_duration_s
from loadgen.errors import OptionError

PERCENTILE: Final = 99.0
"""What a bound without a percentile means."""

MEASURES: Final = {
    "ttft": "ttft_ms",
    "tpot": "tpot_ms",
    "itl": "itl_ms",
    "ntpot": "ntpot_ms",
    "e2e": "e2e_ms",
}
"""What can be bounded, as it is typed, and its name in `definitions.DISTRIBUTIONS`."""

_TERM: Final = re.compile(
    r"(?P<measure>[a-z0-9]+)=(?P<limit>[0-9.a-z]+[a-z])(?:@p(?P<percentile>\d+(?:\.\d+)?))?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """`measure` (a name of `definitions.DISTRIBUTIONS`, in ms) at `percentile` is at most `limit`.

    Raises ValueError for a limit that is not above 0 and a percentile not between 0 and 100.
    """

    measure: str
    limit: float
    percentile: float = PERCENTILE

    def __post_init__(self) -> None:
        if not 0 < self.limit < math.inf or not 0 < self.percentile < 100:
            raise ValueError(f"a limit of {self.limit} at p{self.percentile}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLevel:
    """All bounds that a class has to keep, at least one; `words` is how it was written."""

    bounds: tuple[Bound, ...]
    words: str

    def __post_init__(self) -> None:
        if not self.bounds:
            raise ValueError("a service level has a bound")


def parse_slo(text: str, *, option: str = "--slo") -> ServiceLevel:
    """Read `MEASURE=TIME[@pN],...`: ttft, tpot, itl, ntpot or e2e, with a time in us to h.

    A percentile holds for its own term and for those before it that have none; without any it is
    p99. Raises OptionError for anything else, and for a measure that is bounded twice at one
    percentile.
    """
    words = "".join(text.split())
    bounds: list[Bound] = []
    percentile: float | None = None
    for term in reversed(words.split(",")):  # from the right: a percentile reaches to the left
        found = _TERM.fullmatch(term)
        if found is None or found["measure"] not in MEASURES:
            raise _refused(option, text, f"MEASURE=TIME[@pN] with {'|'.join(MEASURES)}")
        if found["percentile"] is not None:
            percentile = float(found["percentile"])
        try:
            bound = Bound(
                measure=MEASURES[found["measure"]],
                # 1,729us are 1.729 ms, not a rounding error below it.
                limit=round(parse_duration_s(found["limit"]) * 1e3, 9),
                percentile=PERCENTILE if percentile is None else percentile,
            )
        except ValueError as error:
            raise _refused(option, text, "a time above 0 and a percentile below p100") from error
        bounds.insert(0, bound)
    if len({(bound.measure, bound.percentile) for bound in bounds}) < len(bounds):
        raise _refused(option, text, "each measure once at a percentile")
    return ServiceLevel(bounds=tuple(bounds), words=words)


def _refused(option: str, text: str, expected: str) -> OptionError:
    return OptionError(
        option=option, value=text, expected=f"{expected}, as in ttft=200ms,tpot=20ms@p99"
    )

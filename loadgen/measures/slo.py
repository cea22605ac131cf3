"""Service level objectives as users write them: `ttft=200ms,tpot=20ms@p99`.

The project's one grammar: measured and simulated runs are judged by the same objects. TTFT is from
arrival to the first token; TPOT the time from the first token to the last over the tokens after the
first; a reply of one token has none and meets any.
"""

import math
import re
from dataclasses import dataclass
from typing import Final, Self

from loadgen.durations import parse_duration_s
from loadgen.errors import OptionError

PERCENTILE: Final = 99.0
"""The percentile of a bound without one."""

MEASURES: Final = {
    "ttft": "ttft_ms",
    "tpot": "tpot_ms",
    "itl": "itl_ms",
    "ntpot": "ntpot_ms",
    "e2e": "e2e_ms",
}
"""Measures that can be bounded, as typed, and their names in `definitions.DISTRIBUTIONS`."""

_TERM: Final = re.compile(
    r"(?P<measure>[a-z0-9]+)=(?P<limit>[0-9.a-z]+[a-z])(?:@p(?P<percentile>\d+(?:\.\d+)?))?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """`measure` (a name of `definitions.DISTRIBUTIONS`, in ms) at `percentile` is at most `limit`.

    Raises ValueError for a limit not above 0 and a percentile not between 0 and 100.
    """

    measure: str
    limit: float
    percentile: float = PERCENTILE

    def __post_init__(self) -> None:
        if not 0 < self.limit < math.inf or not 0 < self.percentile < 100:
            raise ValueError(f"a limit of {self.limit} at p{self.percentile}")

    @property
    def name(self) -> str:
        """The measure as typed, such as ttft."""
        return self.measure.removesuffix("_ms")

    @property
    def limit_s(self) -> float:
        """The limit in seconds."""
        return self.limit / 1e3

    @property
    def share(self) -> float:
        """The share of requests that must be within the limit."""
        return self.percentile / 100

    def __str__(self) -> str:
        return f"{self.name.upper()} p{self.percentile:g} <= {self.limit:g} ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """All bounds that requests have to keep, at least one, each a promise of its own: different
    requests may miss different bounds. `words` is the original text.
    """

    bounds: tuple[Bound, ...]
    words: str = ""

    def __post_init__(self) -> None:
        if not self.bounds:
            raise ValueError("a service level has a bound")

    @classmethod
    def parse(cls, text: str, *, option: str = "--slo") -> Self:
        """Parse `MEASURE=TIME[@pN],...`: ttft, tpot, itl, ntpot or e2e, with a time in us to h.

        A percentile holds for its term and the terms before it without one; the default is p99.
        Raises OptionError for anything else, and for a measure bounded twice at one percentile.
        """
        words = "".join(text.split())
        bounds: list[Bound] = []
        percentile = PERCENTILE
        for term in reversed(words.split(",")):  # from the right: a percentile reaches to the left
            found = _TERM.fullmatch(term)
            if found is None or found["measure"] not in MEASURES:
                raise _refused(option, text, f"MEASURE=TIME[@pN] with {'|'.join(MEASURES)}")
            if found["percentile"] is not None:
                percentile = float(found["percentile"])
            try:
                bounds.insert(0, _bound(found["measure"], found["limit"], percentile))
            except ValueError as error:
                expected = "a time above 0 and a percentile below p100"
                raise _refused(option, text, expected) from error
        if len({(bound.measure, bound.percentile) for bound in bounds}) < len(bounds):
            raise _refused(option, text, "each measure once at a percentile")
        return cls(bounds=tuple(bounds), words=words)

    @property
    def ttft_s(self) -> float | None:
        """The tightest TTFT limit in seconds; None without one."""
        return self._limit_s("ttft")

    @property
    def tpot_s(self) -> float | None:
        """The tightest TPOT limit in seconds; None without one."""
        return self._limit_s("tpot")

    @property
    def ttft_percentile(self) -> float:
        """The percentile of the tightest TTFT limit; p99 without one."""
        bounds = [bound for bound in self.bounds if bound.name == "ttft"]
        return min(bounds, key=lambda bound: bound.limit).percentile if bounds else PERCENTILE

    def _limit_s(self, name: str) -> float | None:
        return min((bound.limit_s for bound in self.bounds if bound.name == name), default=None)

    def __str__(self) -> str:
        return ", ".join(str(bound) for bound in self.bounds)


def _bound(measure: str, limit: str, percentile: float) -> Bound:
    # 1,729us are 1.729 ms, not a rounding error below it.
    limit_ms = round(parse_duration_s(limit) * 1e3, 9)
    return Bound(measure=MEASURES[measure], limit=limit_ms, percentile=percentile)


def _refused(option: str, text: str, expected: str) -> OptionError:
    return OptionError(option, text, f"{expected}, as in ttft=200ms,tpot=20ms@p99")

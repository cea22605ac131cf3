"""A latency target as a user writes it: `ttft=500ms,tpot=30ms@p99`.

TTFT and TPOT are as `ServiceLevel` defines them. Each term is a promise of its own, with its own
percentile; requests that miss one term may be others than those that miss the other.
"""

import re
from dataclasses import dataclass
from typing import Final

from emulator.errors import ConfigError
from serving.traffic.service_level import ServiceLevel

DEFAULT_PERCENTILE: Final = 99.0
PERCENTILES: Final = (50.0, 99.9)
_UNITS_S: Final = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_TERM = re.compile(
    r"(?P<name>ttft|tpot)=(?P<value>\d+(?:\.\d+)?)(?P<unit>ms|us|s)"
    r"(?:@p(?P<percentile>\d{2}(?:\.\d+)?))?",
    re.ASCII,
)
_EXPECTED: Final = "ttft=500ms,tpot=30ms@p99: a time in s, ms or us for one or both, p50 to p99.9"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """At most `ttft_s` for `ttft_percentile` of the requests, and `tpot_s` alike; None: no promise.

    Raises ConfigError for a target without a term, a time that is not above 0, or a percentile
    outside p50 to p99.9.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    ttft_percentile: float = DEFAULT_PERCENTILE
    tpot_percentile: float = DEFAULT_PERCENTILE

    def __post_init__(self) -> None:
        if self.ttft_s is None and self.tpot_s is None:
            raise ConfigError(field="slo", value="none", expected=_EXPECTED)
        for name, limit_s, percentile in self.terms():
            if not 0 < limit_s < float("inf"):
                raise ConfigError(field="slo", value=f"{name}={limit_s}s", expected=_EXPECTED)
            if not PERCENTILES[0] <= percentile <= PERCENTILES[1]:
                raise ConfigError(field="slo", value=f"p{percentile:g}", expected=_EXPECTED)

    @classmethod
    def parse(cls, text: str) -> "Slo":
        """Read a target. A term without a percentile has that of the next term that names one, or
        p99. Raises ConfigError with one line for anything else.
        """
        found: dict[str, float] = {}
        percentile = DEFAULT_PERCENTILE
        for part in reversed(text.split(",")):
            term = _TERM.fullmatch(part.strip())
            if term is None or f"{term['name']}_s" in found:
                raise ConfigError(field="slo", value=text, expected=_EXPECTED)
            if term["percentile"] is not None:
                percentile = float(term["percentile"])
            found[f"{term['name']}_s"] = float(term["value"]) * _UNITS_S[term["unit"]]
            found[f"{term['name']}_percentile"] = percentile
        return cls(**found)

    def terms(self) -> tuple[tuple[str, float, float], ...]:
        """Name, limit in seconds and percentile of each promise, TTFT first."""
        both = (
            ("ttft", self.ttft_s, self.ttft_percentile),
            ("tpot", self.tpot_s, self.tpot_percentile),
        )
        return tuple((name, limit, at) for name, limit, at in both if limit is not None)

    def levels(self) -> tuple[ServiceLevel, ...]:
        """The promises as levels of service, in the order of `terms`."""
        return tuple(
            ServiceLevel(**{f"{name}_s": limit_s}, share=percentile / 100)
            for name, limit_s, percentile in self.terms()
        )

    def __str__(self) -> str:
        return ", ".join(
            f"{name.upper()} p{percentile:g} <= {limit_s * 1e3:g} ms"
            for name, limit_s, percentile in self.terms()
        )

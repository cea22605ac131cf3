"""Traffic that grows by the same part every month, and the lead time of machines."""

import re
from dataclasses import dataclass
from math import expm1, log, log1p
from typing import Final

from emulator.errors import ConfigError

DAY_S: Final = 86_400.0
WEEK_S: Final = 7 * DAY_S
MONTH_S: Final = 365.25 / 12 * DAY_S
LEAD_TIME_S: Final = 12 * WEEK_S
"""*Assumed*: from the order of a machine to its service; no source publishes it."""
MONTHS: Final = 24
MONTHS_MAX: Final = 120
_MONTHS_OF: Final = {"month": 1, "quarter": 3, "year": 12}
_GROWTH: Final = re.compile(r"(\d+(?:\.\d+)?)%/(month|quarter|year)", re.ASCII)
_LEAD_TIME: Final = re.compile(r"(\d+(?:\.\d+)?)([dw])", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Compound growth of the rate, `monthly` of it a month, over so many months.

    `lead_time_s`: from an order to a machine that serves. Raises ConfigError for growth that is not
    above 0, and for months that are none or more than `MONTHS_MAX`.
    """

    monthly: float
    months: int = MONTHS
    lead_time_s: float = LEAD_TIME_S
    lead_time_is_assumed: bool = True

    def __post_init__(self) -> None:
        if not self.monthly > 0:
            raise ConfigError("growth", f"{100 * self.monthly:g}%/month", "above 0")
        if not 1 <= self.months <= MONTHS_MAX:
            raise ConfigError("months", self.months, f"1 to {MONTHS_MAX}")

    def factor(self, months: float) -> float:
        """Of the rate, so many months from now."""
        return float((1 + self.monthly) ** months)

    def months_until(self, factor: float) -> float:
        """Until the rate is `factor` times today's."""
        return log(factor) / log1p(self.monthly)

    @property
    def lead_months(self) -> float:
        """The lead time in months."""
        return self.lead_time_s / MONTH_S


def parse_growth(text: str) -> float:
    """The part by which the rate grows in a month, of `8%/month`, `25%/quarter` or `150%/year`.

    Raises ConfigError.
    """
    found = _GROWTH.fullmatch(text.strip())
    if found is None:
        raise ConfigError("growth", text, "such as 8%/month, 25%/quarter or 150%/year")
    return expm1(log1p(float(found[1]) / 100) / _MONTHS_OF[found[2]])


def parse_lead_time_s(text: str) -> float:
    """Seconds, of `12w` or `90d`; raises ConfigError."""
    found = _LEAD_TIME.fullmatch(text.strip())
    if found is None:
        raise ConfigError("lead-time", text, "weeks or days, such as 12w or 90d")
    return float(found[1]) * {"d": DAY_S, "w": WEEK_S}[found[2]]

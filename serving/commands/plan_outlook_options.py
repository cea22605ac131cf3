"""Options of a plan's outlook: growth of its traffic, cold starts of its replicas."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from emulator.errors import ConfigError
from serving.commands.analysis_options import check_absent
from serving.traffic.start_time import START_S
from startup.typed_options import option

if TYPE_CHECKING:
    from serving.analysis.plan.growth import Growth
    from serving.analysis.plan.plan_cold_start import ColdStartTerms
    from serving.analysis.plan.plan_outlook import OutlookTerms

_PERCENT: Final = re.compile(r"(\d+(?:\.\d+)?)%", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class OutlookOptions:
    """What comes after the plan."""

    GROUP = "outlook: with any of it, the plan has three quarters of --budget"

    growth: str | None = option(
        None,
        "of the traffic, such as 8%/month, 25%/quarter or 150%/year: when machines are to be "
        "ordered",
        metavar="RATE",
    )
    months: int | None = option(None, "of growth (default: 24)")
    lead_time: str | None = option(
        None, "from order to service, such as 12w or 90d (default: 12w, assumed)", metavar="TIME"
    )
    cold_start: bool = option(
        False, "simulate what is lost until a new replica serves, after one is lost"
    )
    surge: str | None = option(
        None, "and after so many more requests at once, such as 30%", metavar="SHARE"
    )
    start_seconds: float = option(
        START_S,
        "until processes run and models are loaded, weights left out; assumed",
        metavar="SECONDS",
    )

    def __post_init__(self) -> None:
        if self.growth is None:
            check_absent(self, ("months", "lead_time"), expected="nothing without --growth")
        self.terms()

    def terms(self) -> OutlookTerms:
        """What is asked; raises ConfigError."""
        from serving.analysis.plan.plan_outlook import OutlookTerms

        return OutlookTerms(growth=self._growth(), cold_start=self._cold_start())

    def _growth(self) -> Growth | None:
        from serving.analysis.plan.growth import (
            LEAD_TIME_S,
            MONTHS,
            Growth,
            parse_growth,
            parse_lead_time_s,
        )

        if self.growth is None:
            return None
        is_assumed = self.lead_time is None
        return Growth(
            monthly=parse_growth(self.growth),
            months=MONTHS if self.months is None else self.months,
            lead_time_s=LEAD_TIME_S
            if self.lead_time is None
            else parse_lead_time_s(self.lead_time),
            lead_time_is_assumed=is_assumed,
        )

    def _cold_start(self) -> ColdStartTerms | None:
        from serving.analysis.plan.plan_cold_start import ColdStartTerms

        if not self.cold_start and self.surge is None:
            return None
        return ColdStartTerms(start_s=self.start_seconds, surge=_surge(self.surge))


def _surge(text: str | None) -> float | None:
    if text is None:
        return None
    found = _PERCENT.fullmatch(text.strip())
    if found is None:
        raise ConfigError("surge", text, "a percentage, such as 30%")
    return float(found[1]) / 100

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
    from collections.abc import Sequence

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
        "ordered; of several models one for all, or those of models that grow, as NAME=RATE,...",
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
        for rate in self._rates().values():
            self._terms(rate)
        self._cold_start()

    def terms(self) -> OutlookTerms:
        """What is asked of a plan of one model; raises ConfigError."""
        rates = self._rates()
        if any(rates):
            raise ConfigError("growth", self.growth, "one rate, such as 8%/month, for one model")
        return self._terms(rates.get(""))

    def terms_of(self, models: Sequence[str]) -> list[OutlookTerms]:
        """What is asked of each of several, by their names; raises ConfigError."""
        rates = self._rates()
        for name in rates:
            if name and name not in models:
                raise ConfigError("growth", name, f"one of {', '.join(models)}")
        return [self._terms(rates.get(name, rates.get(""))) for name in models]

    def _rates(self) -> dict[str, str]:
        """Of growth, by the model's name; "" is every model. Raises ConfigError."""
        from emulator.specs.models import model_by_name

        if self.growth is None:
            return {}
        parts = [part.rpartition("=") for part in self.growth.split(",")]
        rates = {name.strip() and model_by_name(name.strip()).name: rate for name, _, rate in parts}
        if len(rates) < len(parts) or ("" in rates and len(rates) > 1):
            raise ConfigError("growth", self.growth, "each model once, or one rate for all")
        return rates

    def _terms(self, rate: str | None) -> OutlookTerms:
        from serving.analysis.plan.plan_outlook import OutlookTerms

        return OutlookTerms(growth=self._growth_by(rate), cold_start=self._cold_start())

    def _growth_by(self, rate: str | None) -> Growth | None:
        from serving.analysis.plan.growth import (
            LEAD_TIME_S,
            MONTHS,
            Growth,
            parse_growth,
            parse_lead_time_s,
        )

        if rate is None:
            return None
        is_assumed = self.lead_time is None
        return Growth(
            monthly=parse_growth(rate),
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

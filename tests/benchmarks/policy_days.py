"""Days on which policies are held against the oracle and the best fixed split.

Recorded ones from ../shared/traces or where ULTRASERVE_TRACES says, if they are there; built-in
ones; and made-up weeks: the built-in one times chance, with a burstiness up to that of the clients
of ServeGen (a coefficient of variation of 4), of which the Friday is walked.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from emulator.arrays import Float64s
from serving.analysis.day.day_trace import DAY_S, DayTrace
from serving.analysis.day.day_trace_file import day_trace, sample_week

TRACES: Final = Path(
    os.environ.get("ULTRASERVE_TRACES", Path(__file__).resolve().parents[3] / "shared" / "traces")
)
RECORDED: Final = {
    "Azure code": "azure2024_digitized/azure2024_code_hourly_est.csv",
    "Azure conversations": "azure2024_digitized/azure2024_conv_hourly_est.csv",
}
BUCKET_S: Final = 300.0
_DAY: Final = round(DAY_S / BUCKET_S)
_HOUR: Final = 12  # buckets
_FRIDAY: Final = 4
_WEEK: Final = 7
_CLIENTS: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDay:
    """`days` of a trace from `first_day` on; `kind` of SYNTHETIC, of a made-up one."""

    name: str
    trace: DayTrace
    first_day: int
    days: int = 1
    kind: str | None = None


def recorded_days() -> Iterator[PolicyDay]:
    """The busiest day and the week of each recording, a published day, and the built-in week."""
    for name, file in RECORDED.items():
        if (TRACES / file).exists():
            trace = day_trace(str(TRACES / file))
            yield PolicyDay(name=name, trace=trace, first_day=trace.busiest_day())
            yield PolicyDay(name=f"{name}, week", trace=trace, first_day=0, days=_WEEK)
    yield PolicyDay(name="DeepSeek's schedule", trace=day_trace("deepseek"), first_day=0)
    yield PolicyDay(name="sample, Friday", trace=sample_week(), first_day=_FRIDAY)
    yield PolicyDay(name="sample, Saturday", trace=sample_week(), first_day=_FRIDAY + 1)
    yield PolicyDay(name="sample, week", trace=sample_week(), first_day=0, days=_WEEK)


Chance = np.random.Generator
"""Of one made-up week."""


def independent(chance: Chance, cv: float) -> Float64s:
    """Each five minutes times a gamma variable of mean 1, [buckets]."""
    return chance.gamma(cv**-2, cv**2, _WEEK * _DAY)


def correlated(chance: Chance, cv: float) -> Float64s:
    """The same of each hour, in straight lines between their middles, [buckets]."""
    hours = chance.gamma(cv**-2, cv**2, _WEEK * 24 + 2)
    at = np.arange(_WEEK * _DAY) / _HOUR + 0.5
    return np.interp(at, np.arange(len(hours)), hours)


def clients(chance: Chance, cv: float) -> Float64s:
    """Clients whose shares fall as 1/n; each is silent or bursts for about half an hour, [buckets].

    A client's rate has the coefficient of variation `cv`.
    """
    shares = 1 / np.arange(1, _CLIENTS + 1)
    total = np.zeros(_WEEK * _DAY)
    for share in shares / shares.sum():
        lasts = 1 + chance.poisson(5, _WEEK * _DAY)  # buckets
        levels = chance.gamma(cv**-2, cv**2, len(lasts))
        total += share * np.repeat(levels, lasts)[: len(total)]
    return total


def flash_crowds(chance: Chance, factor: float) -> Float64s:
    """Three times a day `factor` of the requests within five minutes, gone in half an hour."""
    return _events(chance, 3, np.append(factor, 1 + (factor - 1) * np.exp(-np.arange(6) / 2)))


def outages(chance: Chance, surge: float) -> Float64s:
    """Twice a day no requests for half an hour, and `surge` of them in the ten minutes after."""
    return _events(chance, 2, np.append(np.full(6, 0.0), [surge, surge]))


def _events(chance: Chance, a_day: int, shape: Float64s) -> Float64s:
    total = np.ones(_WEEK * _DAY)
    for day in range(_WEEK):
        for first in chance.integers(0, _DAY - len(shape), a_day) + day * _DAY:
            total[first : first + len(shape)] = shape
    return total


SYNTHETIC: Final[dict[str, tuple[Callable[[Chance, float], Float64s], float]]] = {
    **{f"5 minutes, CV {cv:g}": (independent, cv) for cv in (4.0, 2.0, 1.0, 0.5)},
    **{f"hours, CV {cv:g}": (correlated, cv) for cv in (4.0, 2.0, 1.0, 0.5)},
    **{f"clients, CV {cv:g}": (clients, cv) for cv in (4.0, 2.0, 1.0)},
    "flash crowds": (flash_crowds, 3.0),
    "outages": (outages, 1.5),
}
"""The least friendly first."""


def synthetic_day(name: str, seed: int) -> PolicyDay:
    """A Friday of the built-in week times chance."""
    factors, size = SYNTHETIC[name]
    chance = np.random.default_rng([seed, list(SYNTHETIC).index(name)])
    week = sample_week()
    middles_s = (np.arange(_WEEK * _DAY) + 0.5) * BUCKET_S
    rates = week.rates_at(middles_s) * factors(chance, size)
    trace = replace(week, knots_s=middles_s, rates_per_s=rates, source=f"{name}, seed {seed}")
    return PolicyDay(name=f"{name} ({seed})", trace=trace, first_day=_FRIDAY, kind=name)

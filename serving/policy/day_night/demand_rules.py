"""Rules by which serving groups follow demand: a guess of the rate, a margin, and a time to stay.

A rule that has no guess is a fixed split. Nothing is fitted: `rule_replay` chooses between rules.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from serving.policy.day_night.forecast import DAY_S, expected_peaks, sliding_max, trailing_mean
from serving.policy.day_night.history import F64, DemandHistory

HOUR_S: Final = 3_600.0
_SAME_TIME_S: Final = HOUR_S
_SEVERAL_HOURS_S: Final = 3 * HOUR_S
_DAYS: Final = 7

MARGINS: Final = (0.9, 1.0, 1.05, 1.1, 1.2, 1.35, 1.6, 2.0, 2.5, 3.2, 4.0, 6.0)
"""From less than the guess, where demand tends to fall, to bursts of six times."""

HOLDS_S: Final = (300.0, 600.0, 1_200.0, 3_600.0)


class Guess(StrEnum):
    """What the rate of the coming buckets is taken for."""

    LAST = "the last bucket"
    TREND = "the last bucket and its rise again"
    HOUR = "the last hour's mean"
    TIME_OF_DAY = "the mean at this time of the days before"
    FORECAST = "the forecast peak"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandRule:
    """Groups for the highest guess of the last `hold` buckets times `margin`.

    Without a `guess`: `groups`, whatever comes.
    """

    groups: int = 0
    guess: Guess | None = None
    margin: float = 1.0
    hold: int = 1

    def __str__(self) -> str:
        if self.guess is None:
            return f"a split of {self.groups}"
        stay = "" if self.hold == 1 else f", the highest of {self.hold}"
        return f"{self.margin:g} x {self.guess}{stay}"

    def rates(self, guesses_per_s: F64) -> F64:
        """What the groups are to serve as of each bucket's end, [buckets] -> [buckets]."""
        return self.margin * trailing_max(guesses_per_s, self.hold)


def following_rules(bucket_s: float) -> Iterator[DemandRule]:
    """All rules with a guess, those of one guess on end."""
    holds = dict.fromkeys(max(1, round(hold_s / bucket_s)) for hold_s in HOLDS_S)
    for guess in Guess:
        for margin in MARGINS:
            for hold in holds:
                yield DemandRule(guess=guess, margin=margin, hold=hold)


def guessed(guess: Guess, history: DemandHistory, *, ahead: int) -> F64:
    """The guess of the next `ahead` buckets as of each bucket's end, [buckets].

    From what was known then; see `expected_peaks`.
    """
    rates = history.requests_per_s
    match guess:
        case Guess.LAST:
            return rates
        case Guess.TREND:
            rises = np.diff(rates, prepend=rates[:1])
            risen: F64 = rates + (ahead - 1) * np.maximum(rises, 0.0)
            return risen
        case Guess.HOUR:
            return trailing_mean(rates, max(1, round(HOUR_S / history.bucket_s)))
        case Guess.TIME_OF_DAY:
            return _time_of_day(history, ahead)
        case Guess.FORECAST:
            return expected_peaks(history, buckets=ahead)


def trailing_max(values: F64, width: int) -> F64:
    """Highest of the last `width` values, or of fewer at the start: [values] -> [values]."""
    return sliding_max(np.concatenate([np.full(width - 1, -math.inf), values]), width)


def _time_of_day(history: DemandHistory, ahead: int) -> F64:
    """Mean around the same time of each earlier day, and of some hours on the first one."""
    rates, bucket_s = history.requests_per_s, history.bucket_s
    day, near = round(DAY_S / bucket_s), round(_SAME_TIME_S / bucket_s)
    total = np.concatenate([[0.0], np.cumsum(rates)])
    buckets = np.arange(len(rates))
    requests, seen = np.zeros(len(rates)), np.zeros(len(rates))
    for days in range(1, _DAYS + 1):
        middle = buckets + ahead - days * day
        first = np.maximum(middle - near, 0)
        after = np.clip(middle + near + 1, first, buckets + 1)
        requests += total[after] - total[first]
        seen += after - first
    lately = trailing_mean(rates, max(1, round(_SEVERAL_HOURS_S / bucket_s)))
    means: F64 = np.where(seen > 0, np.maximum(requests, 0.0) / np.maximum(seen, 1.0), lately)
    return means

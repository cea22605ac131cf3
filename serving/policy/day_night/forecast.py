"""Peak demand of the coming minutes, from its own past, with a stated confidence of requests.

The forecast quantity is the growth g(t) = ln((peak + e) / (level + e)): `peak` is the highest
bucket of the window after t, `level` the mean of the last 15 minutes, e one request a bucket, a
bucket's resolution. Three guesses, g = 0, yesterday's and last week's at the same time, are weighed
by inverse mean squared error on the history, each from what was known at the time. A margin is
added that would have covered all but `1 - confidence` of the requests: the same quantile of the
guess's errors, by the requests of their peaks, of all or of those within an hour of the same time
of day, whichever is higher. So the traffic before says how bursty it is and how well it can be
foretold. A level that covers as many requests at all is enough while demand has not passed it,
whatever grew how fast: bursts do not multiply. Only the weights are fitted. *Assumed*: the coming
window errs as those of the last week did.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ConfigError
from serving.policy.day_night.history import F64, DemandHistory

DAY_S: Final = 86_400.0
WEEK_S: Final = 7 * DAY_S
LEVEL_S: Final = 900.0
ERRORS_MIN: Final = 12
"""Fewest errors by which a guess is used, and a forecast has a confidence."""

SAME_TIME_S: Final = 3_600.0
_SHARE_MIN: Final = 0.5
"""Of the requests in past windows that a forecast is to cover, however long the windows are."""

B1 = NDArray[np.bool_]
I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Peak of the coming window: expected, and its bound with the confidence.

    `errors`: past windows that gave the confidence; with too few, `high_per_s` is infinite.
    `weights`: of the level, yesterday and last week; their sum is 1.
    """

    expected_per_s: float
    high_per_s: float
    errors: int
    weights: tuple[float, float, float]


def forecast_peak(history: DemandHistory, *, window_s: float, confidence: float) -> Forecast:
    """Forecast the highest bucket within `window_s` after the history's end.

    Raises ConfigError unless 0 < window_s < a day and 0 < confidence < 1.
    """
    if not 0 < window_s < DAY_S:
        raise ConfigError("window_s", window_s, "> 0 and below a day")
    if not 0 < confidence < 1:
        raise ConfigError("confidence", confidence, "between 0 and 1")
    if len(history) == 0:
        return Forecast(expected_per_s=0.0, high_per_s=math.inf, errors=0, weights=(1.0, 0.0, 0.0))
    window = max(math.ceil(window_s / history.bucket_s - 1e-9), 1)
    finest_per_s = history.finest_per_s
    level_per_s, growth, weighed, weights = _foretold(history, window)
    judged = _judged(history, len(growth))  # [errors], bucket numbers
    errors = growth[judged] - weighed[judged]  # [errors]
    expected_per_s = float(level_per_s[-1] * math.exp(weighed[-1]) - finest_per_s)
    high_per_s = math.inf
    if len(errors) >= ERRORS_MIN:
        # A bucket that is too high spoils the windows of `window` looks, and is late once.
        share = max(1.0 - (1.0 - confidence) * window, _SHARE_MIN)
        peaks_per_s = sliding_max(history.requests_per_s[1:], window)[judged]  # [errors]
        among = [np.ones(len(errors), dtype=np.bool_), _same_time(history, judged)]
        among = [which for which in among if which.sum() >= ERRORS_MIN]
        margin, usual_per_s = (
            max(upper_quantile(values[which], peaks_per_s[which], share) for which in among)
            for values in (errors, peaks_per_s)
        )
        high_per_s = float(level_per_s[-1] * math.exp(weighed[-1] + margin) - finest_per_s)
        if level_per_s[-1] <= usual_per_s + 2 * finest_per_s:
            high_per_s = min(high_per_s, usual_per_s)
    level, yesterday, last_week = (float(weight) for weight in weights)
    return Forecast(
        expected_per_s=max(expected_per_s, 0.0),
        high_per_s=max(high_per_s, 0.0),
        errors=len(errors),
        weights=(level, yesterday, last_week),
    )


def expected_peaks(history: DemandHistory, *, buckets: int) -> F64:
    """The highest rate expected of the next `buckets`, as of each bucket's end, [buckets].

    From what was known then, but for the guesses' weights, which are those of the whole history.
    """
    level_per_s, _, weighed, _ = _foretold(history, buckets)
    expected: F64 = np.maximum(level_per_s * np.exp(weighed) - history.finest_per_s, 0.0)
    return expected


def _foretold(history: DemandHistory, window: int) -> tuple[F64, F64, F64, F64]:
    """Levels [buckets], growth [ended], its weighed guess [buckets], and the weights [3]."""
    finest_per_s = history.finest_per_s
    level_per_s = _levels(history) + finest_per_s
    growth = _growth(history, level_per_s, window, finest_per_s)
    guesses, known = _guesses(history, growth)  # [3, buckets] each
    weights = _weights(growth, guesses, known)
    return level_per_s, growth, _weighed(weights, guesses, known), weights


def _levels(history: DemandHistory) -> F64:
    """Mean rate of the last LEVEL_S at each bucket's end."""
    return trailing_mean(history.requests_per_s, max(round(LEVEL_S / history.bucket_s), 1))


def trailing_mean(rates: F64, width: int) -> F64:
    """Of the last `width` rates at each one, of fewer at the start: [rates] -> [rates]."""
    total = np.concatenate([[0.0], np.cumsum(rates)])
    last = np.arange(1, len(total))
    first = np.maximum(last - width, 0)
    # A difference of sums may fall below 0 by rounding.
    means: F64 = np.maximum((total[last] - total[first]) / (last - first), 0.0)
    return means


def _growth(history: DemandHistory, level_per_s: F64, window: int, finest_per_s: float) -> F64:
    """ln(peak of the next `window` buckets / level), for each bucket whose window is over."""
    rates = history.requests_per_s
    if len(rates) <= window:
        return np.zeros(0)
    peaks = sliding_max(rates[1:], window)  # [buckets - window]
    growth: F64 = np.log((peaks + finest_per_s) / level_per_s[: len(peaks)])
    return growth


def sliding_max(rates: F64, window: int) -> F64:
    """Highest of each `window` consecutive rates: [rates] -> [rates - window + 1].

    By doubling: two overlapping spans of at least half the window cover it.
    """
    highest, span = rates, 1
    while 2 * span <= window:
        highest = np.maximum(highest[:-span], highest[span:])
        span *= 2
    starts = len(rates) - window + 1
    covered: F64 = np.maximum(highest[:starts], highest[window - span :])
    return covered


def _guesses(history: DemandHistory, growth: F64) -> tuple[F64, B1]:
    """The three guesses at every bucket, and which could be made then."""
    buckets = len(history)
    guesses = np.zeros((3, buckets))
    known = np.zeros((3, buckets), dtype=np.bool_)
    known[0] = True
    for row, season_s in ((1, DAY_S), (2, WEEK_S)):
        lag = round(season_s / history.bucket_s)
        told = min(buckets - lag, len(growth))
        if lag > 0 and told > 0:
            guesses[row, lag : lag + told] = growth[:told]
            known[row, lag : lag + told] = True
    return guesses, known


def _judged(history: DemandHistory, ended: int) -> I64:
    """Windows whose errors count: the last week's, after more than a day with yesterday known."""
    day, week = (round(season_s / history.bucket_s) for season_s in (DAY_S, WEEK_S))
    first = max(ended - week, 0)
    if ended - day >= ERRORS_MIN:
        first = max(first, day)
    return np.arange(first, ended)


def _same_time(history: DemandHistory, judged: I64) -> B1:
    """Which of these buckets lie within SAME_TIME_S of the time of day of the history's end.

    A morning's rise is harder to forecast than a night.
    """
    apart_s = (len(history) - 1 - judged) * history.bucket_s % DAY_S
    near: B1 = np.minimum(apart_s, DAY_S - apart_s) <= SAME_TIME_S
    return near


def upper_quantile(values: F64, weights: F64, confidence: float) -> float:
    """The lowest value that at least the share `confidence` of the weight stays at or below.

    Without weight all count alike.
    """
    order = np.argsort(values)
    total = np.cumsum(weights[order])
    if not total[-1] > 0:
        total = np.arange(1.0, len(values) + 1, dtype=np.float64)
    place = np.searchsorted(total, confidence * total[-1] * (1 - 1e-12))
    return float(values[order[place]])


def _weights(growth: F64, guesses: F64, known: B1) -> F64:
    """Weights by inverse mean squared error; 0 for a guess without enough errors."""
    ended = len(growth)
    judged = known[:, :ended]  # [3, ended]
    counts = judged.sum(axis=1)  # [3]
    squares = (np.square(guesses[:, :ended] - growth) * judged).sum(axis=1)
    usable = (counts >= ERRORS_MIN) & known[:, -1]
    if not usable.any():
        return np.array([1.0, 0.0, 0.0])
    # A guess that was never wrong takes all; a millionth is far below what a bucket can tell.
    inverse = np.where(usable, 1.0 / (squares / np.maximum(counts, 1) + 1e-6), 0.0)
    weights: F64 = inverse / inverse.sum()
    return weights


def _weighed(weights: F64, guesses: F64, known: B1) -> F64:
    """The weighed guess at every bucket, of those known then; 0 for none."""
    shares = weights[:, None] * known  # [3, buckets]
    total = shares.sum(axis=0)
    weighed: F64 = (shares * guesses).sum(axis=0) / np.where(total > 0, total, 1.0)
    return weighed

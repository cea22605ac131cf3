"""What each rule of `demand_rules` would have made of the demand so far, and the best of them.

The worth of a rule is the time that groups would have trained, in group-buckets, less what its
changes cost: a change stops the job of all that train for as long as a group takes to come back
(*assumed*: either ends a step, saves, starts processes and reads weights), and groups on the way do
nothing. Late are the requests above what the serving groups can do (`LATE_AT`), those that find
a queue, and those that come before the groups that were called. Of the rules that keep `confidence`
of the requests in time the most worthy is chosen, or one that also keeps the worst bucket, where
that costs no more than asked. So burstiness, the errors of each guess and the price of a change are
what the traffic showed, and where changes do not pay, the rule is a fixed split.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from serving.policy.day_night.demand_rules import (
    DemandRule,
    following_rules,
    guessed,
)
from serving.policy.day_night.forecast import DAY_S
from serving.policy.day_night.history import F64, DemandHistory

I64 = NDArray[np.int64]

LATE_AT: Final = ((0.0, 0.8, 1.0, 1.1, 1.25, 1.4), (0.0, 0.001, 0.01, 0.05, 0.4, 1.0))
"""Load over capacity, and the share of the requests that is late; *assumed*, near what simulated
replicas show (`ultraserve day`)."""

SATURATED: Final = 1.35
"""Load over capacity from which a queue grows without end; *assumed*, as above."""

REPLAYED_DAYS: Final = 4
WORST_LATE: Final = 0.01
"""Late share of the worst bucket that a careful rule keeps."""

REPLAYED_MIN: Final = 12
"""Fewest buckets that tell anything."""

_FRACTIONS: Final = 8  # of a bucket, to which times are rounded, so that choices can be kept


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayTerms:
    """A machine; times in buckets.

    `job_groups_min`: fewest leased groups that train.
    """

    groups: int
    groups_min: int
    job_groups_min: int
    capacity_per_s: float
    drain: float
    restore: float

    @property
    def ahead(self) -> int:
        """Buckets from a decision until a group serves that is called by the next one."""
        return 1 + math.ceil(self.restore)

    def groups_for(self, rates_per_s: F64) -> I64:
        """Serving groups for each rate, [any] -> [any]."""
        needed = np.ceil(np.minimum(rates_per_s / self.capacity_per_s, self.groups) - 1e-9)
        return self.useful(np.maximum(needed.astype(np.int64), max(self.groups_min, 1)))

    def useful(self, serving: I64) -> I64:
        """The same, or all where too few would be left to train, [any] -> [any]."""
        trains = self.groups - serving >= self.job_groups_min
        chosen: I64 = np.where(trains, serving, self.groups)
        return chosen


def in_fractions(buckets: float) -> float:
    """Rounded as terms are."""
    return round(buckets * _FRACTIONS) / _FRACTIONS


def best_rule(
    history: DemandHistory, terms: ReplayTerms, *, confidence: float, careful: float
) -> DemandRule | None:
    """The rule to go on with after `history`; None of too short a one, or if none is in time.

    `careful`: of the best rule's worth, what one must have that keeps the worst bucket too.
    """
    rates = history.requests_per_s.tobytes()
    return _best_rule(rates, history.bucket_s, history.pace, terms, confidence, careful)


@lru_cache(maxsize=64)
def _best_rule(
    rates: bytes,
    bucket_s: float,
    pace: float,
    terms: ReplayTerms,
    confidence: float,
    careful: float,
) -> DemandRule | None:
    """Pure, and kept, since a server asks thrice a second."""
    history = DemandHistory(
        end_s=0.0, bucket_s=bucket_s, requests_per_s=np.frombuffer(rates), pace=pace
    )
    first = _first_replayed(history)
    if len(history) - first < REPLAYED_MIN:
        return None
    rules, wanted = _wanted(history, terms, first)
    worth, late = replayed(history.requests_per_s[first:], wanted, terms)
    requests = history.requests_per_s[first:]
    total = max(float(requests.sum()), history.finest_per_s)
    in_time = late @ requests / total <= 1.0 - confidence  # [rules]
    if not in_time.any():
        return None
    best = worth[in_time].max()
    kept_always = in_time & (late.max(axis=1) <= WORST_LATE) & (worth >= careful * best)
    among = kept_always if kept_always.any() else in_time
    return rules[int(np.where(among, worth, -np.inf).argmax())]


def _first_replayed(history: DemandHistory) -> int:
    """A day is needed to guess by the day before, if there is another one."""
    day = round(DAY_S / history.bucket_s)
    known = day if len(history) >= day + day // 4 else REPLAYED_MIN
    return max(known, len(history) - REPLAYED_DAYS * day)


def _wanted(history: DemandHistory, terms: ReplayTerms, first: int) -> tuple[list[DemandRule], I64]:
    """All rules, and the groups each wants from `first` on: [rules, buckets]."""
    buckets = len(history) - first
    splits = np.arange(max(terms.groups_min, 1), terms.groups + 1)
    rules = [DemandRule(groups=int(split)) for split in splits]
    wanted = [np.repeat(terms.useful(splits)[:, None], buckets, axis=1)]
    for guess, same in groupby(following_rules(history.bucket_s), key=lambda rule: rule.guess):
        assert guess is not None
        told_per_s = guessed(guess, history, ahead=terms.ahead)
        for rule in same:
            rules.append(rule)
            # What was known at the end of the bucket before.
            wanted.append(terms.groups_for(rule.rates(told_per_s)[first - 1 : -1])[None])
    return rules, np.concatenate(wanted)


def replayed(rates_per_s: F64, wanted: I64, terms: ReplayTerms) -> tuple[F64, F64]:
    """Worth [rules], and the late share of each bucket's requests [rules, buckets].

    `rates_per_s` [buckets]; `wanted` serving groups, decided as each bucket begins.
    """
    before = np.concatenate([wanted[:, :1], wanted[:, :-1]], axis=1)
    whole, part = divmod(terms.restore, 1.0)
    soon, later = (_lowest(wanted, int(whole) + more) for more in (1, 2))
    bucket = np.arange(len(rates_per_s))
    counts = np.arange(1, terms.groups + 1)
    late_with = np.interp(rates_per_s / (terms.capacity_per_s * counts[:, None]), *LATE_AT)
    late = (1.0 - part) * late_with[soon - 1, bucket] + part * late_with[later - 1, bucket]
    late = np.maximum(late, _queued(rates_per_s, SATURATED * terms.capacity_per_s * soon))
    lent = terms.groups - wanted
    stopped = np.minimum(lent, terms.groups - before) * (wanted != before)
    moved = np.maximum(wanted - before, 0) * terms.restore
    moved += np.maximum(before - wanted, 0) * terms.drain
    worth: F64 = (lent - stopped * terms.restore - moved).sum(axis=1)
    return worth, late


def _lowest(wanted: I64, width: int) -> I64:
    """Of the last `width` buckets, [rules, buckets]: groups that were called before them serve."""
    lowest = wanted.copy()
    for back in range(1, min(width, wanted.shape[1])):
        lowest[:, back:] = np.minimum(lowest[:, back:], wanted[:, :-back])
    return lowest


def _queued(rates_per_s: F64, most_per_s: NDArray[np.floating[Any]]) -> F64:
    """Share of each bucket's requests that find a queue, [buckets], [rules, buckets] -> the same.

    What waits is the sum of what came and was not served, above its lowest value so far.
    """
    waits = np.cumsum(rates_per_s - most_per_s, axis=1)
    waits -= np.minimum(np.minimum.accumulate(waits, axis=1), 0.0)
    waited = np.concatenate([np.zeros((len(waits), 1)), waits[:, :-1]], axis=1)
    spare = np.maximum(most_per_s - rates_per_s, 1e-9)
    share: F64 = np.where(waits > 0, 1.0, np.minimum(waited / spare, 1.0))
    return share

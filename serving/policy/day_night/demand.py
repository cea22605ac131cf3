"""The policy that follows demand by the rule that would have been the best so far.

Every six hours each of some hundred rules, fixed splits among them, is replayed on the days before
(`rule_replay`), and the best one is followed until then. What the past did not show is met as it
comes: while requests wait or miss a limit, as many serve as the load needs with headroom.
"""

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from emulator.errors import ConfigError
from serving.policy.day_night.burst import Guard
from serving.policy.day_night.demand_rules import DemandRule, guessed
from serving.policy.day_night.forecast import DAY_S
from serving.policy.day_night.history import DemandHistory
from serving.policy.day_night.observation import Observation
from serving.policy.day_night.options import check_learning, duration_text, options_text
from serving.policy.day_night.policy import Decision, Policy
from serving.policy.day_night.rule_replay import ReplayTerms, best_rule, in_fractions

CHOICE_S: Final = 21_600.0
"""Of the day's calendar, between two choices of a rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandPolicy(Policy):
    """Follows the rule of the greatest worth; raises ConfigError for values out of range.

    `confidence`: share of the requests of the days before that a rule must have kept in time, more
    than the target, since the next day is another one. `careful`: share of the best rule's worth
    for which one is followed that kept the worst five minutes of these days too; 1 for no such one,
    0 for any. `warm_s`: history needed before it lends.
    """

    name = "demand"
    weighs_demand = True

    guard: Guard = field(default_factory=lambda: Guard(headroom=0.2, dwell_s=300.0))
    confidence: float = 0.994
    careful: float = 0.95
    warm_s: float = DAY_S

    def __post_init__(self) -> None:
        check_learning(confidence=self.confidence, warm_s=self.warm_s)
        if not 0 <= self.careful <= 1:
            raise ConfigError("careful", self.careful, "a share, 0 to 1")

    def __str__(self) -> str:
        options = options_text(self, DemandPolicy())
        return f"{self.name}:{options}" if options else self.name

    def decide(self, observed: Observation) -> Decision:
        """What the rule wants, and what waiting and late requests need; all where no job could."""
        history = observed.history
        if len(history) * history.bucket_s < self.warm_s:
            reason = f"less than {duration_text(self.warm_s)} of history"
            return Decision(serving_groups=observed.groups, reason=reason)
        terms = _terms(observed)
        rule = best_rule(
            _until_choice(history), terms, confidence=self.confidence, careful=self.careful
        )
        if rule is None:
            reason = "no rule would have kept the requests in time"
            return Decision(serving_groups=observed.groups, reason=reason)
        held = self.guard.rescued(observed, _decided(rule, history, terms))
        return replace(held, serving_groups=int(terms.useful(np.array(held.serving_groups))))

    def describe(self) -> str:
        """State what it does and assumes."""
        return (
            f"{self}: every {duration_text(CHOICE_S)} follows the rule, or the fixed split, that "
            f"would have trained most on the days before with {self.confidence:.4g} of the "
            "requests in time, the cost of its changes included, or one that kept the worst 5 "
            f"minutes too, if it had trained {self.careful:.0%} of that; while requests wait or "
            "miss a limit, as many serve as the load needs; assumed: that the day is like those "
            "before, and a change stops the job as long as a group takes to come back"
        )


def _decided(rule: DemandRule, history: DemandHistory, terms: ReplayTerms) -> Decision:
    if rule.guess is None:
        serving = np.array([rule.groups])
    else:
        told_per_s = guessed(rule.guess, history, ahead=terms.ahead)
        serving = terms.groups_for(rule.rates(told_per_s)[-1:])
    return Decision(serving_groups=int(terms.useful(serving)[0]), reason=f"{rule}")


def _terms(observed: Observation) -> ReplayTerms:
    bucket_s = observed.history.bucket_s
    return ReplayTerms(
        groups=observed.groups,
        groups_min=observed.groups_min,
        job_groups_min=observed.job_groups_min,
        capacity_per_s=observed.capacity_per_group_per_s,
        drain=in_fractions(observed.drain_s / bucket_s),
        restore=in_fractions(observed.restore_s / bucket_s),
    )


def _until_choice(history: DemandHistory) -> DemandHistory:
    """What was known when the rule was chosen; all of a history that is younger."""
    since = round(history.end_s / history.bucket_s) % max(1, round(CHOICE_S / history.bucket_s))
    day = round(DAY_S / history.bucket_s)
    known = max(len(history) - since, min(len(history), day))
    end_s = history.end_s - (len(history) - known) * history.bucket_s
    return replace(history, end_s=end_s, requests_per_s=history.requests_per_s[:known])

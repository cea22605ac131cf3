"""`demand`: the best rule of the past, which may be a split, and what late requests need."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.policy.day_night.burst import Guard
from serving.policy.day_night.demand import DemandPolicy
from serving.policy.day_night.demand_rules import DemandRule, Guess, guessed, trailing_max
from serving.policy.day_night.history import F64
from serving.policy.day_night.observation import Observation
from serving.policy.day_night.rule_replay import ReplayTerms, best_rule, replayed
from tests.serving.policy.day_night.test_policies import (
    DAY,
    day_rates,
    history,
    observations,
    observed,
)

FOUR = ReplayTerms(
    groups=4, groups_min=1, job_groups_min=1, capacity_per_s=10.0, drain=0.0, restore=0.5
)


def worth_and_late(
    rates: list[float], wanted: list[int], terms: ReplayTerms = FOUR
) -> tuple[float, list[float]]:
    worth, late = replayed(np.array(rates), np.array([wanted]), terms)
    return float(worth[0]), late[0].tolist()


def test_a_change_stops_those_that_train_for_half_a_bucket() -> None:
    # Two of four groups train for four buckets; when one comes back one trains on, and both stop.
    assert worth_and_late([1.0] * 4, [2, 2, 2, 2])[0] == 8.0
    # 2 + 2 + 1 + 1, less half a bucket of the one that goes on, and of the one on its way.
    assert worth_and_late([1.0] * 4, [2, 2, 3, 3])[0] == 6.0 - 0.5 - 0.5
    assert worth_and_late([1.0] * 4, [4, 2, 4, 4])[0] == 2.0 - 2 * 0.5  # nobody trained before


def test_requests_are_late_until_the_groups_that_were_called_serve() -> None:
    # 20/s are the capacity of two groups, of which 1 % is late, and twice that of one, all late.
    assert worth_and_late([1.0, 20.0], [1, 2])[1] == pytest.approx([0.000125, 0.505])
    twelve = worth_and_late([1.0, 12.0, 12.0], [1, 2, 2])[1]  # 1.2 of one, 0.6 of two
    late_with_one = 0.05 + (0.4 - 0.05) * (1.2 - 1.1) / (1.25 - 1.1)
    assert twelve[1] == pytest.approx(0.5 * late_with_one + 0.5 * 0.00075)
    assert twelve[2] == pytest.approx(0.00075)
    slow = replace(FOUR, restore=1.5)
    assert worth_and_late([1.0, 12.0, 12.0, 12.0], [1, 2, 2, 2], slow)[1][2] == pytest.approx(
        twelve[1]
    )


def test_requests_that_find_a_queue_are_late() -> None:
    # One group serves 13.5 in a bucket's second: of 20 there wait 6.5, gone after 6.5 / (13.5 - 8).
    late = worth_and_late([20.0, 8.0, 8.0], [1, 1, 1])[1]

    assert late == pytest.approx([1.0, 1.0, 1.0 / 5.5])


@given(rates=st.lists(st.floats(0, 60), min_size=1, max_size=30), serving=st.integers(1, 3))
def test_more_groups_are_never_later_and_never_train_more(rates: list[float], serving: int) -> None:
    fewer = worth_and_late(rates, [serving] * len(rates))
    more = worth_and_late(rates, [serving + 1] * len(rates))

    assert more[0] <= fewer[0]
    assert (np.array(more[1]) <= np.array(fewer[1]) + 1e-9).all()


@pytest.mark.parametrize("guess", list(Guess))
@given(
    rates=st.lists(st.floats(0, 100), min_size=40, max_size=60),
    later=st.lists(st.floats(0, 100), min_size=1, max_size=10),
)
@settings(max_examples=20)
def test_a_guess_knows_nothing_of_what_comes_after(
    guess: Guess, rates: list[float], later: list[float]
) -> None:
    before = guessed(guess, history(np.array(rates)), ahead=2)
    after = guessed(guess, history(np.array(rates + later)), ahead=2)

    if guess is Guess.FORECAST:  # but for its weights: there is no day before to weigh
        assert before == pytest.approx(after[: len(rates)])
    else:
        assert (before == after[: len(rates)]).all()


@given(values=st.lists(st.floats(0, 9), min_size=1, max_size=20), width=st.integers(1, 30))
def test_a_trailing_maximum_is_that_of_each_slice(values: list[float], width: int) -> None:
    highest = trailing_max(np.array(values), width)

    assert highest.tolist() == [
        max(values[max(0, end - width) : end]) for end in range(1, len(values) + 1)
    ]


def walked(rates: F64, days: int, policy: DemandPolicy, **more: object) -> list[int]:
    """Serving groups on the last day of `days`."""
    serving: list[int] = []
    for end in range((days - 1) * DAY, days * DAY):
        now = serving[-1] if serving else 8
        seen = observed(rates[:end], serving_groups=now, **more)
        serving.append(policy.decide(seen).serving_groups)
    return serving


@pytest.mark.long
def test_on_days_alike_groups_leave_at_night_and_are_there_in_the_morning() -> None:
    rates = day_rates(4)
    serving = np.array(walked(rates, 4, DemandPolicy(), restore_s=30.0, drain_s=0.0))
    needs = np.ceil(rates[3 * DAY :] / 10.0)

    assert (serving >= needs).mean() > 0.98
    assert serving.min() == 1
    assert serving.mean() < 1.2 * needs.mean()


@pytest.mark.long
def test_where_each_five_minutes_are_by_chance_it_holds_a_split() -> None:
    chance = np.random.default_rng(0)
    rates = 15.0 * chance.gamma(4.0, 0.25, 5 * DAY)
    terms = replace(FOUR, groups=8, restore=1.0)
    rule = best_rule(history(rates[: 4 * DAY]), terms, confidence=0.994, careful=0.95)

    assert rule is not None
    assert rule.guess in (None, Guess.TIME_OF_DAY, Guess.HOUR)
    serving = walked(rates, 5, DemandPolicy(), restore_s=300.0)
    assert sum(one != after for one, after in pairwise(serving)) <= DAY / 10


@pytest.mark.parametrize(("careful", "groups"), [(1.0, 2), (0.8, 3)])
def test_the_worst_five_minutes_are_kept_where_that_costs_no_more_than_asked(
    careful: float, groups: int
) -> None:
    """Of eight groups two serve 15 a second; once a day, at any time, come 25, of which they are
    late with four in ten: 0.2 % of the day's. A third serves those too, for a sixth of the worth.
    """
    rates = np.full(4 * DAY, 15.0)
    rates[np.random.default_rng(0).integers(0, DAY, 4) + DAY * np.arange(4)] = 25.0
    terms = replace(FOUR, groups=8)
    rule = best_rule(history(rates), terms, confidence=0.994, careful=careful)
    assert rule is not None
    assert (rule.guess, rule.groups) == (None, groups)


@pytest.mark.long
def test_a_dear_change_makes_for_fewer_of_them() -> None:
    hours = np.random.default_rng(1).gamma(4.0, 0.25, 5 * 24).repeat(12)

    def changes(restore_s: float) -> int:
        serving = walked(15.0 * hours, 5, DemandPolicy(), restore_s=restore_s)
        return sum(one != after for one, after in pairwise(serving))

    assert changes(3_000.0) < changes(30.0)


def test_nothing_leaves_before_a_day_was_seen_and_where_no_rule_is_in_time() -> None:
    policy = DemandPolicy()

    assert policy.decide(observed(np.full(DAY - 1, 1.0))).serving_groups == 8
    assert policy.decide(observed(np.full(DAY, 1.0))).serving_groups == 1
    overload = policy.decide(observed(np.full(DAY, 200.0)))
    assert overload.serving_groups == 8
    assert overload.reason == "no rule would have kept the requests in time"


def test_groups_that_are_too_few_for_a_job_do_not_leave() -> None:
    busy = observed(np.full(DAY, 55.0))  # six of eight groups

    assert DemandPolicy().decide(busy).serving_groups < 8
    assert DemandPolicy().decide(replace(busy, job_groups_min=3)).serving_groups == 8


def test_a_burst_takes_groups_back_once_requests_wait_or_are_late() -> None:
    quiet = observed(np.full(2 * DAY, 5.0), serving_groups=1, load_per_s=38.0)
    policy = DemandPolicy()

    assert policy.decide(quiet).serving_groups == 1
    assert policy.decide(replace(quiet, queue=1)).serving_groups == 5  # 38.03/s and a fifth
    for late in ("ttft_attainment", "tpot_attainment"):
        assert policy.decide(replace(quiet, **{late: 0.98})).serving_groups == 5
        assert policy.decide(replace(quiet, **{late: 0.99})).serving_groups == 1


@pytest.mark.long
@given(seen=observations, job_groups_min=st.integers(1, 9), since_s=st.sampled_from((0.0, 1e6)))
@settings(max_examples=30)
def test_as_many_are_out_as_train_or_none(
    seen: Observation, job_groups_min: int, since_s: float
) -> None:
    seen = replace(seen, job_groups_min=job_groups_min, since_change_s=since_s)
    out = seen.groups - DemandPolicy(warm_s=0.0).decide(seen).serving_groups

    assert out == 0 or out >= job_groups_min


def test_what_the_load_needs_still_leaves_a_job_enough_or_all_serve() -> None:
    # A job of eight of twelve groups; history at 2.8 groups' rate, and then 4.4.
    seen = observed(
        np.full(2 * DAY, 28.0), groups=12, serving_groups=6, load_per_s=44.0, job_groups_min=8
    )
    policy = DemandPolicy()

    assert policy.decide(replace(seen, load_per_s=28.0)).serving_groups == 4
    for more in ({}, {"queue": 1}, {"tpot_attainment": 0.9}):
        assert policy.decide(replace(seen, **more)).serving_groups == 12


@given(seen=observations, share=st.floats(0, 0.999))
@settings(max_examples=30)
def test_its_decision_is_within_the_bounds_the_same_each_time_and_keeps_the_dwell(
    seen: Observation, share: float
) -> None:
    policy = DemandPolicy(guard=Guard(dwell_s=1_000.0))
    decision = policy.decide(seen)
    early = replace(seen, since_change_s=share * 1_000.0)

    assert seen.groups_min <= decision.serving_groups <= seen.groups
    assert DemandPolicy(guard=Guard(dwell_s=1_000.0)).decide(seen) == decision
    assert policy.decide(early).serving_groups >= early.serving_groups


def test_a_rule_says_what_it_does() -> None:
    assert str(DemandRule(groups=3)) == "a split of 3"
    rule = DemandRule(guess=Guess.LAST, margin=1.1, hold=4)
    assert str(rule) == "1.1 x the last bucket, the highest of 4"

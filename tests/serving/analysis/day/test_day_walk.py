"""A policy walked over a day, interval by interval."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.errors import ConfigError
from serving.analysis.day.day_demand import DayDemand, WalkTerms, day_demand
from serving.analysis.day.day_result import DayResult
from serving.analysis.day.day_trace import DayTrace
from serving.analysis.day.day_trace_file import sample_week
from serving.analysis.day.day_walk import DayWalk
from serving.analysis.day.exact_day import Planned
from serving.policy.day_night.demand import DemandPolicy
from serving.policy.day_night.history import DemandHistory
from serving.policy.day_night.observation import Observation
from serving.policy.day_night.policy import Decision, Fixed, Never, Policy
from tests.serving.analysis.day.days import CURVE, MONDAY, demand, machine, point, walked

TERMS = WalkTerms(interval_s=60.0, look_s=60.0)


def never(wanted: DayDemand, groups: int = 4) -> DayWalk:
    return walked(wanted, Never(), TERMS, groups=groups)


def test_a_load_below_capacity_is_served_at_once_by_all_groups() -> None:
    found = never(demand(120, 240))

    assert found.served.tolist() == [120, 240]
    assert found.group_rates.tolist() == [0.5, 1.0]
    assert not found.backlog.any()
    assert not found.late.any()


def test_an_overload_waits_its_turn_and_who_finds_a_queue_is_late_without_a_limit() -> None:
    # Four groups serve 4 requests/s each at most: 960 in a minute.
    found = never(demand(1_200, 480, 480))

    assert found.served.tolist() == [960, 720, 480]
    assert found.backlog.tolist() == [240, 0, 0]
    # The queue of 240 is gone when 240 more than the arrivals are served: in half a minute.
    assert found.late.tolist() == [1_200, 240, 0]


def test_who_waits_for_less_than_the_limit_is_in_time_and_then_finds_the_present_rate() -> None:
    # A group serves 240 a minute, so that the last of 300 waits for 15 s, and half of the next 120
    # find a queue that ends. At a capacity of 2.1/s prompts take about 0.1 s.
    curve = replace(CURVE, ttft_limit_s=10.1)
    assert curve.patience_s == pytest.approx(10.0, abs=0.02)
    too_long = (15.0 - curve.patience_s) / 15.0
    found = walked(demand(120, 300, 120), Fixed(serving_groups=1), TERMS, groups=1, curve=curve)
    assert found.served.tolist() == [120, 240, 180]
    assert found.late.tolist() == pytest.approx([0, 300 * too_long, 60 * too_long])
    # Those who wait for less in the second minute are as at the capacity, where 1 % miss the limit.
    on = replace(machine(1), curve=curve)
    result = DayResult(machine=on, walk=found, policy="", describes="")
    assert result.kept("both_share").tolist() == pytest.approx(
        [120, 300 * (1 - too_long) * 0.99, 120 - 60 * too_long]
    )


def test_groups_that_come_back_within_an_interval_do_not_serve_before() -> None:
    # From 180 s on a job saves for 10 s and two groups return in 60 s: two serve until 250 s, and
    # then four. 480 a minute are what two serve; of 600 a minute 100 come in the 10 s, find 80
    # served, and wait; the other 500 come while four serve 800, which end the queue of 20.
    plan = Planned(begins_s=MONDAY.timestamp(), look_s=60.0, serving=(2, 2, 2, 4, 4))
    found = walked(demand(60, 60, 60, 480, 600), plan, TERMS)
    assert found.times[4].parts == [(pytest.approx(10.0), 2), (pytest.approx(50.0), 4)]
    assert found.served.tolist() == pytest.approx([60, 60, 60, 480, 600])
    assert found.late.tolist() == pytest.approx([0, 0, 0, 0, 100 + 500 * 20 / 300])
    assert not found.backlog.any()


def test_a_night_hands_groups_over_and_counts_every_token_and_joule() -> None:
    result = DayResult(
        machine=machine(), walk=_fixed(demand(60, 60, 60), 2), policy="", describes=""
    )

    # Two groups leave at once: 30 s on the way, 20 s to start, then 130 s at 20 tokens/s.
    assert result.training_tokens == pytest.approx(130 * 20)
    assert result.training_chip_hours == pytest.approx(2 * 130 / 3_600)
    assert result.freed_chip_hours == pytest.approx(2 * 150 / 3_600)
    # Two serve from the first moment on: that is the peak.
    assert result.freed_share_of_peak == 0
    assert result.freed_share == pytest.approx(2 * 150 / (4 * 180))
    assert result.served_output_tokens == pytest.approx(180 * 20)
    assert result.slo_attainment == 1.0
    # By hand: of 144 chips four are in groups. Those that serve or leave draw 100 W and 50 for each
    # request/s of a group, which has 0.5.
    at_work_s = 2 * 180 + 2 * 30
    joules = (144 - 4) * 200.0 * 180 + at_work_s * 125.0 + 2 * 2_000 + 2 * 130 * 300.0
    assert float(result.chip_watts.sum()) * 60 == pytest.approx(joules)


def _fixed(wanted: DayDemand, serving: int) -> DayWalk:
    return walked(wanted, Fixed(serving_groups=serving), TERMS)


@given(
    arrivals=st.lists(st.integers(0, 2_000), min_size=1, max_size=20),
    serving=st.integers(1, 4),
)
def test_requests_are_conserved_and_no_more_are_late_than_came(
    arrivals: list[int], serving: int
) -> None:
    found = _fixed(demand(*arrivals), serving)

    assert found.served.sum() + found.backlog[-1] == pytest.approx(sum(arrivals))
    assert (found.late <= np.array(arrivals) + 1e-9).all()
    assert (found.backlog >= 0).all()
    assert (found.group_rates <= CURVE.saturated_per_s + 1e-9).all()


@pytest.mark.long
@settings(max_examples=20)
@given(arrivals=st.lists(st.integers(0, 900), min_size=1, max_size=15))
def test_more_serving_groups_never_serve_fewer_requests_in_time(arrivals: list[int]) -> None:
    kept = [
        DayResult(
            machine=machine(),
            walk=_fixed(demand(*arrivals), serving),
            policy="",
            describes="",
        ).slo_attainment
        for serving in (1, 2, 3, 4)
    ]
    assert kept == sorted(kept)


def test_the_same_seed_counts_the_same_requests_and_another_one_others() -> None:
    trace = sample_week()

    def counted(seed: int) -> list[int]:
        terms = WalkTerms(seed=seed)
        found = day_demand(trace, begin_s=86_400.0, length_s=3_600.0, terms=terms)
        return [int(n) for n in found.arrivals]

    assert counted(1) == counted(1)
    assert counted(1) != counted(2)


def test_counts_follow_the_rate_and_the_past_is_that_of_the_trace() -> None:
    trace = sample_week()
    found = day_demand(trace, begin_s=86_400.0, length_s=86_400.0, terms=WalkTerms())

    middles = 86_400.0 + np.arange(30.0, 86_400.0, 60.0)
    mean = trace.rates_at(middles).sum() * 60
    assert found.arrivals.sum() == pytest.approx(mean, abs=5 * np.sqrt(mean))
    assert len(found.past) == 288
    past_mean = trace.rates_at(np.arange(150.0, 86_400.0, 300.0)).mean()
    assert found.past.requests_per_s.mean() == pytest.approx(past_mean, rel=0.01)


def test_before_its_first_day_a_trace_is_taken_to_have_its_last_one_but_not_when_cold() -> None:
    trace = sample_week()
    terms = WalkTerms()
    cold = day_demand(trace, begin_s=0.0, length_s=7_200.0, terms=terms, cold=True)
    assert len(cold.past) == 0
    assert not cold.past_is_assumed

    warm = day_demand(trace, begin_s=0.0, length_s=7_200.0, terms=terms)
    assert warm.past_is_assumed
    assert len(warm.past) == 288
    last_day = trace.rates_at(6 * 86_400.0 + np.arange(150.0, 86_400.0, 300.0))
    chance = 5 * np.sqrt(last_day.mean() / 86_400.0)
    assert warm.past.requests_per_s.mean() == pytest.approx(last_day.mean(), abs=chance)
    assert not day_demand(trace, begin_s=86_400.0, length_s=7_200.0, terms=terms).past_is_assumed


def test_a_first_day_begins_where_the_one_that_is_assumed_before_it_ends() -> None:
    # The week begins on a Monday at 2.2 times the rate at which its Sunday ends.
    found = day_demand(sample_week(), begin_s=0.0, length_s=7_200.0, terms=WalkTerms())
    before = found.past.requests_per_s[-6:].mean()  # half an hour
    after = found.arrivals[:30].mean() / 60.0
    assert before < after < 1.8 * before


def test_the_same_requests_come_whether_a_day_before_is_assumed_or_not() -> None:
    warm, cold = (
        day_demand(sample_week(), begin_s=0.0, length_s=7_200.0, terms=WalkTerms(), cold=cold)
        for cold in (False, True)
    )
    assert warm.arrivals.tolist() == cold.arrivals.tolist()


def test_three_hours_do_not_repeat() -> None:
    # From the first hour's middle on 1 request/s rises to 5 an hour later, and is 1 before it.
    trace = DayTrace.hourly(
        np.array([3_600.0, 18_000.0, 36_000.0]), source="three hours", begins=MONDAY
    )
    found = day_demand(trace, begin_s=0.0, length_s=10_800.0, terms=WalkTerms())
    first_hour = found.arrivals[:60].sum()
    expected = 1_800 * 1 + 1_800 * 2
    assert first_hour == pytest.approx(expected, abs=5 * expected**0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Remembers(Policy):
    """A policy that writes down how much history it was shown."""

    name = "remembers"

    buckets: list[int] = field(default_factory=list)

    def decide(self, observed: Observation) -> Decision:
        self.buckets.append(len(observed.history))
        return Decision(serving_groups=observed.groups, reason="looks on")

    def describe(self) -> str:
        return self.name


def test_an_assumed_past_is_forgotten_after_a_day_and_a_true_one_is_kept() -> None:
    trace = sample_week()
    terms = WalkTerms(interval_s=600.0, look_s=600.0)

    def shown(begin_s: float) -> list[int]:
        policy = _Remembers()
        wanted = day_demand(trace, begin_s=begin_s, length_s=2 * 86_400.0, terms=terms)
        walked(wanted, policy, terms)
        return policy.buckets

    assumed, true = shown(0.0), shown(86_400.0)
    assert assumed[:144] == list(range(144, 288))
    assert assumed[144:] == list(range(144, 288))
    assert true == list(range(144, 432))


def test_a_part_that_the_trace_has_not_is_refused() -> None:
    with pytest.raises(ConfigError, match="168 hours"):
        day_demand(sample_week(), begin_s=0.0, length_s=8 * 86_400.0, terms=WalkTerms())


def test_demand_leaves_a_rate_where_tpot_ends_it() -> None:
    """Monday's rate is 1.15 times what Sunday's split of one group serves: none waits, TTFT is
    met, and TPOT is missed all at once.
    """
    at_once = replace(
        CURVE,
        points=(
            *(point(rate, 1.0) for rate in (1.0, 2.0)),
            *(point(rate, 0.0, ttft_share=1.0, tpot_share=0.0) for rate in (2.1, 2.4)),
        ),
    )
    sunday, monday, looks = 1.6, 2.3, 12
    past = DemandHistory(
        end_s=MONDAY.timestamp(), bucket_s=300.0, requests_per_s=np.full(2 * 288, sunday)
    )
    wanted = replace(demand(*[round(60 * monday)] * 5 * looks), past=past)
    found = walked(wanted, DemandPolicy(), WalkTerms(), curve=at_once)
    result = DayResult(
        machine=replace(machine(), curve=at_once), walk=found, policy="", describes=""
    )

    assert found.wanted[0] == 1
    assert not found.backlog.any()
    assert result.attainment("ttft_share") == 1.0
    assert result.kept("tpot_share")[:5].sum() == 0.0
    assert found.wanted[1:] == (2,) * (looks - 1)
    # It is back a minute later, and stays, although Sunday's split is the rule for six hours.
    assert result.kept("both_share")[6:] == pytest.approx(wanted.arrivals[6:])

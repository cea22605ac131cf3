from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from serving.policy.day_night.burst import Guard, burst_response_s
from serving.policy.day_night.history import F64, DemandHistory
from serving.policy.day_night.observation import Observation
from serving.policy.day_night.policy import Fixed, Never, Policy
from serving.policy.day_night.policy_text import parse_policy
from serving.policy.day_night.price import Price, PriceCurve, assumed_curve, read_curve
from serving.policy.day_night.quantile import QuantilePolicy
from serving.policy.day_night.schedule import SchedulePolicy, ScheduleWindow

DAY = 288
BUCKET_S = 300.0
FIRST_S = datetime(2024, 5, 13, tzinfo=UTC).timestamp()  # a Monday
SETTLED_S = 1e6


def day_rates(days: int, *, low: float = 5.0, high: float = 50.0) -> F64:
    """A day's sine from `low` at midnight to `high` at noon: [days * DAY]."""
    time = np.arange(days * DAY) / DAY
    rates: F64 = low + (high - low) * 0.5 * (1 - np.cos(2 * np.pi * time))
    return rates


def history(rates: F64) -> DemandHistory:
    end_s = FIRST_S + BUCKET_S * len(rates)
    return DemandHistory(end_s=end_s, bucket_s=BUCKET_S, requests_per_s=rates)


def observed(rates: F64, **more: object) -> Observation:
    """What holds after these rates: eight groups of 10/s each, all serve for long."""
    told = history(rates)
    seen = Observation(
        now_s=told.end_s,
        history=told,
        load_per_s=float(rates[-1]) if len(rates) else 0.0,
        groups=8,
        serving_groups=8,
        since_change_s=SETTLED_S,
        capacity_per_group_per_s=10.0,
        drain_s=120.0,
        restore_s=300.0,
    )
    return replace(seen, **more)  # type: ignore[arg-type]


def at(local: str, zone: str = "UTC", **more: object) -> Observation:
    """A quiet machine at a wall-clock time."""
    now_s = datetime.fromisoformat(local).replace(tzinfo=ZoneInfo(zone)).timestamp()
    return observed(np.full(2 * DAY, 12.0), now_s=now_s, **more)


POLICIES: dict[str, Policy] = {
    text: parse_policy(text)
    for text in (
        "schedule:00:00-24:00",
        "schedule:22:00-06:00;keep=3,headroom=0.25",
        "quantile",
        "quantile:0.8,headroom=0.3,dwell=10m",
        "price:assumed",
        "price:assumed;cheap=1.0,warm=0.0s",
    )
}

loads = st.floats(0, 100)
observations = st.builds(
    lambda rates, load, serving, since, queue, shares, must: observed(
        np.array(rates, dtype=np.float64).repeat(24),
        load_per_s=load,
        serving_groups=serving,
        since_change_s=since,
        queue=queue,
        ttft_attainment=shares[0],
        tpot_attainment=shares[1],
        groups_min=must,
    ),
    st.lists(loads, min_size=0, max_size=30),
    loads,
    st.integers(0, 8),
    st.floats(0, 4_000),
    st.integers(0, 500),
    st.tuples(*[st.none() | st.floats(0, 1)] * 2),
    st.integers(0, 8),
)


def test_never_lends_and_a_fixed_split_stays() -> None:
    quiet = observed(np.zeros(DAY), groups_min=2)

    assert Never().decide(quiet).serving_groups == 8
    splits = {split: Fixed(serving_groups=split).decide(quiet) for split in (0, 5, 99)}
    assert {split: said.serving_groups for split, said in splits.items()} == {0: 2, 5: 5, 99: 8}


@pytest.mark.long
def test_a_quantile_lends_at_night_and_takes_back_before_the_morning() -> None:
    rates = day_rates(4)
    policy = QuantilePolicy()
    serving: list[int] = []
    for end in range(3 * DAY, 3 * DAY + DAY):
        seen = observed(rates[:end], serving_groups=serving[-1] if serving else 8)
        serving.append(policy.decide(seen).serving_groups)

    needs = np.ceil(rates[3 * DAY :] / 10.0)
    assert (np.array(serving) >= needs).all()
    # A group that is called takes 300 s, one bucket: it must be called a bucket ahead.
    assert (np.array(serving[:-1]) >= needs[1:]).all()
    assert min(serving) == 1
    assert np.mean(serving) < 5.0


def step_at_eight(buckets: int, **more: object) -> Observation:
    """Four days with 5/s until eight o'clock and 45/s from then on, seen so many buckets before
    the fifth day's eight o'clock.
    """
    day = np.where(np.arange(DAY) < 96, 5.0, 45.0)
    return observed(np.tile(day, 5)[: 4 * DAY + 96 - buckets], **more)


def test_a_quantile_calls_back_as_early_as_coming_back_takes() -> None:
    lent: dict[str, object] = {"serving_groups": 1, "restore_s": 900.0}
    policy = QuantilePolicy()

    # 900 s of coming back and a bucket until the next look: four buckets.
    assert policy.decide(step_at_eight(3, **lent)).serving_groups == 5
    assert policy.decide(step_at_eight(4, **lent)).serving_groups == 1
    late = step_at_eight(5, **lent)  # a history that ended two buckets ago
    assert policy.decide(replace(late, now_s=late.now_s + 600.0)).serving_groups == 5


def test_a_quantile_lends_only_what_can_stay_away_for_a_whole_dwell() -> None:
    policy = QuantilePolicy(guard=Guard())

    # 300 s back, 300 s until the next look, 120 s out and 1,800 s of dwell: nine buckets.
    assert policy.decide(step_at_eight(8)).serving_groups == 5
    assert policy.decide(step_at_eight(9)).serving_groups == 1


def test_a_quantile_lends_nothing_before_it_saw_a_day() -> None:
    quiet = np.full(DAY - 1, 1.0)

    assert QuantilePolicy().decide(observed(quiet)).serving_groups == 8
    assert QuantilePolicy().decide(observed(np.append(quiet, 1.0))).serving_groups == 1


def test_a_burst_at_night_takes_chips_back_at_once() -> None:
    quiet = np.full(2 * DAY, 5.0)
    lent = observed(quiet, serving_groups=1, since_change_s=0.0)
    careful = QuantilePolicy(guard=Guard())
    everyone = (careful, parse_policy("schedule:00:00-24:00"), parse_policy("price:assumed"))

    for policy in everyone:
        burst = replace(lent, load_per_s=38.0)  # 41.8/s with the headroom
        assert policy.decide(burst).serving_groups == 5
        waiting = replace(lent, queue=300)  # 300 in 30 s are 10/s more, 16.5/s with the headroom
        assert policy.decide(waiting).serving_groups == 2
        assert policy.decide(lent).serving_groups == 1
    assert burst_response_s(look_s=300.0, restore_s=45.0) == 345.0


@pytest.mark.parametrize("late", ["ttft_attainment", "tpot_attainment"])
def test_a_missed_limit_takes_back_one_group_at_a_time(late: str) -> None:
    quiet = np.full(2 * DAY, 5.0)
    missed = observed(quiet, serving_groups=3, **{late: 0.98})
    just_called = replace(missed, since_change_s=299.0)  # what comes back is not there yet

    assert QuantilePolicy().decide(missed).serving_groups == 4
    assert QuantilePolicy().decide(just_called).serving_groups == 3
    assert QuantilePolicy().decide(replace(missed, serving_groups=8)).serving_groups == 8
    assert QuantilePolicy().decide(replace(missed, **{late: 0.99})).serving_groups == 1
    name = late.partition("_")[0].upper()
    assert QuantilePolicy().decide(missed).reason == f"{name} met by 98.0%, below 99.0%"


@pytest.mark.parametrize("text", POLICIES)
@given(seen=observations)
def test_the_present_load_is_always_served(text: str, seen: Observation) -> None:
    serving = POLICIES[text].decide(seen).serving_groups

    assert seen.groups_min <= serving <= seen.groups
    assert serving >= min(seen.load_per_s / seen.capacity_per_group_per_s - 1e-6, seen.groups)


@pytest.mark.parametrize("text", POLICIES)
@given(seen=observations, share=st.floats(0, 0.999))
def test_no_group_leaves_within_the_dwell(text: str, seen: Observation, share: float) -> None:
    policy = POLICIES[text]
    assert isinstance(policy, QuantilePolicy | SchedulePolicy | Price)
    early = replace(seen, since_change_s=share * policy.guard.dwell_s)

    assert policy.decide(early).serving_groups >= early.serving_groups


@pytest.mark.parametrize("text", POLICIES)
@given(seen=observations, more=st.floats(0, 50))
def test_more_load_never_keeps_fewer_groups(text: str, seen: Observation, more: float) -> None:
    busier = replace(seen, load_per_s=seen.load_per_s + more, queue=seen.queue + int(more))
    policy = POLICIES[text]

    assert policy.decide(busier).serving_groups >= policy.decide(seen).serving_groups


@pytest.mark.parametrize("text", POLICIES)
@given(seen=observations, factor=st.floats(1, 20))
def test_a_quantile_that_is_higher_throughout_keeps_no_fewer_groups(
    text: str, seen: Observation, factor: float
) -> None:
    told = seen.history
    higher = replace(
        seen,
        load_per_s=seen.load_per_s * factor,
        history=replace(told, requests_per_s=told.requests_per_s * factor, pace=factor),
    )
    policy = POLICIES[text]

    assert policy.decide(higher).serving_groups >= policy.decide(seen).serving_groups


@given(seen=observations)
def test_the_same_observation_gives_the_same_decision(seen: Observation) -> None:
    for text, policy in POLICIES.items():
        assert policy.decide(seen) == parse_policy(text).decide(seen)


def test_a_schedule_lends_between_its_hours_and_calls_back_in_time() -> None:
    policy = parse_policy("schedule:22:00-06:00@Europe/Berlin")
    lent = {"serving_groups": 2}  # 12/s with the headroom need two groups

    for local, serving in {
        "2024-05-13T21:59": 8,
        "2024-05-13T22:00": 2,
        "2024-05-14T03:00": 2,
        "2024-05-14T05:54": 2,
        "2024-05-14T05:55": 8,  # 300 s before six
        "2024-05-14T12:00": 8,
    }.items():
        assert policy.decide(at(local, "Europe/Berlin", **lent)).serving_groups == serving, local


@pytest.mark.parametrize(
    ("night", "hours"),
    [("2024-05-13", 8), ("2024-03-30", 7), ("2024-10-26", 9)],  # clocks change on the next morning
)
def test_a_night_has_the_hours_that_the_wall_clock_gives_it(night: str, hours: int) -> None:
    policy = parse_policy("schedule:22:00-06:00@Europe/Berlin")
    assert isinstance(policy, SchedulePolicy)
    noon = datetime.fromisoformat(f"{night}T12:00").replace(tzinfo=ZoneInfo("Europe/Berlin"))
    minutes = [noon.timestamp() + 60.0 * minute for minute in range(24 * 60)]

    assert sum(policy.inside(now_s) for now_s in minutes) == hours * 60


def test_windows_start_on_their_days_and_end_on_the_next() -> None:
    window = ScheduleWindow.parse("fri-sun/23:00-01:00")

    assert str(window) == "fri+sat+sun/23:00-01:00"
    assert window.holds(4, 23 * 60)
    assert not window.holds(4, 30)  # the night before was Thursday's
    assert window.holds(5, 30)
    assert window.holds(0, 59)  # Sunday's, on Monday
    assert not window.holds(0, 60)
    assert ScheduleWindow.parse("sun-mon/10:00-11:00").days == (0, 6)


@given(
    start=st.integers(0, 1439),
    end=st.integers(0, 1440),
    days=st.sets(st.integers(0, 6), min_size=1),
)
def test_a_window_lasts_as_long_as_it_says(start: int, end: int, days: set[int]) -> None:
    if start == end:
        return
    window = ScheduleWindow(start_minute=start, end_minute=end, days=tuple(sorted(days)))
    inside = sum(window.holds(day, minute) for day in range(7) for minute in range(1440))

    assert inside == len(days) * ((end - start) if end > start else (end - start) % 1440)


def test_price_trains_only_when_power_is_cheap() -> None:
    policy = parse_policy("price:assumed")  # cheap on working days before 8 and from 20 on

    assert policy.decide(at("2024-05-13T03:00", "Europe/Berlin")).serving_groups == 2
    assert policy.decide(at("2024-05-13T12:00", "Europe/Berlin")).serving_groups == 8
    assert policy.decide(at("2024-05-18T12:00", "Europe/Berlin")).serving_groups == 2  # a Saturday
    # It will be dear within the way out and the dwell: nobody leaves, nobody comes back yet.
    soon_dear = at("2024-05-13T07:40", "Europe/Berlin", serving_groups=5)
    assert policy.decide(soon_dear).serving_groups == 5
    assert policy.decide(replace(soon_dear, load_per_s=60.0)).serving_groups == 7


def test_the_assumed_prices_average_what_was_published() -> None:
    prices = assumed_curve().prices

    assert len(prices) == 168
    assert np.mean(prices) == pytest.approx(79.6, abs=0.05)  # the year's base price


def test_prices_are_read_from_a_file(tmp_path: Path) -> None:
    rows = [f"{hour},{(hour * 7) % 24 - 3}.5,EUR" for hour in range(24)]
    path = tmp_path / "prices.csv"
    path.write_text("hour,price,unit\n" + "\n".join(rows) + "\n")
    curve = read_curve(str(path), "Europe/Berlin")
    local = datetime(2024, 5, 13, 5, 30, tzinfo=ZoneInfo("Europe/Berlin"))

    assert curve.at(local.timestamp()) == 35 % 24 - 3 + 0.5
    assert curve.threshold(0.25) == 2.5  # six of 24 hours: -2.5 to 2.5
    assert curve.threshold(1.0) == 20.5
    text = f"price:{path}@Europe/Berlin;cheap=0.25"
    assert str(parse_policy(text)) == text

    path.write_text("hour,price\n0,1.0\n2,1.0\n")
    with pytest.raises(ConfigError, match=r"line 3: expected columns hour and price, here hour 1"):
        read_curve(str(path))
    path.write_text("time,price\n0,1.0\n")
    with pytest.raises(ConfigError, match=r"line 2: expected columns hour and price"):
        read_curve(str(path))
    path.write_text("hour,price\n0,1.0\n")
    with pytest.raises(ConfigError, match=r"1 hours: expected 24 hours"):
        read_curve(str(path))


def test_a_curve_refuses_prices_that_are_none() -> None:
    with pytest.raises(ConfigError, match="finite prices"):
        PriceCurve(name="x", source="x", prices=(float("nan"),) * 24)

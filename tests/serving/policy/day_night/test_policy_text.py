import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from serving.policy.day_night.burst import Guard
from serving.policy.day_night.demand import DemandPolicy
from serving.policy.day_night.erlang import ErlangPolicy
from serving.policy.day_night.options import duration_s, duration_text
from serving.policy.day_night.policy import Fixed, Never, Policy
from serving.policy.day_night.policy_text import parse_policy
from serving.policy.day_night.price import Price, assumed_curve
from serving.policy.day_night.quantile import QuantilePolicy
from serving.policy.day_night.schedule import SchedulePolicy, ScheduleWindow

zones = st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata"])
times = st.floats(0, 1e7) | st.integers(0, 10**6).map(lambda minutes: 60.0 * minutes)
guards = st.builds(Guard, headroom=st.floats(0, 10), dwell_s=times, target=st.floats(0, 1))
windows = st.builds(
    ScheduleWindow,
    start_minute=st.integers(0, 719),
    end_minute=st.integers(720, 1440),
    days=st.sets(st.integers(0, 6), min_size=1).map(lambda days: tuple(sorted(days))),
)
between = st.floats(0.001, 0.999)
policies: st.SearchStrategy[Policy] = st.one_of(
    st.just(Never()),
    st.builds(Fixed, serving_groups=st.integers(0, 999)),
    st.builds(
        SchedulePolicy,
        windows=st.lists(windows, min_size=1, max_size=3).map(tuple),
        zone=zones,
        keep=st.integers(0, 99),
        guard=guards,
    ),
    st.builds(DemandPolicy, guard=guards, confidence=between, careful=between, warm_s=times),
    st.builds(QuantilePolicy, guard=guards, confidence=between, warm_s=times),
    st.builds(ErlangPolicy, guard=guards, waiting=between),
    st.builds(
        Price,
        curve=zones.map(assumed_curve),
        cheap=between,
        confidence=between,
        warm_s=times,
        guard=guards,
    ),
)


@given(policy=policies)
def test_the_text_of_a_policy_makes_it_again(policy: Policy) -> None:
    assert parse_policy(str(policy)) == policy


@pytest.mark.parametrize("before", ["demand:", "quantile:0.9,", "schedule:22:00-06:00;"])
def test_an_option_s_old_name_works_with_a_warning(before: str) -> None:
    with pytest.warns(FutureWarning, match="policy option ttft_target is now target; the old name"):
        old = parse_policy(f"{before}ttft_target=0.98")
    assert old == parse_policy(f"{before}target=0.98")


@given(policy=policies)
def test_a_policy_says_what_it_does_in_one_line(policy: Policy) -> None:
    said = policy.describe()

    assert said.startswith(policy.name)
    assert "\n" not in said


@given(seconds=times)
def test_a_time_is_written_so_that_it_reads_the_same(seconds: float) -> None:
    assert duration_s(duration_text(seconds), field="dwell") == seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90.0), ("90s", 90.0), ("30m", 1_800.0), ("1.5h", 5_400.0), (" 2d ", 172_800.0)],
)
def test_times_are_written_as_people_do(text: str, seconds: float) -> None:
    assert duration_s(text, field="dwell") == seconds


def test_options_are_read_and_defaults_are_not_written() -> None:
    policy = parse_policy("demand:headroom=0.3, dwell=45m,warm=1d")

    assert policy == DemandPolicy(guard=Guard(headroom=0.3, dwell_s=2_700.0))
    assert str(policy) == "demand:headroom=0.3,dwell=45m"
    assert str(parse_policy("schedule: 22:00-06:00")) == "schedule:22:00-06:00@UTC"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "policy="),
        ("sometimes", "policy=sometimes: expected never, "),
        ("never:1", "policy="),
        ("fixed:", "policy="),
        ("fixed:-1", "policy="),
        ("fixed:²", "policy="),
        ("schedule:", "policy="),
        ("schedule:22-6", "window=22-6: "),
        ("schedule:24:30-06:00", "window=24:30-06:00: "),
        ("schedule:22:61-06:00", "window="),
        ("schedule:22:00-22:00", "window=22:00-22:00: "),
        ("schedule:22:00-25:00", "window=22:00-25:00: "),
        ("schedule:mon-day/22:00-06:00", "days=mon-day: "),
        ("schedule:22:00-06:00@Mars/Olympus", "time zone=Mars/Olympus: "),
        ("schedule:22:00-06:00@Europe", "time zone=Europe: "),
        ("schedule:22:00-06:00@../UTC", "time zone=../UTC: "),
        ("schedule:22:00-06:00@", "time zone=: "),
        ("schedule:22:00-06:00;keep=some", "keep=some: expected a whole number"),
        ("schedule:22:00-06:00;keep=-1", "keep=-1: "),
        ("demand:depth=1", "policy option=depth=1: "),
        ("demand:headroom", "policy option=headroom: "),
        ("demand:headroom=nan", "headroom=nan: "),
        ("demand:headroom=-0.1", "headroom=-0.1: "),
        ("demand:confidence=1", "confidence=1.0: "),
        ("demand:careful=1.1", "careful=1.1: expected a share, 0 to 1"),
        ("demand:dwell=soon", "dwell=soon: expected a time such as"),
        ("demand:dwell=-5m", "dwell_s=-300.0: "),
        ("demand:target=99", "target=99.0: "),
        ("price:", "policy="),
        ("price:@UTC", "price=@UTC: "),
        ("price:no/such/file", "price=no/such/file "),
        ("price:assumed;cheap=0", "cheap=0.0: "),
        ("quantile:high", "quantile=high: expected a share such as 0.99"),
        ("quantile:1.0", "confidence=1.0: expected between 0 and 1"),
        ("quantile:0.9,depth=1", "policy option=depth=1: "),
        ("erlang:waiting=0", "waiting=0.0: expected a share"),
        ("erlang:0.1", "policy option=0.1: "),
        ("carbon:", "policy="),
        ("carbon:assumed", "gco2_per_kwh=assumed (No such file"),
        ("carbon:@UTC", "carbon=@UTC: expected a CSV file with columns hour and gco2_per_kwh"),
        ("python:", "policy="),
        ("python:mine", "python=mine: expected FILE.py:FUNCTION"),
        ("python:mine.py:", "python=mine.py:: expected FILE.py:FUNCTION"),
        ("python:no/such.py:mine", "python=no/such.py: expected a Python file that runs (No such"),
        ("oracle", "policy=oracle: expected a policy that need not know the day"),
        ("oracle:headroom=0", "policy=oracle:headroom=0: expected a policy that need not know"),
    ],
)
def test_a_text_that_is_no_policy_is_refused_in_one_line(text: str, named: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_policy(text)

    assert str(refused.value).startswith(named)
    assert "\n" not in str(refused.value)

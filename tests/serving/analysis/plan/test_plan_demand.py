"""A plan's traffic at its peak, and what a replica gets of it."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from loadgen.workloads.length_pairs import IndependentLengths
from loadgen.workloads.lengths import Uniform, lognormal_of_median
from loadgen.workloads.traffic import Traffic
from serving.analysis.plan.plan_demand import (
    COPIES_SPREAD_S,
    RateDemand,
    Share,
    TraceDemand,
    busiest_window,
    multiplied,
)

LENGTHS = IndependentLengths(
    prompt=lognormal_of_median(median=100, sigma=0.5), output=Uniform(least=20, most=20)
)


def traffic(*requests: tuple[float, int, int]) -> Traffic:
    """Requests given as arrival, prompt and output."""
    arrival_s, prompt, output = zip(*requests, strict=True)
    return Traffic(
        arrival_s=np.array(arrival_s, dtype=np.float64),
        prompt_tokens=np.array(prompt, dtype=np.int64),
        output_tokens=np.array(output, dtype=np.int64),
    )


def rate_demand(rate_per_s: float = 50.0, context_tokens: int = 4_096) -> RateDemand:
    return RateDemand(
        rate_per_s=rate_per_s,
        lengths=LENGTHS,
        context_tokens=context_tokens,
        lengths_in_words="by hand",
    )


def trace_demand(requests: int = 3_000, *, window_s: float = 60.0) -> TraceDemand:
    """Six minutes, the fourth of which is three times as busy."""
    rng = np.random.default_rng(7)
    minutes = rng.choice(6, requests, p=np.array([1, 1, 1, 3, 1, 1]) / 8)
    arrival_s = np.sort(minutes * 60 + rng.uniform(0, 60, requests))
    tokens = np.full(requests, 100, dtype=np.int64)
    whole = Traffic(arrival_s=arrival_s, prompt_tokens=tokens, output_tokens=tokens)
    return TraceDemand(traffic=whole, window_s=window_s, source="made up")


def rate_of(share: Share) -> float:
    return int(share.judged.sum()) / (share.end_s - share.begin_s)


def test_the_busiest_window_has_the_most_tokens_not_the_most_requests() -> None:
    whole = traffic((0, 1, 1), (1, 1, 1), (2, 1, 1), (10, 50, 50), (11, 10, 1), (20, 90, 20))

    assert busiest_window(whole, 3.0) == (10.0, 13.0)
    assert busiest_window(whole, 0.5) == (20.0, 20.5)


def test_a_window_longer_than_the_traffic_is_all_of_it() -> None:
    whole = traffic((0, 1, 1), (4, 1, 1))
    begin_s, end_s = busiest_window(whole, 10.0)

    assert begin_s == 0.0
    assert end_s == pytest.approx(4.0)
    assert len(whole.window(begin_s, end_s)) == 2


@given(
    arrivals=st.lists(st.integers(0, 60), min_size=2, max_size=25),
    window=st.integers(1, 20),
    tokens=st.data(),
)
def test_no_window_that_begins_at_a_request_has_more(
    arrivals: list[int], window: int, tokens: st.DataObject
) -> None:
    arrivals = sorted(arrivals)
    sizes = tokens.draw(st.lists(st.integers(1, 9), min_size=len(arrivals), max_size=len(arrivals)))
    whole = traffic(*((float(at), size, 1) for at, size in zip(arrivals, sizes, strict=True)))
    begin_s, end_s = busiest_window(whole, float(window))

    def within(begin: float, end: float) -> int:
        pairs = zip(arrivals, sizes, strict=True)
        return sum(size + 1 for at, size in pairs if begin <= at < end)

    if arrivals[-1] < window:
        assert within(begin_s, end_s) == within(0, 100)
    else:
        assert end_s - begin_s == window
        assert within(begin_s, end_s) == max(within(at, at + window) for at in arrivals)


def test_a_replica_of_ten_gets_a_tenth_of_the_rate() -> None:
    (share,) = rate_demand().shares(10, judged=4_000, lead_s=8.0, seed=3)

    assert int(share.judged.sum()) == 4_000
    assert rate_of(share) == pytest.approx(5.0, rel=0.05)
    around = (~share.judged).sum() / 2
    assert around == 40  # 8 s of 5 requests/s
    assert share.warmup_s == pytest.approx(8.0, rel=0.5)
    assert share.judged[40]
    assert share.traffic.arrival_s[40] == share.judged_s[0]


def test_what_a_replica_of_a_rate_gets_depends_on_the_seed_alone() -> None:
    first, again, other = (
        rate_demand().shares(3, judged=50, lead_s=1.0, seed=seed)[0] for seed in (1, 1, 2)
    )

    assert first.traffic.arrival_s.tolist() == again.traffic.arrival_s.tolist()
    assert first.traffic.arrival_s.tolist() != other.traffic.arrival_s.tolist()


def test_requests_beyond_the_context_are_not_drawn() -> None:
    peak = rate_demand(context_tokens=120).peak

    assert len(peak) > 1_000
    assert int((peak.prompt_tokens + peak.output_tokens).max()) <= 120
    with pytest.raises(ConfigError, match="context of 20 tokens"):
        rate_demand(context_tokens=20)


def test_the_peak_of_a_trace_is_its_busiest_minute() -> None:
    demand = trace_demand()

    assert demand.peak_rate_per_s == pytest.approx(3_000 * 3 / 8 / 60, rel=0.1)
    assert "busiest 60 s: from 17" in demand.in_words() or "from 18" in demand.in_words()


def test_the_shares_of_all_replicas_are_the_whole_window() -> None:
    demand = trace_demand()
    shares = demand.shares(4, judged=len(demand.peak), lead_s=20.0, seed=5)

    assert len(shares) == 4
    assert sum(int(share.judged.sum()) for share in shares) == len(demand.peak)
    arrivals = np.sort(np.concatenate([share.traffic.arrival_s for share in shares]))
    begin_s, end_s = shares[0].begin_s - 20.0, shares[0].end_s + 20.0
    assert arrivals.tolist() == demand.traffic.window(begin_s, end_s).arrival_s.tolist()
    for share in shares:
        begin_s, end_s = share.judged_s
        at = share.traffic.arrival_s
        assert (share.judged == ((at >= begin_s) & (at < end_s))).all()


def test_one_replica_that_has_enough_speaks_for_all_in_a_shorter_window() -> None:
    demand = trace_demand()
    (share,) = demand.shares(2, judged=100, lead_s=20.0, seed=5)

    assert share.judged.sum() == pytest.approx(100, rel=0.5)
    assert share.end_s - share.begin_s < 15
    assert rate_of(share) == pytest.approx(demand.peak_rate_per_s / 2, rel=0.5)
    assert share.warmup_s == 20.0


def test_a_warm_up_is_no_longer_than_the_traffic_before_the_window() -> None:
    demand = trace_demand()
    begin_s = demand.shares(1, judged=2_000, lead_s=1.0, seed=0)[0].begin_s
    (share,) = demand.shares(1, judged=2_000, lead_s=1e6, seed=0)

    assert share.warmup_s == begin_s
    assert len(share.traffic) == 3_000


@given(factor=st.floats(0.1, 6.0), seed=st.integers(0, 99))
def test_multiplied_traffic_has_so_many_requests_at_nearly_the_same_times(
    factor: float, seed: int
) -> None:
    whole = trace_demand().traffic
    many = multiplied(whole, factor, seed=seed)

    drawn = factor % 1.0  # the share of the requests that are in the fractional part
    deviation = math.sqrt(len(whole) * drawn * (1 - drawn))
    assert len(many) == pytest.approx(factor * len(whole), abs=6 * deviation + 1)
    assert many.arrival_s[-1] <= whole.arrival_s[-1] + COPIES_SPREAD_S
    if factor >= 1:
        kept = np.isin(whole.arrival_s, many.arrival_s)
        assert kept.all(), "every recorded request is still there"


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf"), 1e6])
def test_a_wild_factor_is_refused(factor: float) -> None:
    with pytest.raises(ConfigError, match="scale"):
        multiplied(trace_demand().traffic, factor, seed=0)


def test_what_has_no_rate_is_refused() -> None:
    with pytest.raises(ConfigError, match="two or more times"):
        TraceDemand(traffic=traffic((0, 1, 1), (0, 1, 1)), window_s=5.0, source="a file")
    with pytest.raises(ConfigError, match="window"):
        trace_demand(window_s=0.0)
    with pytest.raises(ConfigError, match="rate"):
        rate_demand(rate_per_s=0.0)

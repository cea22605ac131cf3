from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from loadgen.arrivals.arrival_spec import Gaps
from loadgen.arrivals.gaps import RenewalArrivals
from loadgen.arrivals.rate_shape import parse_rate
from loadgen.arrivals.schedule import ArrivalSchedule, by_rate, recorded
from tests.loadgen.arrivals.rate_at import rate_at

S = 1_000_000_000


def schedule(
    rate: str,
    gaps: str = "constant",
    *,
    sessions: int | None = None,
    duration_s: float | None = None,
    seed: int = 4,
    burstiness: float = 1.0,
) -> ArrivalSchedule:
    arrivals = RenewalArrivals(cast(Gaps, gaps), burstiness=burstiness, seed=seed)
    return by_rate(arrivals, parse_rate(rate), sessions=sessions, duration_s=duration_s)


EVEN = schedule("1", sessions=100)
REPLAY = recorded([7 * S, 7 * S, 10 * S])
FAST_REPLAY = recorded([7 * S, 7 * S, 10 * S], speedup=2.0)


@pytest.mark.parametrize(
    ("pacer", "elapsed_ns", "sent", "in_flight", "due_ns"),
    [
        # 1 session a second, nothing sent yet: the first is due at once
        (EVEN, 0, 0, 0, 0),
        # 1 a second, 10 sent in 9.5 s: the eleventh is due at 10 s
        (EVEN, 9_500_000_000, 10, 3, 10 * S),
        # 1 a second, 10 sent, but 60 s have passed: it was due at 10 s, and is late
        (EVEN, 60 * S, 10, 0, 10 * S),
        # 1 a second, however many are in flight: an open loop does not wait for replies
        (EVEN, 10 * S, 10, 10_000, 10 * S),
        # recorded 7 s, 7 s and 10 s after midnight: the first two at once, the third 3 s later
        (REPLAY, 0, 0, 0, 0),
        (REPLAY, 0, 1, 1, 0),
        (REPLAY, 0, 2, 2, 3 * S),
        # the same, twice as fast
        (FAST_REPLAY, 0, 2, 2, 1_500_000_000),
    ],
)
def test_an_open_loop_says_when_the_next_session_is_due(
    pacer: ArrivalSchedule, elapsed_ns: int, sent: int, in_flight: int, due_ns: int
) -> None:
    assert pacer.pace(elapsed_ns=elapsed_ns, sent=sent, in_flight=in_flight) == due_ns


def test_a_ramp_with_even_gaps_has_the_times_found_by_hand() -> None:
    # The rate is t / 2 and its sum t^2 / 4: session i is due at 2 sqrt(i). In 10 s come 25.
    due_ns = schedule("ramp:0-5/10s", duration_s=10.0).due_ns

    assert due_ns.size == 25
    assert np.allclose(due_ns, 2e9 * np.sqrt(np.arange(25)), atol=1)


@pytest.mark.long
def test_a_constant_rate_does_not_drift_over_a_million_sessions() -> None:
    due_ns = schedule("3", sessions=1_000_001).due_ns

    assert due_ns[3] == S
    assert due_ns[-1] == round(1_000_000 / 3 * 1e9)


def test_within_a_duration_come_as_many_as_the_rate_asks_for() -> None:
    assert schedule("4", duration_s=60.0).sessions == 240
    assert schedule("4", duration_s=60.0, sessions=100).sessions == 100
    assert schedule("4", duration_s=10.0, sessions=100).sessions == 40


def test_a_rate_that_ends_at_zero_has_no_more_sessions_than_it_expects() -> None:
    assert schedule("ramp:10-0/10s", sessions=1_000).sessions == 50


@pytest.mark.parametrize("rate", ["30", "sine:30,30,20s", "series:0s=0,50s=60,60s=0,70s=40"])
def test_time_rescaled_by_the_sum_of_its_rate_is_again_the_unit_process(rate: str) -> None:
    # Papangelou's theorem: the reference is scipy's exponential, whatever the rate's shape.
    due_s = schedule(rate, "poisson", duration_s=300.0).due_ns / 1e9

    gaps = np.diff(parse_rate(rate).cumulative(due_s))

    assert stats.kstest(gaps, stats.expon.cdf).pvalue > 0.001


def test_a_poisson_process_of_a_changing_rate_counts_like_one_made_by_thinning() -> None:
    """Lewis and Shedler: draw at the highest rate, keep each with the chance rate / highest."""
    chance = np.random.default_rng(8)
    shape = parse_rate("sine:40,30,50s")
    tried = np.cumsum(chance.exponential(1 / 70, size=100_000))
    kept = tried[chance.uniform(size=tried.size) < rate_at(shape, tried) / 70]

    found = schedule("sine:40,30,50s", "poisson", duration_s=1_000.0).due_ns / 1e9
    counts, thinned = (
        np.histogram(times % 50, bins=25, range=(0, 50))[0] for times in (found, kept[kept < 1_000])
    )

    # Poisson counts of about 1,600 differ by less than 5 deviations of their difference.
    assert (abs(counts - thinned) < 5 * np.sqrt(counts + thinned)).all()
    assert counts.max() > 4 * counts.min()


@given(
    rate=st.sampled_from(["0.5", "80", "sine:4,4,7s", "ramp:0-20/30s", "series:0s=1,9s=0,30s=5"]),
    gaps=st.sampled_from(["constant", "poisson", "gamma"]),
    seed=st.integers(0, 2**31),
    few=st.integers(0, 40),
    more=st.integers(0, 40),
)
def test_the_first_sessions_are_due_at_the_same_times_however_many_follow(
    rate: str, gaps: str, seed: int, few: int, more: int
) -> None:
    short = schedule(rate, gaps, sessions=few, seed=seed, burstiness=0.3).due_ns
    long = schedule(rate, gaps, sessions=few + more, seed=seed, burstiness=0.3).due_ns

    assert short.tolist() == long[:few].tolist()


@given(sessions=st.integers(0, 60), workers=st.integers(1, 7), seed=st.integers(0, 99))
def test_the_parts_of_all_workers_are_the_whole(sessions: int, workers: int, seed: int) -> None:
    whole = schedule("5", "poisson", sessions=sessions, seed=seed)

    parts = [whole.part(worker, workers) for worker in range(workers)]

    assert [parts[i % workers].due_ns[i // workers] for i in range(sessions)] == list(whole.due_ns)
    assert sum(part.sessions or 0 for part in parts) == sessions


@given(
    gaps=st.lists(st.integers(0, 10**12), min_size=1, max_size=30),
    start=st.integers(0, 10**15),
    speedup=st.floats(0.01, 100),
)
def test_a_replay_keeps_the_order_and_scales_the_whole(
    gaps: list[int], start: int, speedup: float
) -> None:
    arrivals = (start + np.cumsum(gaps)).tolist()
    due_ns = recorded(arrivals, speedup=speedup).due_ns

    assert due_ns[0] == 0
    assert (np.diff(due_ns) >= 0).all()
    assert due_ns[-1] == pytest.approx((arrivals[-1] - arrivals[0]) / speedup, abs=1)


def test_a_replay_is_cut_where_its_duration_in_the_runs_own_time_is_over() -> None:
    assert recorded([0, 4 * S, 10 * S], speedup=2.0, duration_s=5.0).due_ns.tolist() == [0, 2 * S]


@pytest.mark.parametrize(
    "due_ns", [np.array([1, 0]), np.array([-1]), np.array([0.5]), np.zeros((2, 2), dtype=np.int64)]
)
def test_a_schedule_out_of_order_or_of_another_shape_is_refused(due_ns: np.ndarray) -> None:
    with pytest.raises(ValueError, match="due"):
        ArrivalSchedule(due_ns=due_ns)

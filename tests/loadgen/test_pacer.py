import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.pacer import ClosedLoop, Pacer, Schedule, constant_rate, poisson, recorded

S = 1_000_000_000
EVEN = constant_rate(100, rate_per_s=1.0)
REPLAY = recorded([7 * S, 7 * S, 10 * S], speedup=1.0)
FAST_REPLAY = recorded([7 * S, 7 * S, 10 * S], speedup=2.0)
PAIR = ClosedLoop(concurrency=2)


@pytest.mark.parametrize(
    ("pacer", "elapsed_ns", "sent", "in_flight", "due_ns"),
    [
        # 1 request a second, nothing sent yet: the first is due at once
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
        # two at a time: room for the first and the second, now
        (PAIR, 0, 0, 0, 0),
        (PAIR, 5, 1, 1, 5),
        # two at a time, both under way: not before one has ended
        (PAIR, 5, 2, 2, None),
        # two at a time, one has ended: now
        (PAIR, 9 * S, 2, 1, 9 * S),
    ],
)
def test_a_pacer_says_when_the_next_request_is_due(
    pacer: Pacer, elapsed_ns: int, sent: int, in_flight: int, due_ns: int | None
) -> None:
    assert pacer.pace(elapsed_ns=elapsed_ns, sent=sent, in_flight=in_flight) == due_ns


def test_a_constant_rate_does_not_drift_over_a_million_requests() -> None:
    schedule = constant_rate(1_000_001, rate_per_s=3.0)

    assert schedule.due_ns[3] == S
    assert schedule.due_ns[-1] == round(1_000_000 / 3 * 1e9)


def test_poisson_gaps_have_the_mean_and_the_spread_of_the_exponential() -> None:
    gaps_s = np.diff(poisson(20_001, rate_per_s=50.0, seed=4).due_ns) / 1e9

    # Standard errors for 20,000 exponential gaps: 0.7 % of the mean, 1 % of the deviation.
    assert np.isclose(gaps_s.mean(), 0.02, rtol=0.03)
    assert np.isclose(gaps_s.std(), 0.02, rtol=0.04)


def test_one_seed_gives_one_poisson_schedule_that_begins_at_once() -> None:
    first, again, other = (poisson(100, rate_per_s=5.0, seed=seed) for seed in (1, 1, 2))

    assert first.due_ns.tolist() == again.due_ns.tolist()
    assert first.due_ns.tolist() != other.due_ns.tolist()
    assert first.due_ns[0] == 0


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


@pytest.mark.parametrize(
    "due_ns", [np.array([1, 0]), np.array([-1]), np.array([0.5]), np.zeros((2, 2), dtype=np.int64)]
)
def test_a_schedule_out_of_order_or_of_another_shape_is_refused(due_ns: np.ndarray) -> None:
    with pytest.raises(ValueError, match="due"):
        Schedule(due_ns=due_ns)


def test_a_closed_loop_of_nobody_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        ClosedLoop(concurrency=0)

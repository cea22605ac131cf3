import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loadgen.measures.columns import Columns
from loadgen.reports.run_series import (
    BINS_MAX,
    POINTS_MAX,
    Bins,
    bars,
    cumulative,
    percentile_in_bins,
    shown_points,
    under_way,
)
from tests.loadgen.reports.made_runs import made_run

S = 1_000_000_000
FOUR = Bins(edges_ns=np.array([0, 2, 4, 6, 8]) * S, dilation=2.0)


def ints(*values: float) -> np.ndarray:
    return np.array([round(value * S) for value in values], dtype=np.int64)


def test_rates_are_per_second_of_the_run_s_time() -> None:
    # Bins of 2 wall s are bins of 1 emulated s.
    assert FOUR.width_s == 1.0
    assert FOUR.middles_s.tolist() == [0.5, 1.5, 2.5, 3.5]
    assert FOUR.rates(ints(0, 1, 2, 8)).tolist() == [2, 1, 0, 1]


def test_what_is_under_way_is_counted_in_the_mean_and_at_the_most() -> None:
    # One from 0 to 4, one from 1 to 2, one from 2 on: the second has gone when the third comes.
    mean, most = under_way(FOUR, ints(0, 1, 2), ints(4, 2, 8))

    assert mean.tolist() == [1.5, 2.0, 1.0, 1.0]
    assert most.tolist() == [2, 2, 1, 1]


@given(
    st.lists(
        st.tuples(st.integers(0, 8 * S), st.integers(0, 8 * S)).map(sorted), min_size=1, max_size=20
    )
)
def test_what_is_under_way_is_what_going_through_time_finds(spans: list[list[int]]) -> None:
    begun, ended = np.array(spans, dtype=np.int64).T
    mean, most = under_way(FOUR, begun, ended)

    for place, (low, high) in enumerate(zip(FOUR.edges_ns[:-1], FOUR.edges_ns[1:], strict=True)):
        within = sum(max(0, min(b, high) - max(a, low)) for a, b in spans) / (high - low)
        assert abs(mean[place] - within) < 1e-6
        moments = [low, *(a for a, _ in spans if low <= a < high)]
        at_once = max(sum(a <= at < b for a, b in spans) for at in moments)
        assert most[place] == at_once


@given(
    st.lists(st.tuples(st.integers(0, 8 * S - 1), st.floats(0.1, 1e4)), min_size=1, max_size=40),
    st.sampled_from([50.0, 99.0]),
)
def test_percentiles_in_bins_are_those_of_each_bin_alone(
    samples: list[tuple[int, float]], percentile: float
) -> None:
    at_ns = np.array([at for at, _ in samples], dtype=np.int64)
    values = np.array([value for _, value in samples])
    found = percentile_in_bins(FOUR, at_ns, values, percentile)

    for place in range(4):
        own = [value for at, value in samples if at // (2 * S) == place]
        expected = np.percentile(own, percentile) if own else np.nan
        np.testing.assert_allclose(found[place], expected)


def test_few_points_are_all_shown_and_of_many_the_slowest_of_each_bin() -> None:
    chance = np.random.default_rng(0)
    at_ns = chance.integers(0, 8 * S, 50_000)
    values = chance.lognormal(0, 1, 50_000)
    few = shown_points(FOUR, at_ns[:100], values[:100])
    many = shown_points(FOUR, at_ns, values)

    assert few.tolist() == list(range(100))
    assert many.size <= POINTS_MAX
    for place in range(4):
        own = np.flatnonzero(at_ns // (2 * S) == place)
        assert own[np.argmax(values[own])] in many


def test_the_curve_of_few_samples_is_exact_and_of_many_keeps_the_tail() -> None:
    values, share = cumulative(np.array([3.0, 1.0, 2.0, 2.0]))
    assert (values.tolist(), share.tolist()) == ([1, 2, 2, 3], [0.25, 0.5, 0.75, 1])

    many = np.random.default_rng(0).lognormal(0, 1, 100_000)
    values, share = cumulative(many)
    assert values.size <= 210
    assert values[-1] == many.max()
    assert share[-2] > 0.9999
    for value, part in zip(values, share, strict=True):
        assert abs((many <= value).mean() - part) < 2e-5


@given(st.lists(st.floats(0, 1e4, allow_subnormal=False), min_size=1, max_size=50).filter(any))
def test_the_bars_hold_every_gap_even_one_of_nothing(gaps: list[float]) -> None:
    edges, share = bars(np.array(gaps))

    assert abs(share.sum() - 1) < 1e-9
    assert (np.diff(edges) > 0).all()


def test_many_requests_are_a_few_bins_and_each_is_counted() -> None:
    columns = Columns.of(made_run(requests=2_000).results)
    bins = Bins.of(columns, 2.0)

    assert len(bins) == BINS_MAX
    for at_ns in (columns.intended_ns, columns.sent_ns, columns.ended_ns):
        assert round(bins.rates(at_ns).sum() * bins.width_s) == 2_000

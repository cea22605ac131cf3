import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from loadgen.arrivals.arrival_spec import Gaps
from loadgen.arrivals.gaps import RenewalArrivals


def renewal(gaps: Gaps, seed: int = 4, burstiness: float = 1.0) -> RenewalArrivals:
    return RenewalArrivals(gaps, burstiness=burstiness, seed=seed)


def test_even_gaps_are_one_and_begin_at_zero() -> None:
    assert renewal("constant").next(4).tolist() == [0.0, 1.0, 2.0, 3.0]
    assert renewal("constant").until(3.0).tolist() == [0.0, 1.0, 2.0]
    assert renewal("constant").until(0.0).tolist() == []


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gamma_gaps_are_the_gamma_distribution_of_scipy(burstiness: float) -> None:
    gaps = np.diff(renewal("gamma", burstiness=burstiness).next(20_001))

    # A true sample falls below p = 0.001 once in a thousand seeds; this seed is one of the others.
    assert stats.kstest(gaps, stats.gamma(burstiness, scale=1 / burstiness).cdf).pvalue > 0.001
    # The standard error of the mean of n gaps is cv / sqrt(n).
    assert abs(gaps.mean() - 1) < 4 / np.sqrt(burstiness * gaps.size)


@pytest.mark.long
@pytest.mark.parametrize(
    ("gaps", "burstiness"), [("poisson", 1.0), ("gamma", 0.25), ("gamma", 4.0)]
)
def test_a_time_holds_as_many_arrivals_as_it_has_units_on_average(
    gaps: Gaps, burstiness: float
) -> None:
    units = 4.0
    counts = np.array([renewal(gaps, seed, burstiness).until(units).size for seed in range(6_000)])

    # 1 more where the first is at 0. A mean of 6,000 counts, 4 standard errors wide.
    assert abs(counts.mean() - units) < 4 * counts.std() / np.sqrt(counts.size) < 0.25


def test_constant_gaps_begin_at_once_and_the_others_in_the_midst_of_one() -> None:
    assert renewal("constant").next(1).tolist() == [0.0]
    firsts = [renewal("gamma", seed, 0.25).next(1)[0] for seed in range(2_000)]

    # Forward recurrence: mean (1 + cv^2) / 2 = 2.5 for a cv of 2.
    assert np.mean(firsts) == pytest.approx(2.5, rel=0.15)


def test_poisson_gaps_are_the_exponential_distribution_of_scipy() -> None:
    gaps = np.diff(renewal("poisson").next(20_001))

    assert stats.kstest(gaps, stats.expon.cdf).pvalue > 0.001
    assert stats.kstest(gaps, stats.gamma(1.2, scale=1 / 1.2).cdf).pvalue < 0.001  # it can fail


@given(
    gaps=st.sampled_from(["constant", "poisson", "gamma"]),
    seed=st.integers(0, 2**31),
    counts=st.lists(st.integers(0, 50), min_size=1, max_size=6),
)
def test_what_is_drawn_in_parts_is_what_is_drawn_at_once(
    gaps: Gaps, seed: int, counts: list[int]
) -> None:
    whole = renewal(gaps, seed, 0.5).next(sum(counts))
    parts = renewal(gaps, seed, 0.5)

    assert np.concatenate([parts.next(count) for count in counts]).tolist() == whole.tolist()


@given(
    gaps=st.sampled_from(["constant", "poisson", "gamma"]),
    seed=st.integers(0, 2**31),
    end=st.floats(0.001, 5_000),
)
def test_until_an_end_come_exactly_those_before_it(gaps: Gaps, seed: int, end: float) -> None:
    found = renewal(gaps, seed, 0.5).until(end)
    more = renewal(gaps, seed, 0.5).next(found.size + 1)

    assert found.tolist() == more[:-1].tolist()
    assert found.max(initial=0.0) < end <= more[-1]


def test_another_seed_gives_other_gaps() -> None:
    assert renewal("poisson", 1).next(9).tolist() != renewal("poisson", 2).next(9).tolist()

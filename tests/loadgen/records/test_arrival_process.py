import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.records.arrival_process import arrival_process

S = 1_000_000_000


def test_times_at_0_1_and_3_seconds_are_described_as_by_hand() -> None:
    found = arrival_process(np.array([0, 1 * S, 3 * S]))

    # Two gaps of 1 and 2 s: mean 1.5, deviation 0.5. Too few for counts.
    assert found.rate_per_s == pytest.approx(2 / 3)
    assert found.gap_cv == pytest.approx(1 / 3)
    assert (found.dispersion, found.bins) == (None, 0)


def test_a_hundred_arrivals_at_both_ends_have_the_dispersion_found_by_hand() -> None:
    # 50 at the start and 50 at the end, in ten bins: mean 10, variance (2 x 40^2 + 8 x 10^2) / 10.
    found = arrival_process(np.repeat([0, 9 * S], 50))

    assert (found.dispersion, found.bins) == (pytest.approx(40.0), 10)


def test_even_gaps_have_no_spread_and_a_poisson_process_has_one_of_one() -> None:
    even = arrival_process(np.arange(1_000) * S)
    poisson = arrival_process(
        np.cumsum(np.random.default_rng(3).exponential(S, 20_000)).astype(int)
    )

    assert (even.rate_per_s, even.gap_cv, even.dispersion) == pytest.approx((1.0, 0.0, 0.0))
    # Standard errors: 1 / sqrt(2 n) = 0.5 % of the cv; sqrt(2 / 999) = 4.5 % of the dispersion.
    assert poisson.gap_cv == pytest.approx(1.0, rel=0.03)
    assert poisson.dispersion == pytest.approx(1.0, rel=0.2)
    assert poisson.bins == 1_000


def test_a_schedule_that_is_even_but_for_the_rounding_of_its_times_has_no_spread_at_all() -> None:
    thirds = arrival_process(np.rint(np.arange(1_000) * S / 60).astype(np.int64))

    assert thirds.gap_cv == 0.0


@pytest.mark.parametrize("times", [[], [5], [5, 5, 5]])
def test_too_few_times_say_nothing(times: list[int]) -> None:
    found = arrival_process(np.array(times, dtype=np.int64))

    assert (found.rate_per_s, found.gap_cv, found.dispersion) == (None, None, None)


@pytest.mark.long
@given(
    times=st.lists(st.integers(0, 10**13), min_size=3, max_size=300),
    shift=st.integers(-(10**12), 10**12),
    ns_per_s=st.floats(1e8, 1e11),
)
def test_order_and_origin_do_not_matter_and_a_slower_clock_scales_the_rate_alone(
    times: list[int], shift: int, ns_per_s: float
) -> None:
    found = arrival_process(np.array(sorted(times)))
    moved = arrival_process(np.array(times) + shift, ns_per_s=ns_per_s)

    assert (moved.gap_cv, moved.dispersion, moved.bins) == (
        found.gap_cv,
        found.dispersion,
        found.bins,
    )
    if found.rate_per_s is not None:
        assert moved.rate_per_s == pytest.approx(found.rate_per_s * ns_per_s / 1e9)

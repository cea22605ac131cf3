import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.percentiles import Percentiles


def test_percentiles_of_a_hundred_and_one_even_samples_are_their_ranks() -> None:
    samples = np.arange(101, dtype=np.float64)

    assert Percentiles.of(samples[::-1]) == Percentiles(p50=50.0, p90=90.0, p99=99.0)


def test_between_two_samples_the_rank_is_interpolated() -> None:
    assert Percentiles.of(np.array([10.0, 20.0])) == Percentiles(p50=15.0, p90=19.0, p99=19.9)


def test_no_samples_have_no_percentiles() -> None:
    assert Percentiles.of(np.empty(0)) == Percentiles(p50=None, p90=None, p99=None)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_sample_that_is_no_number_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        Percentiles.of(np.array([1.0, value]))


@given(samples=st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=50))
def test_percentiles_rise_and_stay_among_the_samples(samples: list[float]) -> None:
    found = Percentiles.of(np.array(samples))

    assert found.p50 is not None
    assert found.p90 is not None
    assert found.p99 is not None
    assert min(samples) <= found.p50 <= found.p90 <= found.p99 <= max(samples)

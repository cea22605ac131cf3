import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.measures.measurement import distribution_of
from loadgen.measures.run_measures import PERCENTILES
from loadgen.measures.samples import Samples


def test_percentiles_of_a_hundred_and_one_even_samples_are_their_ranks() -> None:
    found = distribution_of(Samples.in_order(np.arange(101, dtype=np.float64)[::-1]))

    assert {at: each.value for at, each in found.percentiles.items()} == {
        at: pytest.approx(at) for at in PERCENTILES
    }
    assert (found.least, found.most, found.mean.value, found.samples) == (0, 100, 50, 101)


def test_between_two_samples_the_rank_is_interpolated() -> None:
    found = distribution_of(Samples.in_order(np.array([20.0, 10.0])))

    assert [found.percentiles[at].value for at in (50.0, 90.0, 99.0)] == pytest.approx(
        [15.0, 19.0, 19.9]
    )


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_sample_that_is_no_number_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        distribution_of(Samples.in_order(np.array([1.0, value])))


@given(samples=st.lists(st.floats(0, 1e9), min_size=1, max_size=50))
def test_a_distribution_is_numpy_s(samples: list[float]) -> None:
    values = np.array(samples)
    found = distribution_of(Samples.in_order(values))

    assert found.deviation == pytest.approx(values.std(), abs=1e-6)
    assert [found.percentiles[at].value for at in PERCENTILES] == pytest.approx(
        np.percentile(values, PERCENTILES).tolist(), rel=1e-9, abs=1e-9
    )

"""Distributions of prompt and reply lengths."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import OptionError
from loadgen.workloads.length_pairs import IndependentLengths, ObservedLengths
from loadgen.workloads.lengths import Uniform, lognormal_of_median


def int64s(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_a_lognormal_length_has_the_median_and_the_mean_that_its_numbers_say() -> None:
    drawn = lognormal_of_median(median=1_000, sigma=0.5).draw(np.random.default_rng(1), 40_000)

    # 40,000 draws: the mean's standard error is 0.3 %, the median's like.
    assert np.median(drawn) == pytest.approx(1_000, rel=0.02)
    assert drawn.mean() == pytest.approx(1_000 * np.exp(0.125), rel=0.02)


@given(
    median=st.integers(10, 2_000), sigma=st.floats(0, 4, allow_nan=False), seed=st.integers(0, 99)
)
def test_a_lognormal_length_stays_in_its_bounds(median: int, sigma: float, seed: int) -> None:
    lengths = lognormal_of_median(median=median, sigma=sigma, least=10, most=2_000)
    drawn = lengths.draw(np.random.default_rng(seed), 50)

    assert drawn.dtype == np.int64
    assert drawn.min() >= 10
    assert drawn.max() <= 2_000
    if sigma == 0:
        assert set(drawn.tolist()) == {median}


def test_independent_lengths_draw_prompts_and_replies_of_their_own() -> None:
    pairs = IndependentLengths(prompt=Uniform(least=3, most=3), output=Uniform(least=4, most=4))
    prompt, output = pairs.draw_pairs(np.random.default_rng(0), 2)

    assert (prompt.tolist(), output.tolist()) == ([3, 3], [4, 4])


def test_observed_pairs_stay_together() -> None:
    pairs = ObservedLengths(prompt_tokens=int64s(1, 2, 3), output_tokens=int64s(10, 20, 30))
    prompt, output = pairs.draw_pairs(np.random.default_rng(3), 200)

    assert (output == 10 * prompt).all()
    assert set(prompt.tolist()) == {1, 2, 3}


def test_more_independent_pairs_leave_the_first_ones_as_they_are() -> None:
    lengths = Uniform(least=1, most=1_000)
    pairs = IndependentLengths(prompt=lengths, output=lengths)
    few, many = (pairs.draw_pairs(np.random.default_rng(4), count) for count in (3, 9))

    assert [part.tolist() for part in few] == [part[:3].tolist() for part in many]
    assert many[0].tolist() != many[1].tolist()


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: lognormal_of_median(median=10, sigma=-0.1), "sigma"),
        (lambda: lognormal_of_median(median=10, sigma=float("nan")), "sigma"),
        (lambda: lognormal_of_median(median=9, sigma=1, least=10), "median"),
        (lambda: lognormal_of_median(median=9, sigma=1, least=0), "median"),
        (
            lambda: ObservedLengths(prompt_tokens=int64s(), output_tokens=int64s()),
            "output_tokens",
        ),
        (
            lambda: ObservedLengths(prompt_tokens=int64s(1), output_tokens=int64s(0)),
            "output_tokens",
        ),
    ],
)
def test_lengths_that_make_no_sense_are_refused_by_name(make: object, field: str) -> None:
    with pytest.raises(OptionError, match=f"^{field}="):
        make()  # type: ignore[operator]

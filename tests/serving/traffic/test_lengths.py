"""Distributions of prompt and reply lengths."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from serving.traffic.lengths import (
    FixedLength,
    IndependentLengths,
    LognormalLength,
    ObservedLengths,
)


def int64s(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_a_fixed_length_is_the_same_for_all() -> None:
    assert FixedLength(tokens=7).draw(np.random.default_rng(0), 3).tolist() == [7, 7, 7]


def test_a_lognormal_length_has_the_median_and_the_mean_that_its_numbers_say() -> None:
    drawn = LognormalLength(median_tokens=1_000, sigma=0.5).draw(np.random.default_rng(1), 40_000)

    # 40,000 draws: the mean's standard error is 0.3 %, the median's like.
    assert np.median(drawn) == pytest.approx(1_000, rel=0.02)
    assert drawn.mean() == pytest.approx(1_000 * np.exp(0.125), rel=0.02)


@given(
    median=st.integers(10, 2_000), sigma=st.floats(0, 4, allow_nan=False), seed=st.integers(0, 99)
)
def test_a_lognormal_length_stays_in_its_bounds(median: int, sigma: float, seed: int) -> None:
    lengths = LognormalLength(median_tokens=median, sigma=sigma, least_tokens=10, most_tokens=2_000)
    drawn = lengths.draw(np.random.default_rng(seed), 50)

    assert drawn.dtype == np.int64
    assert drawn.min() >= 10
    assert drawn.max() <= 2_000
    if sigma == 0:
        assert set(drawn.tolist()) == {median}


def test_independent_lengths_draw_prompts_and_replies_of_their_own() -> None:
    pairs = IndependentLengths(prompt=FixedLength(tokens=3), output=FixedLength(tokens=4))
    prompt, output = pairs.draw_pairs(np.random.default_rng(0), 2)

    assert (prompt.tolist(), output.tolist()) == ([3, 3], [4, 4])


def test_observed_pairs_stay_together() -> None:
    pairs = ObservedLengths(prompt_tokens=int64s(1, 2, 3), output_tokens=int64s(10, 20, 30))
    prompt, output = pairs.draw_pairs(np.random.default_rng(3), 200)

    assert (output == 10 * prompt).all()
    assert set(prompt.tolist()) == {1, 2, 3}


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: FixedLength(tokens=0), "tokens"),
        (lambda: LognormalLength(median_tokens=10, sigma=-0.1), "sigma"),
        (lambda: LognormalLength(median_tokens=10, sigma=float("nan")), "sigma"),
        (lambda: LognormalLength(median_tokens=9, sigma=1, least_tokens=10), "median_tokens"),
        (lambda: LognormalLength(median_tokens=9, sigma=1, least_tokens=0), "least_tokens"),
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
    with pytest.raises(ConfigError) as refused:
        make()  # type: ignore[operator]

    assert refused.value.field == field

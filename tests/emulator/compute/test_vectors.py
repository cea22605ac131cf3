"""What the kernels' own instructions compute, against numpy, whatever the number of elements."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from emulator.compute.vectors import (
    LANES,
    address,
    copy_numbers,
    exponential,
    exponentials,
    largest,
    square_sum,
)

COUNTS = [0, 1, 2, LANES - 1, LANES, LANES + 1, 3 * LANES, 100]


@njit
def _powers(x: np.ndarray) -> np.ndarray:
    out = np.empty_like(x)
    for place in range(len(x)):
        out[place] = exponential(x[place])
    return out


@njit
def _replace(x: np.ndarray, first: int, count: int, less: float) -> float:
    return float(exponentials(x, first, count, np.float32(less)))


@njit
def _squares(x: np.ndarray, first: int, count: int) -> float:
    return float(square_sum(x, first, count))


@njit
def _most(x: np.ndarray, first: int, count: int) -> float:
    return float(largest(x, first, count))


@njit
def _copy(target: np.ndarray, source: np.ndarray, first: int, count: int) -> None:
    copy_numbers(address(target, 0), address(source, first), count)


def numbers(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


class TestExponential:
    @pytest.mark.long
    def test_it_is_within_a_unit_of_the_last_place_everywhere(self) -> None:
        x = np.linspace(-86.5, 88.72, 2_000_001).astype(np.float32)
        exact = np.exp(x.astype(np.float64))

        errors = np.abs(_powers(x) - exact) / np.spacing(exact.astype(np.float32))

        assert errors.max() < 1.0

    @pytest.mark.long
    def test_every_number_near_zero_is_as_exact(self) -> None:
        bits = np.arange(0, 0x3F800000, 997, dtype=np.uint32)  # from 0 to 1
        x = np.concatenate([bits.view(np.float32), -bits.view(np.float32)])
        exact = np.exp(x.astype(np.float64))

        assert (np.abs(_powers(x) - exact) <= np.spacing(exact.astype(np.float32))).all()

    @pytest.mark.long
    def test_its_ends_are_those_of_float32(self) -> None:
        ends = np.array([-np.inf, -1e30, -87.0, 0.0, -0.0, 88.8, 1e30, np.inf], dtype=np.float32)

        assert _powers(ends).tolist() == [0, 0, 0, 1, 1, np.inf, np.inf, np.inf]
        assert np.isnan(_powers(np.array([np.nan], dtype=np.float32))).all()

    @pytest.mark.parametrize("count", COUNTS)
    def test_many_at_once_have_the_bits_of_each_alone(self, count: int) -> None:
        x = 20 * numbers(count + 5)
        expected = x.copy()
        expected[3 : 3 + count] = _powers(x[3 : 3 + count] - np.float32(1.5))

        total = _replace(x, 3, count, 1.5)

        assert (x == expected).all(), "and what is beside them is left alone"
        assert total == pytest.approx(expected[3 : 3 + count].sum(), rel=1e-6)


@pytest.mark.parametrize("count", COUNTS)
def test_sums_and_largest_numbers_are_numpys(count: int) -> None:
    x = numbers(count + 9) - 3
    part = x[4 : 4 + count]

    assert _squares(x, 4, count) == pytest.approx(np.square(part.astype(np.float64)).sum())
    assert _most(x, 4, count) == part.max(initial=-np.inf)


@given(st.integers(0, 70), st.integers(0, 2**32))
def test_lanes_are_added_in_an_order_that_zeros_do_not_change(count: int, seed: int) -> None:
    x = numbers(count, seed)
    longer = np.concatenate([x, np.zeros(200, dtype=np.float32)])

    assert _squares(longer, 0, count) == _squares(longer, 0, count + 150)


@pytest.mark.parametrize("count", COUNTS)
def test_numbers_are_copied_and_no_more(count: int) -> None:
    source, target = numbers(count + 7), numbers(count + 7, seed=1)
    expected = target.copy()
    expected[:count] = source[2 : 2 + count]

    _copy(target, source, 2, count)

    assert (target == expected).all()

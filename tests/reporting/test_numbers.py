import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.records.estimate import Estimate
from reporting.numbers import interval, number, percent, range_words, share_interval


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "-"),
        (0.0, "0"),
        (0.0012345, "0.00123"),
        (0.0625, "0.0625"),
        (0.5, "0.500"),
        (9.9999, "10.00"),
        (12.345, "12.35"),
        (123.45, "123.5"),
        (999.96, "1,000"),
        (1234.5, "1,234"),
        (20.0, "20"),
        (-12.345, "-12.35"),
    ],
)
def test_a_number_has_about_four_figures(value: float | None, words: str) -> None:
    assert number(value) == words


@given(st.floats(1e-9, 1e12))
def test_a_number_is_told_to_within_half_a_per_cent(value: float) -> None:
    assert abs(float(number(value).replace(",", "")) - value) <= 0.005 * value


@pytest.mark.parametrize(
    ("share", "words"),
    [(0, "0.0 %"), (0.1234, "12.3 %"), (0.9996, "99.96 %"), (0.999999, "99.999 %"), (1, "100.0 %")],
)
def test_less_than_all_is_never_told_as_all(share: float, words: str) -> None:
    assert percent(share) == words


def test_an_interval_is_told_with_the_ends_that_are_known() -> None:
    assert interval(Estimate(value=2.0, low=1.5, high=2.5)) == "1.500 .. 2.500"
    assert share_interval(Estimate(value=0.2, low=0.15, high=0.25)) == "15.0 % .. 25.0 %"
    assert interval(Estimate(value=80.0, low=79.5)) == ">= 79.50"
    assert share_interval(Estimate(value=0.2, high=0.25)) == "<= 25.0 %"
    for unknown in (None, Estimate(value=2.0)):
        assert interval(unknown) == share_interval(unknown) == "-"


@pytest.mark.parametrize(
    ("bounds", "scale", "words"),
    [
        ((9.014, 14.55), 1, "9.01 to 14.6"),
        ((6.33e6, 10.64e6), 1, "6.33M to 10.6M"),
        ((1234, 276_400), 1, "1,230 to 276k"),
        ((9994, 9996), 1, "9,990 to 10k"),
        ((999_400, 999_600), 1, "999k to 1M"),
        ((12e6, 15e6), 1e6, "12 to 15"),
    ],
)
def test_a_range_has_three_digits_at_each_end(
    bounds: tuple[float, float], scale: float, words: str
) -> None:
    assert range_words(bounds, scale=scale) == words

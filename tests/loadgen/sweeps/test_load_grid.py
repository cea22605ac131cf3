from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import OptionError
from loadgen.sweeps.load_grid import LOADS_MAX, load_words, loads_up_to, parse_loads


@pytest.mark.parametrize(
    ("text", "loads"),
    [
        ("4", (4,)),
        ("8,1,2,2", (1, 2, 8)),
        ("0.5,1.25", (0.5, 1.25)),
        ("1-64x2", (1, 2, 4, 8, 16, 32, 64)),
        ("1-10x3", (1, 3, 9, 10)),
        ("2-2x2", (2,)),
    ],
)
def test_rates_are_a_list_or_a_range_and_rise(text: str, loads: tuple[float, ...]) -> None:
    assert parse_loads(text, axis="rate", option="--rates") == loads


def test_concurrencies_of_a_range_are_whole() -> None:
    loads = parse_loads("1-10x1.5", axis="concurrency", option="--concurrencies")

    assert loads == (1, 2, 3, 5, 8, 10)


@pytest.mark.parametrize(
    "text", ["", "0", "1,,2", "a", "1-x2", "4-2x2", "1-8x1", "1-infx2", "1e9-1"]
)
def test_other_loads_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="--rates="):
        parse_loads(text, axis="rate", option="--rates")


def test_half_a_session_is_no_concurrency_and_a_thousand_loads_are_too_many() -> None:
    with pytest.raises(OptionError, match="whole numbers"):
        parse_loads("1.5", axis="concurrency", option="--concurrencies")
    with pytest.raises(OptionError, match=f"at most {LOADS_MAX} loads"):
        parse_loads("1-1000x1.0001", axis="rate", option="--rates")


def test_up_to_a_highest_rate_they_double_from_a_sixty_fourth() -> None:
    assert loads_up_to(64) == (1, 2, 4, 8, 16, 32, 64)


@given(st.floats(0.01, 1e4), st.floats(1.1, 4), st.floats(1, 100))
def test_a_range_keeps_its_ends_and_no_step_is_larger_than_its_factor(
    low: float, factor: float, span: float
) -> None:
    high = low * span
    text = f"{load_words(low)}-{load_words(high)}x{factor:.6g}"
    loads = parse_loads(text, axis="rate", option="--rates")

    assert loads[0] == float(load_words(low))
    assert loads[-1] == pytest.approx(float(load_words(high)), rel=1e-5)
    steps = [after / before for before, after in pairwise(loads)]
    assert all(1 < step <= factor * (1 + 1e-4) for step in steps)

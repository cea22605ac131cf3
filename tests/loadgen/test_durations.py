import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.durations import duration_words, parse_duration_s


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("200ms", 0.2),
        ("1.5s", 1.5),
        ("2m", 120),
        ("1h", 3_600),
        ("3", 3),
        ("50us", 5e-5),
        (".5", 0.5),
        ("1h2m3s4ms5us", 3_723.004005),
        ("1s500ms", 1.5),
    ],
)
def test_a_time_is_read_in_its_unit(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    ["", "s", "-1s", "1 h", "1d", "1e3", "nan", "inf", "1.2.3s", "٣s", "1m2", "1s1s", "1s1m"],
)
def test_anything_else_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(ValueError, match=r"a time such as 200ms, 1\.5s, 2m or 1h"):
        parse_duration_s(text)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0s"),
        (0.2, "200ms"),
        (1.5, "1.5s"),
        (90, "90s"),
        (120, "2m"),
        (7_200, "2h"),
        (1e-6, "1us"),
    ],
)
def test_a_time_is_written_in_the_largest_unit_that_is_whole(seconds: float, words: str) -> None:
    assert duration_words(seconds) == words


@given(st.integers(1, 10**6), st.sampled_from([1e-6, 1e-3, 1.0]))
def test_what_is_written_is_read_again(count: int, unit_s: float) -> None:
    seconds = count * unit_s
    if seconds <= 1e5:
        assert parse_duration_s(duration_words(seconds)) == pytest.approx(seconds, rel=1e-5)

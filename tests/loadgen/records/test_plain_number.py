import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.records.plain_number import plain_number


@pytest.mark.parametrize(
    ("text", "value"),
    [("4", 4.0), ("0", 0.0), ("0.5", 0.5), (".5", 0.5), ("5.", 5.0), ("1e3", 1e3)],
)
def test_a_number_is_read(text: str, value: float) -> None:
    assert plain_number(text) == value


@pytest.mark.parametrize(
    "text", ["", "-1", "+1", "1_0", "nan", "inf", "1e999", "٣", " 1", "1\n", "1,5", "0x1", "."]
)
def test_anything_else_is_refused_and_quoted(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number from 0 on") as refused:
        plain_number(text)

    assert repr(text) in str(refused.value)


@given(st.floats(min_value=0.0, allow_infinity=False, allow_nan=False))
def test_what_python_writes_is_read_back(value: float) -> None:
    assert plain_number(repr(value)) == value

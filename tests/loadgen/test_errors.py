from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import LoadError, one_line


def test_escape_sequences_and_turned_writing_are_taken_out() -> None:
    assert one_line("a\x1b[2J\x9b1m b\n\tc\u202ed\x00") == "a[2J1m b cd"
    assert str(LoadError("no \x1b]0;title\x07 model")) == "no ]0;title model"


@given(text=st.text())
def test_whatever_it_is_it_becomes_one_line_that_can_be_printed(text: str) -> None:
    assert one_line(text).isprintable()


@given(text=st.text(alphabet=st.characters(categories=["L", "N", "P", "S"])))
def test_what_can_be_printed_stays(text: str) -> None:
    assert one_line(text) == text

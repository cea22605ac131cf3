from serving.commands.text_table import table_lines


def test_columns_are_as_wide_as_their_widest_cell_and_numbers_end_flush() -> None:
    rows = [("name", "no."), ("a", "1"), ("longer", "1,000")]

    assert table_lines(rows, right=frozenset({1})) == [
        "name      no.",
        "a           1",
        "longer  1,000",
    ]


def test_trailing_blanks_are_cut() -> None:
    assert table_lines([("a", "b"), ("long", "")], right=frozenset()) == ["a     b", "long"]

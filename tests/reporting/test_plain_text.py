from reporting.document import Column, Document, Facts, Lines, table_of
from reporting.plain_text import document_lines, table_lines

COLUMNS: tuple[Column[tuple[str, object]], ...] = (
    Column("name", align="left"),
    Column("no.", form=","),
)


def test_columns_are_as_wide_as_their_widest_cell_and_numbers_end_flush() -> None:
    assert table_lines(table_of(COLUMNS, [("a", 1), ("longer", 1_000)])) == [
        "name      no.",
        "a           1",
        "longer  1,000",
    ]


def test_trailing_blanks_are_cut() -> None:
    columns = (COLUMNS[0], Column("of", align="left"))

    assert table_lines(table_of(columns, [("long", "")])) == ["name  of", "long"]


def test_a_table_without_headings_is_its_rows() -> None:
    columns: tuple[Column[tuple[str, int]], ...] = (Column("", align="left"), Column(""))

    assert table_lines(table_of(columns, [("a", 1), ("b", 20)]), indent=2) == ["  a   1", "  b  20"]


def test_a_value_has_its_unit_in_the_heading_and_what_is_not_known_is_a_dash() -> None:
    columns: tuple[Column[dict[str, float]], ...] = (
        Column("wait", lambda row: row.get("ns"), unit="ms", scale=1e6),
    )

    assert table_lines(table_of(columns, [{"ns": 2_500_000.0}, {}])) == [
        "wait ms",
        "  2.500",
        "      -",
    ]


def test_sections_stand_apart_and_what_has_a_title_is_below_it() -> None:
    document = Document(
        title="a report",
        subtitle="of today",
        sections=(
            Lines(rows=("one", "two")),
            Facts(title="server", rows=(("clock", "real"), ("", "by the wall"))),
            table_of(COLUMNS, [("a", 1)], title="requests"),
        ),
    )

    assert list(document_lines(document)) == [
        *("a report", "of today", "", "one", "two", ""),
        *("server", "  clock  real", "  by the wall", ""),
        *("requests", "  name  no.", "  a       1"),
    ]

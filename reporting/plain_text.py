"""A report as lines without colours or folding."""

from collections.abc import Iterator

from reporting.document import Document, Facts, Section, Table


def document_lines(document: Document) -> Iterator[str]:
    """The document as lines; an empty line stands before each section."""
    yield document.title
    yield from filter(None, (document.subtitle, document.verdict))
    for section in document.sections:
        yield ""
        yield from section_lines(section)


def section_lines(section: Section) -> Iterator[str]:
    """A section, indented by two below a title."""
    if isinstance(section, Table):
        rows = [*table_lines(section), *filter(None, [section.foot])]
    elif isinstance(section, Facts):
        rows = [f"{name}  {value}".strip() for name, value in section.rows]
    else:
        rows = list(section.rows)
    if section.title:
        yield section.title
    yield from (f"{'  ' * bool(section.title)}{row}".rstrip() for row in rows)


def table_lines(table: Table, *, indent: int = 0) -> list[str]:
    """Headings, unless all are empty, and rows; columns as wide as their widest cell, two apart."""
    written = [tuple(cell.words for cell in row) for row in table.rows]
    if any(column.heading for column in table.columns):
        written.insert(0, tuple(column.heading for column in table.columns))
    widths = [max(map(len, cells)) for cells in zip(*written, strict=True)]
    sides = ["<" if column.align == "left" else ">" for column in table.columns]
    lines = (
        "  ".join(f"{c:{side}{width}}" for c, side, width in zip(row, sides, widths, strict=True))
        for row in written
    )
    return [f"{' ' * indent}{line}".rstrip() for line in lines]

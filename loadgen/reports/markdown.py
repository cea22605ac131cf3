"""A report as GitHub-flavoured Markdown, for pull requests and notebooks."""

import re
from collections.abc import Iterator

from loadgen.reports.document import Document, Facts, Grid, ReportDocument, plain


def to_markdown(report: ReportDocument) -> str:
    """Return the report as Markdown text."""
    return "\n".join(_lines(report.document())) + "\n"


def _lines(document: Document) -> Iterator[str]:
    yield f"# {_escaped(document.title)}"
    if document.subtitle:
        yield from ("", _escaped(document.subtitle))
    if document.verdict:
        yield from ("", f"**{_escaped(document.verdict)}**")
    for section in document.sections:
        yield from ("", f"## {_escaped(section.title)}", "")
        yield from _facts(section) if isinstance(section, Facts) else _grid(section)
    if document.notes:
        yield from ("", "## notes", "")
        yield from (f"- {_escaped(note)}" for note in document.notes)
    if document.command:
        yield from ("", "## repeat", "", "```sh", document.command, "```")


def _facts(facts: Facts) -> Iterator[str]:
    yield from ("| | |", "|:--|:--|")
    for name, value in facts.rows:
        yield f"| {_escaped(name)} | {_escaped(value)} |"


def _grid(grid: Grid) -> Iterator[str]:
    yield "| " + " | ".join(_escaped(column.title) for column in grid.columns) + " |"
    yield "|" + "|".join(":--" if column.words else "--:" for column in grid.columns) + "|"
    for row in grid.rows:
        yield "| " + " | ".join(_escaped(plain(cell)) for cell in row) + " |"
    if grid.foot:
        yield from ("", _escaped(grid.foot))


def _escaped(words: str) -> str:
    """Markdown and HTML in a server's words stand as they are; a table's cell stays one line."""
    marked = re.sub(r"([\\`*_\[\]|])", r"\\\1", words)
    return " ".join(marked.replace("&", "&amp;").replace("<", "&lt;").split())

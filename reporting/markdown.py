"""A report as GitHub-flavoured Markdown, for pull requests and notebooks."""

import re
from collections.abc import Iterator
from typing import Final

from reporting.document import Document, Facts, ReportDocument, Section, Table

_RULES: Final = {"left": ":--", "right": "--:"}


def to_markdown(report: ReportDocument) -> str:
    """The report as Markdown text."""
    return "\n".join(_lines(report.document())) + "\n"


def _lines(document: Document) -> Iterator[str]:
    yield f"# {_escaped(document.title)}"
    if document.subtitle:
        yield from ("", _escaped(document.subtitle))
    if document.verdict:
        yield from ("", f"**{_escaped(document.verdict)}**")
    for section in document.sections:
        yield from ("", f"## {_escaped(section.title)}", "")
        yield from _section(section)
    if document.notes:
        yield from ("", "## notes", "")
        yield from (f"- {_escaped(note)}" for note in document.notes)
    if document.command:
        yield from ("", "## repeat", "", "```sh", document.command, "```")


def _section(section: Section) -> Iterator[str]:
    if isinstance(section, Facts):
        yield from ("| | |", "|:--|:--|")
        yield from (f"| {_escaped(name)} | {_escaped(value)} |" for name, value in section.rows)
    elif isinstance(section, Table):
        yield f"| {' | '.join(_escaped(column.heading) for column in section.columns)} |"
        yield f"|{'|'.join(_RULES[column.align] for column in section.columns)}|"
        for row in section.rows:
            yield f"| {' | '.join(_escaped(cell.words) for cell in row)} |"
        if section.foot:
            yield from ("", _escaped(section.foot))
    else:
        yield from (f"- {_escaped(line)}" for line in section.rows)


def _escaped(words: str) -> str:
    """Escapes Markdown and HTML; a table's cell stays one line."""
    marked = re.sub(r"([\\`*_\[\]|])", r"\\\1", words)
    return " ".join(marked.replace("&", "&amp;").replace("<", "&lt;").split())

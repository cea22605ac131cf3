"""A report as one self-contained HTML file: no server, no network."""

import json
from collections.abc import Iterator
from functools import cache
from html import escape
from typing import Final

import vl_convert

from reporting.charts import TitledChart, styled
from reporting.document import Cell, Document, Facts, ReportDocument, Section, Table

_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; "
    "script-src 'unsafe-inline' 'unsafe-eval'"
)
"""The page runs its own scripts and fetches nothing; a browser enforces that."""

_STYLE: Final = """
:root { color-scheme: light; --ink: #212529; --soft: #6c757d; --line: #dee2e6; --mark: #1c7ed6; }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; color: var(--ink);
  background: #f8f9fa; margin: 0; padding: 2rem 1rem; }
main { max-width: 1040px; margin: 0 auto; }
header { margin-bottom: 1.5rem; }
h1 { font-size: 1.7rem; margin: 0; }
h2 { font-size: 1.05rem; margin: 0 0 .6rem; }
header p, .about, .foot { color: var(--soft); margin: .2rem 0; font-size: .92rem; }
section { background: #fff; border: 1px solid var(--line); border-radius: 10px;
  padding: 1.1rem 1.3rem; margin-bottom: 1rem; overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th { text-align: right; font-weight: 600; border-bottom: 2px solid var(--line); }
th, td { padding: .25rem .8rem .25rem 0; vertical-align: top; white-space: nowrap; }
td { text-align: right; border-bottom: 1px solid #f1f3f5; }
th.words, td.words { text-align: left; }
table.facts td { text-align: left; white-space: normal; border: 0; }
table.facts td:first-child { color: var(--soft); padding-right: 1.5rem; white-space: nowrap; }
.good { color: #2b8a3e; font-weight: 600; } .bad { color: #c92a2a; font-weight: 600; }
.dim { color: var(--soft); }
section.notes { border-left: 5px solid #f08c00; }
section.notes ul { margin: 0; padding-left: 1.2rem; }
pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; font-size: .88rem; }
@media print { body { background: #fff; padding: 0; } section { break-inside: avoid; } }
"""

_DRAW: Final = """
for (const box of document.querySelectorAll("[data-chart]")) {
  const spec = JSON.parse(document.getElementById(box.dataset.chart).textContent);
  vegaEmbed(box, spec, {renderer: "svg", actions: {export: true, source: false, compiled: false,
    editor: false}}).catch(error => { box.textContent = "This chart cannot be drawn: " + error; });
}
"""


def to_html(report: ReportDocument) -> str:
    """The report as a page: figures as tables, and charts with all they need."""
    return "\n".join(_page(report.document(), report.charts())) + "\n"


def _page(document: Document, charts: tuple[TitledChart, ...]) -> Iterator[str]:
    yield "<!DOCTYPE html>"
    yield '<html lang="en"><head><meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{escape(document.title)}</title><style>{_STYLE}</style></head><body><main>"
    yield f"<header><h1>{escape(document.title)}</h1><p>{escape(document.subtitle)}</p>"
    if document.verdict:
        yield f"<p><strong>{escape(document.verdict)}</strong></p>"
    yield "</header>"
    if document.notes:
        yield '<section class="notes"><h2>notes</h2><ul>'
        yield from (f"<li>{escape(note)}</li>" for note in document.notes)
        yield "</ul></section>"
    for section in document.sections:
        yield f"<section><h2>{escape(section.title)}</h2>"
        yield from _section(section)
        yield "</section>"
    for place, chart in enumerate(charts):
        yield f"<section><h2>{escape(chart.title)}</h2>"
        yield f'<p class="about">{escape(chart.about)}</p>'
        yield f'<div data-chart="chart-{place}"></div></section>'
    if document.command:
        yield f"<section><h2>repeat</h2><pre>{escape(document.command)}</pre></section>"
    yield "</main>"
    if charts:
        for place, chart in enumerate(charts):
            words = _json_text(styled(chart.chart).to_dict())
            yield f'<script type="application/json" id="chart-{place}">{words}</script>'
        yield f"<script>{_vega()}</script>"
        yield f"<script>{_DRAW}</script>"
    yield "</body></html>"


@cache
def _vega() -> str:
    """Vega, Vega-Lite and their embedding as one script: 0.9 MB, seconds to build."""
    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")


def _json_text(value: object) -> str:
    """JSON that cannot end the script element that it stands in."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _section(section: Section) -> Iterator[str]:
    if isinstance(section, Facts):
        yield '<table class="facts">'
        for name, value in section.rows:
            yield f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>"
        yield "</table>"
    elif isinstance(section, Table):
        yield from _table(section)
    else:
        yield from (f"<p>{escape(line)}</p>" for line in section.rows)


def _table(table: Table) -> Iterator[str]:
    kinds = [' class="words"' if column.align == "left" else "" for column in table.columns]
    yield "<table><thead><tr>"
    for kind, column in zip(kinds, table.columns, strict=True):
        yield f"<th{kind}>{escape(column.heading)}</th>"
    yield "</tr></thead><tbody>"
    for row in table.rows:
        cells = (f"<td{kind}>{_cell(cell)}</td>" for kind, cell in zip(kinds, row, strict=True))
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</tbody></table>"
    if table.foot:
        yield f'<p class="foot">{escape(table.foot)}</p>'


def _cell(cell: Cell) -> str:
    words = escape(cell.words)
    return words if cell.tone == "plain" else f'<span class="{cell.tone}">{words}</span>'

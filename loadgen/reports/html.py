"""A report as one HTML file that needs nothing but itself: no server, no network."""

import json
from collections.abc import Iterator
from functools import cache
from html import escape

import vl_convert

from loadgen.reports.chart_style import TitledChart, styled
from loadgen.reports.charts import charts_of
from loadgen.reports.document import Cell, Document, Facts, Grid, ReportDocument
from loadgen.reports.page_style import DRAW, POLICY, STYLE


def to_html(report: ReportDocument) -> str:
    """Return the report as a page: its figures as tables, and its charts with all they need."""
    return "\n".join(_page(report.document(), charts_of(report))) + "\n"


def _page(document: Document, charts: tuple[TitledChart, ...]) -> Iterator[str]:
    yield "<!DOCTYPE html>"
    yield '<html lang="en"><head><meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{escape(document.title)}</title><style>{STYLE}</style></head><body><main>"
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
        yield from _facts(section) if isinstance(section, Facts) else _grid(section)
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
        yield f"<script>{DRAW}</script>"
    yield "</body></html>"


@cache
def _vega() -> str:
    """Vega, Vega-Lite and their embedding as one script: 0.9 MB, and seconds to put together."""
    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")


def _json_text(value: object) -> str:
    """JSON in which nothing can end the script element that it stands in."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _facts(facts: Facts) -> Iterator[str]:
    yield '<table class="facts">'
    for name, value in facts.rows:
        yield f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>"
    yield "</table>"


def _grid(grid: Grid) -> Iterator[str]:
    kinds = [' class="words"' if column.words else "" for column in grid.columns]
    yield "<table><thead><tr>"
    for kind, column in zip(kinds, grid.columns, strict=True):
        yield f"<th{kind}>{escape(column.title)}</th>"
    yield "</tr></thead><tbody>"
    for row in grid.rows:
        cells = (f"<td{kind}>{_cell(cell)}</td>" for kind, cell in zip(kinds, row, strict=True))
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</tbody></table>"
    if grid.foot:
        yield f'<p class="foot">{escape(grid.foot)}</p>'


def _cell(cell: str | Cell) -> str:
    if isinstance(cell, str):
        return escape(cell)
    return f'<span class="{cell.tone}">{escape(cell.words)}</span>'

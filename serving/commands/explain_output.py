"""Where `ultraserve explain` puts its answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from serving.commands.analysis_options import check_least, check_outputs, say, write_json
from startup.typed_options import option

if TYPE_CHECKING:
    from serving.analysis.explain.explanation import Explanation


@dataclass(frozen=True, kw_only=True)
class ExplainOutput:
    """Destinations of the answer."""

    GROUP = "output"

    rows: int = option(12, "sensitivities in the table")
    json: str | None = option(None, "write everything; - for standard output", metavar="FILE")
    png: Path | None = option(None, "write the waterfall as a picture")
    svg: Path | None = option(None, "the same, to be scaled")

    def __post_init__(self) -> None:
        """Refuse unwritable paths before the work."""
        check_least("rows", self.rows, 0)
        check_outputs(self, ("png", "svg"))


def show(found: Explanation, output: ExplainOutput) -> int:
    """Print the explanation and write the files; returns 0. Raises ConfigError."""
    from reporting.data_forms import json_text
    from reporting.plain_text import document_lines
    from serving.analysis.explain.explain_report import explain_data, explain_document

    if output.json != "-":
        print("\n".join(document_lines(explain_document(found, rows=output.rows))))
    if output.json is not None:
        write_json(json_text(explain_data(found)), output.json)
    for path in (output.png, output.svg):
        if path is not None:
            from serving.analysis.chart_file import write_chart
            from serving.analysis.explain.explain_chart import explain_chart

            write_chart(explain_chart(found), path, field=path.suffix[1:])
            say(f"wrote {path}")
    return 0

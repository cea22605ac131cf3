"""A running server's step, recorded for `ultraserve explain server`."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from serving.commands.analysis_options import (
    JsonOptions,
    PlotOptions,
    check_least,
    check_outputs,
    one_of,
    print_answer,
)
from startup.typed_options import option, read_options

if TYPE_CHECKING:
    from serving.analysis.explain.explanation import Explanation


@dataclass(frozen=True, kw_only=True)
class ExplainOutput(JsonOptions, PlotOptions):
    """Destinations of the answer."""

    GROUP = "output"

    rows: int = option(12, "sensitivities in the table")

    def __post_init__(self) -> None:
        """Refuse unwritable paths before the work."""
        check_least("rows", self.rows, 0)
        check_outputs(self)


def show(found: Explanation, output: ExplainOutput) -> int:
    """Print the explanation and write the files; returns 0. Raises ConfigError."""
    from reporting.plain_text import document_lines
    from serving.analysis.explain.explain_report import explain_data, explain_document

    lines = document_lines(explain_document(found, rows=output.rows))
    print_answer(lines, lambda: explain_data(found), json=output.json)
    if output.plot:
        from serving.analysis.explain.explain_chart import explain_chart

        output.write_plots(lambda: explain_chart(found))
    return 0


@dataclass(frozen=True, kw_only=True)
class RecordedStepOptions(ExplainOutput):
    """A running server's step."""

    GROUP = "the step"

    phase: str | None = option(
        None,
        "prefill, mixed or decode (default: what takes the most time)",
        metavar="PHASE",
    )


def explain_server(args: argparse.Namespace) -> Explanation | None:
    """Record, and explain the phase's step of median duration; None if no step ran.

    Raises ConfigError, and UltraServeError for a server that does not answer.
    """
    from serving.analysis.explain.explained_server import step_of_server, typical_step
    from serving.analysis.explain.explanation import explain
    from serving.commands.control_connection import connect
    from serving.commands.profile_server import profile_server
    from serving.wire import control_call
    from serving.wire.step_record import StepPhase

    options = read_options(RecordedStepOptions, args)
    phase = None if options.phase is None else one_of(StepPhase, "phase", options.phase)
    run, _ = profile_server(args)
    if not run.steps:
        return None
    with connect(args) as client:
        description = client.call(control_call.DESCRIBE_SYSTEM)
    question, compared, notes = step_of_server(description, typical_step(run.steps, phase))
    return explain(question, compared=compared, notes=notes)

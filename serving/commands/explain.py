"""`ultraserve explain`: why a step takes as long as it does.

Its terms as a waterfall, what bounds it, the next best layout, the sensitivity to each assumption.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from emulator.errors import ConfigError
from serving.commands.analysis_options import check_folder, check_least, one_of, say
from serving.settings import PartitionOptions
from startup.typed_options import REQUIRED, add_options, option, read_options

if TYPE_CHECKING:
    from serving.analysis.explain.explanation import Explanation
    from serving.analysis.explain.step_question import StepQuestion

_PICTURES = ("png", "svg")


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
        for name in _PICTURES:
            path = getattr(self, name)
            if path is not None and path.suffix.lower() != f".{name}":
                raise ConfigError(field=name, value=path, expected=f"a path that ends in .{name}")
        for name in ("json", *_PICTURES):
            path = getattr(self, name)
            if path is not None and str(path) != "-":
                check_folder(name, Path(path))


@dataclass(frozen=True, kw_only=True)
class StepOptions(ExplainOutput, PartitionOptions):
    """A declared step."""

    GROUP = "the step"

    model: str = option(REQUIRED, "a model of the catalog", metavar="NAME")
    precision: str | None = option(
        None, "of weights: bf16, fp8, mxfp4, nvfp4, stored (default: as stored, if it can be)"
    )
    batch: int = option(1, "decoding requests of each rank", metavar="N")
    context: int = option(1_024, "tokens in each request's cache", metavar="N")
    prefill_tokens: int = option(0, "prompt tokens of each rank in the step", metavar="N")
    prompt: int | None = option(
        None, "of prompts of so many tokens (default: one prompt)", metavar="N"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("batch", 0), ("context", 1), ("prefill_tokens", 0), ("prompt", 1)):
            check_least(name, getattr(self, name), least)
        if not self.batch and not self.prefill_tokens:
            raise ConfigError(field="batch", value=0, expected="at least 1 without prefill tokens")

    def question(self) -> StepQuestion:
        """The step as a question; raises ConfigError."""
        from emulator.memory.chip_contents import HbmTerms
        from emulator.specs.assumptions import with_assumptions
        from emulator.specs.models import model_by_name
        from emulator.specs.overlap import Overlap
        from emulator.specs.shipped_fits import calibration_for
        from emulator.specs.systems import system_by_name
        from emulator.timing.expert_distribution import ExpertDistribution
        from serving.analysis.explain.step_load import DeclaredLoad
        from serving.analysis.explain.step_question import StepQuestion, left_out_calibrations
        from serving.analysis.steady_state.partitions import declared_candidate
        from serving.analysis.steady_state.precision import as_stored_or_narrowest, model_at
        from serving.analysis.steady_state.step_assumptions import StepAssumptions

        system = with_assumptions(system_by_name(self.system), self.assumptions)
        stored = model_by_name(self.model)
        precision = self.precision or as_stored_or_narrowest(system.chip, stored)
        model = model_at(precision, stored, system.chip)
        partition = self.partition(system)
        routing = self.routing or "uniform"
        assumed = StepAssumptions(
            overlap=one_of(Overlap, "overlap", self.overlap),
            calibration=calibration_for(system.chip.name, name=self.calibration),
        )
        terms = HbmTerms(utilization=0.92)
        return StepQuestion(
            subject="a step",
            system=system,
            model=model,
            precision=precision,
            candidate=declared_candidate(system, model, partition, terms=terms),
            load=DeclaredLoad(
                context_tokens=self.context,
                prefill_tokens=self.prefill_tokens,
                prompt_tokens=self.prompt or max(1, self.prefill_tokens),
            ),
            requests=self.batch * partition.ranks,
            assumptions=assumed,
            routing=routing,
            distribution=ExpertDistribution.parse(routing, model, seed=0),
            terms=terms,
            left_out=left_out_calibrations(system.chip.name, name=self.calibration),
            intervals=assumed.model_error,
        )


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `explain` command."""
    parser = subparsers.add_parser(
        "explain",
        help="why a step takes as long as it does, term by term, and what would change it",
        description="The terms of a step as a waterfall, each with its work, law, figures and "
        "sources; what bounds it, what the next best layout of the same chips would change, and "
        "the sensitivity to each constant and assumption. Modelled; starts nothing.",
    )
    subjects = parser.add_subparsers(dest="explained", required=True, metavar="SUBJECT")
    step = subjects.add_parser("step", help="a step of a declared partition")
    add_options(step, StepOptions)
    step.set_defaults(run=run_step)


def run_step(args: argparse.Namespace) -> int:
    """Explain a declared step; returns 0. Raises ConfigError."""
    from serving.analysis.explain.explanation import explain

    options = read_options(StepOptions, args)
    return show(explain(options.question()), options)


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


def write_json(text: str, where: str) -> None:
    """To a file, or standard output for `-`; raises ConfigError."""
    if where == "-":
        print(text)
        return
    try:
        Path(where).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        expected = f"a path to write to ({error.strerror})"
        raise ConfigError(field="json", value=where, expected=expected) from error

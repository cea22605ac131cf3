"""`ultraserve explain`: why a step takes as long as it does.

Its terms as a waterfall, what bounds it, the next best layout, the sensitivity to each assumption.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from emulator.errors import ConfigError
from loadgen.workloads.session_options import LENGTHS
from serving.commands.analysis_options import check_least, one_of, say
from serving.commands.control_connection import add_connection_group
from serving.commands.drawn_lengths import mean_tokens
from serving.commands.explain_server import ExplainOutput, RecordedStepOptions, explain_server, show
from serving.commands.profile import LiveOptions
from serving.settings import PartitionOptions
from serving.traffic.draft_options import DraftOptions
from serving.traffic.engine_limits import HBM_SHARE
from startup.typed_options import REQUIRED, add_options, option, read_options

if TYPE_CHECKING:
    from serving.analysis.explain.step_question import StepQuestion


@dataclass(frozen=True, kw_only=True)
class StepOptions(ExplainOutput, DraftOptions, PartitionOptions):
    """A declared step."""

    GROUP = "the step"

    model: str = option(REQUIRED, "a model of the catalog", metavar="NAME")
    precision: str | None = option(
        None,
        "of weights: bf16, fp8, mxfp8, mxfp4, w4a8, nvfp4, stored (default: as stored, if it can "
        "be)",
    )
    batch: int = option(1, "decoding requests of each rank", metavar="N")
    context: int = option(1_024, "tokens in each request's cache", metavar="N")
    prefill_tokens: int = option(0, "prompt tokens of each rank in the step", metavar="N")
    gpu_memory_utilization: float = option(HBM_SHARE, "share of HBM to use", metavar="SHARE")
    input: str | None = option(
        None,
        "tokens of the prompts that --prefill-tokens are of; of several lengths their mean "
        "(default: one prompt)",
        metavar=LENGTHS,
    )

    def __post_init__(self) -> None:
        ExplainOutput.__post_init__(self)
        DraftOptions.__post_init__(self)
        for name, least in (("batch", 0), ("context", 1), ("prefill_tokens", 0)):
            check_least(name, getattr(self, name), least)
        if not self.batch and not self.prefill_tokens:
            raise ConfigError("batch", 0, "at least 1 without prefill tokens")

    def question(self) -> StepQuestion:
        """The step as a question; raises ConfigError."""
        from emulator.memory.chip_contents import HbmTerms
        from emulator.specs.assumptions import with_assumptions
        from emulator.specs.models import model_by_name
        from emulator.specs.overlap import Overlap
        from emulator.specs.precisions import as_stored_or_narrowest, model_at
        from emulator.specs.shipped_fits import calibration_for
        from emulator.specs.systems import system_by_name
        from emulator.timing.expert_distribution import ExpertDistribution
        from serving.analysis.explain.step_load import DeclaredLoad
        from serving.analysis.explain.step_question import StepQuestion, left_out_calibrations
        from serving.analysis.steady_state.partitions import declared_candidate
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
        terms = HbmTerms(utilization=self.gpu_memory_utilization)
        drafter = self.drafter(model)
        question = StepQuestion(
            subject="a step",
            system=system,
            model=model,
            precision=precision,
            candidate=declared_candidate(
                system,
                model,
                partition,
                terms=terms,
                drafts_by_layer=self.drafts_by_layer,
                drafter=drafter,
            ),
            load=DeclaredLoad(
                context_tokens=self.context,
                prefill_tokens=self.prefill_tokens * partition.ranks,
                prompt_tokens=mean_tokens("input", self.input)
                if self.input
                else max(1, self.prefill_tokens),
            ),
            requests=self.batch * partition.ranks,
            assumptions=assumed,
            routing=routing,
            distribution=ExpertDistribution.parse(routing, model, seed=0),
            terms=terms,
            draft_tokens=self.speculative_tokens,
            draft_module=self.drafts_by_layer,
            draft_model=drafter,
            tokens_per_step=self.tokens_per_step,
            left_out=left_out_calibrations(system.chip.name, name=self.calibration),
            intervals=assumed.model_error if self.batch and not self.prefill_tokens else {},
        )
        question.check_kv()
        return question


@dataclass(frozen=True, kw_only=True)
class PointOptions(ExplainOutput):
    """A point of a file."""

    GROUP = "the point"

    point: int | None = option(
        None,
        "its place among the machine's points, or a plan's candidates, from 0 on (default: the "
        "partition that the plan chose)",
        metavar="N",
    )
    system: str | None = option(None, "of the file's machines (default: the first)", metavar="NAME")
    prompt: bool = option(
        False, "explain one prompt on an idle replica, not the mean step between tokens"
    )


@dataclass(frozen=True, kw_only=True)
class RowOptions(ExplainOutput):
    """A measured row."""

    GROUP = "the row"

    data: Path = option(REQUIRED, "CSV with InferenceX's columns", metavar="FILE")
    row: int = option(REQUIRED, "its line in the file, the header's being 1", metavar="LINE")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `explain` command."""
    parser = subparsers.add_parser(
        "explain",
        help="why a step takes as long as it does, term by term, and what would change it",
        description="The terms of a step as a waterfall, each with its work, law, figures and "
        "sources; what bounds it, what the next best layout of the same chips would change, and "
        "the sensitivity to each constant and assumption. Modelled; starts nothing.",
        epilog="Exit codes: 0 done; 1 no step of the server ran; 2 a wrong argument, or a server "
        "that does not answer.",
    )
    subjects = parser.add_subparsers(dest="explained", required=True, metavar="SUBJECT")
    step = subjects.add_parser("step", help="a step of a declared partition")
    add_options(step, StepOptions)
    step.set_defaults(run=run_step)
    point = subjects.add_parser("point", help="a point of a pareto, or a plan, from its JSON")
    point.add_argument(
        "file", type=Path, metavar="FILE", help="of pareto --json FILE or plan --json FILE"
    )
    add_options(point, PointOptions)
    point.set_defaults(run=run_point)
    row = subjects.add_parser("row", help="a measured row: predicted against measured")
    add_options(row, RowOptions)
    row.set_defaults(run=run_row)
    server = subjects.add_parser("server", help="a recorded step of a running server")
    add_connection_group(server)
    add_options(server, LiveOptions)
    add_options(server, RecordedStepOptions)
    server.set_defaults(run=run_server, keep_steps=None)


def run_step(args: argparse.Namespace) -> int:
    """Explain a declared step; returns 0. Raises ConfigError."""
    from serving.analysis.explain.explanation import explain

    options = read_options(StepOptions, args)
    if (assumed := options.published_acceptance()) is not None:
        say(assumed)
    return show(explain(options.question()), options)


def run_point(args: argparse.Namespace) -> int:
    """Explain a point of a file; returns 0. Raises ConfigError."""
    from serving.analysis.explain.explained_file import point_of_file
    from serving.analysis.explain.explanation import explain

    options = read_options(PointOptions, args)
    question, compared = point_of_file(
        args.file, point=options.point, system=options.system, prompt=options.prompt
    )
    return show(explain(question, compared=compared), options)


def run_row(args: argparse.Namespace) -> int:
    """Explain a measured row; returns 0. Raises ConfigError."""
    from serving.analysis.explain.explained_row import row_of_file
    from serving.analysis.explain.explanation import explain

    options = read_options(RowOptions, args)
    question, compared, notes = row_of_file(options.data, options.row)
    return show(explain(question, compared=compared, notes=notes), options)


def run_server(args: argparse.Namespace) -> int:
    """Explain a step of a running server; returns 1 when none ran. Raises UltraServeError."""
    found = explain_server(args)
    if found is None:
        say("no step ran: there is nothing to explain")
        return 1
    return show(found, read_options(RecordedStepOptions, args))

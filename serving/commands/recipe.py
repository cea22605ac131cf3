"""`ultraserve recipe`: how to train a model on a machine, searched under HBM; starts nothing."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from emulator.errors import ConfigError
from emulator.specs.shipped_fits import calibration_name
from emulator.specs.training_recipe import BATCH_TOKENS, SEQUENCE_TOKENS
from loadgen.option_values import some_duration_s
from serving.commands.analysis_options import (
    JsonOptions,
    check_outputs,
    one_of,
    print_answer,
    whole_numbers,
)
from serving.settings import AssumptionOptions
from startup.typed_options import REQUIRED, add_options, option, read_options

if TYPE_CHECKING:
    from emulator.ultraserver.recipe_search import RecipeSpace
    from serving.analysis.training.recipe_plan import RecipeQuestion


@dataclass(frozen=True, kw_only=True)
class RecipeSpaceOptions(AssumptionOptions):
    """Recipes to try, and the machine."""

    GROUP = "what to try: by default everything that fits"

    model: str = option(REQUIRED, "a model of the catalog", metavar="NAME")
    system: str = option("trn3-nl72x2", "machine of the catalog", metavar="NAME")
    units: int | None = option(
        None, "machines, joined by network cards (default: as few as hold the model)"
    )
    chips: int | None = option(None, "of them, equally many of each (default: all)")
    precision: str | None = option(
        None,
        "of matrix products: bf16, fp8 (MXFP8 on Trainium3)",
        metavar="NAME,...",
    )
    tp: str | None = option(None, "chips of a tensor-parallel rank", metavar="N,...")
    pp: str | None = option(None, "stages of the pipeline", metavar="N,...")
    virtual_stages: str | None = option(
        None, "parts of a stage that take turns (default: 1,2,4)", metavar="N,..."
    )
    ep: str | None = option(None, "chips of an expert group", metavar="N,...")
    zero: str | None = option(
        None, "ZeRO stages: 1 optimizer, 2 gradients, 3 weights (default: 1,2,3)", metavar="N,..."
    )
    recompute: str | None = option(
        None, "of activations: none, selective, full", metavar="NAME,..."
    )
    sequences: str | None = option(
        None, "of a micro-batch of a replica (default: 1,2,4)", metavar="N,..."
    )
    schedule: str = option("1f1b", "of the pipeline: 1f1b, dualpipe", metavar="NAME")
    sequence_tokens: int = option(SEQUENCE_TOKENS, "tokens of a sequence")
    batch_tokens: int = option(
        BATCH_TOKENS,
        "tokens of a step at most, which set how many micro-batches accumulate (default: "
        f"{BATCH_TOKENS:,}, as Llama 3 405B)",
    )
    lnc: int | None = option(None, "physical cores of a logical one (default: the chip's)")
    overlap: str = option(
        "none",
        "what hides behind computing: two-batch: exchanges of experts, hops and gradients; full: a "
        "rank's collectives too",
        metavar="{none,two-batch,full}",
    )
    calibration: str = option(
        "fitted",
        "fitted: with the overheads of real stacks (default); roofline: what the hardware allows",
        type=calibration_name,
        metavar="{fitted,roofline}",
    )


@dataclass(frozen=True, kw_only=True)
class RecipeOptions(JsonOptions, RecipeSpaceOptions):
    """All of a recipe's question."""

    GROUP = "answer"

    rows: int = option(5, "of the fastest recipes in the table")
    chip_mtbf_s: float | None = option(
        None,
        "time between failures of one chip, such as 50000h (default: that of Llama 3's H100, "
        "50,674 h; assumed for other chips)",
        "--chip-mtbf",
        type=some_duration_s,
        metavar="TIME",
    )
    checkpoint_every_s: float | None = option(
        None,
        "useful time between two checkpoints (default: what loses the least)",
        "--checkpoint-every",
        type=some_duration_s,
        metavar="TIME",
    )

    def __post_init__(self) -> None:
        check_outputs(self)

    def question(self) -> RecipeQuestion:
        """The options as a question; raises ConfigError."""
        from emulator.specs.assumptions import with_assumptions
        from emulator.specs.models import model_by_name
        from emulator.specs.shipped_fits import calibration_for
        from emulator.specs.systems import system_by_name
        from serving.analysis.training.recipe_plan import FailureTerms, RecipeQuestion

        domain = with_assumptions(system_by_name(self.system), self.assumptions)
        failures = FailureTerms(interval_s=self.checkpoint_every_s)
        if self.chip_mtbf_s is not None:
            failures = replace(failures, chip_mtbf_s=self.chip_mtbf_s)
        return RecipeQuestion(
            domain=domain,
            model=model_by_name(self.model),
            space=self._space(),
            calibration=calibration_for(domain.chip.name, name=self.calibration),
            failures=failures,
            units=self.units,
            chips=self.chips,
            rows=self.rows,
        )

    def _space(self) -> RecipeSpace:
        from emulator.specs.overlap import Overlap
        from emulator.specs.training_recipe import (
            PipelineSchedule,
            Recompute,
            Sharding,
        )
        from emulator.ultraserver.recipe_search import RecipeSpace

        stages = {int(stage): stage for stage in Sharding}
        asked = whole_numbers("zero", self.zero) or tuple(stages)
        for stage in asked:
            if stage not in stages:
                raise ConfigError("zero", stage, "1, 2 or 3")
        given = {
            name: whole_numbers(name, getattr(self, name))
            for name in ("tp", "pp", "virtual_stages", "ep")
        }
        words = self.recompute.split(",") if self.recompute else list(Recompute)
        return RecipeSpace(
            sequence_tokens=self.sequence_tokens,
            batch_tokens=self.batch_tokens,
            precision=tuple(self.precision.split(",")) if self.precision else (),
            sharding=tuple(stages[stage] for stage in asked),
            recompute=tuple(one_of(Recompute, "recompute", word) for word in words),
            sequences=whole_numbers("sequences", self.sequences),
            schedule=one_of(PipelineSchedule, "schedule", self.schedule),
            overlap=one_of(Overlap, "overlap", self.overlap),
            lnc=self.lnc,
            **given,
        )


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `recipe` command."""
    parser = subparsers.add_parser(
        "recipe",
        help="the fastest recipe to train a model on a machine, its MFU, HBM and goodput",
        description="Search training recipes that fit HBM: ZeRO stages, tensor, pipeline and "
        "expert parallelism, recomputing, micro-batches, precisions. Print the fastest, its time "
        "and memory by part, model-flops utilisation, goodput, and the fewest chips. Modelled, not "
        "measured.",
        epilog="Example: ultraserve recipe --model deepseek-v3 --pp 1,2,4 --overlap two-batch",
    )
    add_options(parser, RecipeOptions)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Search and print; returns 0. Raises UltraServeError."""
    from reporting.plain_text import document_lines
    from serving.analysis.training.recipe_plan import recipe_plan
    from serving.analysis.training.recipe_report import recipe_data, recipe_document

    options = read_options(RecipeOptions, args)
    plan = recipe_plan(options.question())
    print_answer(
        document_lines(recipe_document(plan)), lambda: recipe_data(plan), json=options.json
    )
    return 0

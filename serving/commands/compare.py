"""`ultraserve compare`: systems side by side for one demand and one latency target.

Each system is planned as `ultraserve plan` does it; starts no server.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from loadgen.option_values import some_duration_s
from serving.commands.analysis_options import interrupted_by, print_answer, say
from serving.commands.pareto import assumed_systems, lncs_of
from serving.commands.plan import PlanOptions, question_by_system
from serving.commands.plan_searched import SEARCHED
from serving.commands.planned_sessions import add_session_arguments
from serving.traffic.draft_options import DRAFT_LIMITS
from serving.traffic.engine_limits import SchedulerLimits
from startup.typed_options import add_options, option, read_options

if TYPE_CHECKING:
    from emulator.specs.system import SystemSpec
    from serving.analysis.compare.compare import ComparisonTerms, QuestionOn, SystemRefusal
    from serving.analysis.compare.compare_report import CompareReport
    from serving.analysis.plan.plan_question import PlanQuestion

_BUDGET_S: Final = 600.0
_NOT_HERE: Final = (
    *("system", "disaggregated", "effort", "minimise"),
    *("chip_hour_dollars", "system_hour_dollars", "kwh_dollars", "gco2_per_kwh"),
)


@dataclass(frozen=True, kw_only=True)
class CompareOptions(PlanOptions):
    """All of a comparison of systems."""

    GROUP = PlanOptions.GROUP

    systems: str | None = option(
        None, "machines of the catalog (default: every one)", metavar="NAME,..."
    )
    budget_s: float = option(
        _BUDGET_S,
        "time for the search of all systems together: one half is divided evenly over those that "
        "hold the model, the other by their partitions (default: 10m)",
        type=some_duration_s,
        metavar="TIME",
    )

    def names(self) -> list[str]:
        """Of the systems, each once."""
        from emulator.specs.systems import SYSTEMS

        if self.systems is None:
            return [*SYSTEMS]
        return list(dict.fromkeys(name.strip() for name in self.systems.split(",")))


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `compare` command."""
    parser = subparsers.add_parser(
        "compare",
        help="systems side by side for one demand: machines, megawatts, dollars, carbon",
        description="What each system needs to serve one demand within one latency target: "
        "machines, chips, megawatts, and with a file of prices dollars and carbon per million "
        "tokens. Each is planned by simulation as by `ultraserve plan`. Modelled, not measured.",
        epilog="Example: ultraserve compare --model gpt-oss-120b --systems "
        "trn2-ultraserver,trn3-nl72x2,dgx-b200 --rate 20 --slo ttft=1s,tpot=30ms@p99 --prices "
        "deploy/prices/example.toml",
    )
    add_options(parser, CompareOptions, without=_NOT_HERE)
    add_session_arguments(parser)
    add_options(parser, SchedulerLimits, without={*DRAFT_LIMITS, *SEARCHED})
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Compare and print; returns 0 if a system can, else 1; 130 or 143 where a signal ended it.

    Raises UltraServeError for what is wrong on every system.
    """
    from reporting.plain_text import document_lines
    from serving.analysis.compare.compare_report import compare_data

    options = read_options(CompareOptions, args)
    caught: list[int] = []
    try:
        with interrupted_by(caught):
            report = _report(args, options, caught)
    except KeyboardInterrupt:
        say("ultraserve compare: interrupted, nothing was compared")
        return 128 + caught[0] if caught else 130
    print_answer(document_lines(report.document()), lambda: compare_data(report), json=options.json)
    _write_files(options, report)
    if caught:
        return 128 + caught[0]
    return 0 if report.comparison.found else 1


def _report(
    args: argparse.Namespace, options: CompareOptions, caught: Sequence[int]
) -> CompareReport:
    from emulator.specs.models import model_by_name
    from serving.analysis.compare.compare import compare
    from serving.analysis.compare.compare_report import CompareReport

    terms = _terms(options)
    systems, refused = _systems(options)
    question_on = _question_on(args, options, systems)
    with options.workers() as workers:
        found = compare(
            systems,
            question_on,
            terms,
            refused=refused,
            workers=workers,
            progress=say,
            is_interrupted=lambda: bool(caught),
        )
    return CompareReport(
        comparison=found,
        model=model_by_name(options.model).name,
        slo=str(options.target()),
    )


def _terms(options: CompareOptions) -> ComparisonTerms:
    from serving.analysis.compare.compare import ComparisonTerms
    from serving.analysis.compare.price_file import PriceTerm

    return ComparisonTerms(
        budget_s=options.budget_s,
        price_list=options.price_list(),
        price_term=PriceTerm(options.price_term),
    )


def _systems(options: CompareOptions) -> tuple[list[SystemSpec], list[SystemRefusal]]:
    """The named machines; those of a data sheet's chip are refused. Raises ConfigError for a name
    that is neither.
    """
    from emulator.specs.chips import DATA_SHEETS
    from serving.analysis.compare.compare import RefusalKind, SystemRefusal

    sheets = {alias: each for each in DATA_SHEETS.values() for alias in (each.name, *each.aliases)}
    names = options.names()
    refused = [
        SystemRefusal(system=name, kind=RefusalKind.NOT_TIMED, reason=sheets[name.lower()].status)
        for name in names
        if name.lower() in sheets
    ]
    timed = [name for name in names if name.lower() not in sheets]
    return assumed_systems(timed, options.assumptions), refused


def _question_on(
    args: argparse.Namespace, options: CompareOptions, systems: Sequence[SystemSpec]
) -> QuestionOn:
    """The question of a system: of the LNCs asked for it gets those that its chip has."""
    asked = question_by_system(args, options)

    def question_on(system: SystemSpec) -> PlanQuestion:
        question = asked(system)
        lnc = lncs_of(system, systems, question.sweep.asked.lnc)
        sweep = replace(question.sweep, asked=replace(question.sweep.asked, lnc=lnc))
        return replace(question, sweep=sweep)

    return question_on


def _write_files(options: CompareOptions, report: CompareReport) -> None:
    options.write_page(lambda: report)
    if options.plot and report.comparison.found:
        from serving.analysis.compare.compare_chart import compare_chart

        options.write_plots(lambda: compare_chart(report))

"""`ultraserve plan`: how many UltraServers a model's traffic needs, their power and cost.

Starts no server: the steady state proposes, the server's own scheduler decides in virtual time.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from emulator.errors import ConfigError
from loadgen.option_values import some_duration_s
from loadgen.workloads.session_options import LengthOptions
from serving.commands.analysis_options import (
    PageOptions,
    PlotOptions,
    PriceFileOptions,
    ReplicaOptions,
    SimulationOptions,
    check_absent,
    check_least,
    interrupted_by,
    interruptible,
    print_answer,
    say,
)
from serving.commands.drawn_lengths import drawn_lengths, mean_tokens
from serving.commands.plan_outlook_options import OutlookOptions
from serving.traffic.engine_limits import DRAFT_LIMITS, PLANNED_LIMITS, SchedulerLimits
from startup.typed_options import REQUIRED, add_options, given_options, option, read_options

if TYPE_CHECKING:
    from emulator.specs.model import ModelSpec
    from emulator.specs.system import SystemSpec
    from loadgen.workloads.traffic import Traffic
    from reporting.document import Document
    from serving.analysis.plan.night import Day
    from serving.analysis.plan.plan_demand import PlanDemand
    from serving.analysis.plan.plan_difference import PlanAnswer
    from serving.analysis.plan.plan_page import PlanPage
    from serving.analysis.plan.plan_question import PlanQuestion

_OF_RATE: Final = ("input", "output", "lengths")
_OF_TRACE: Final = ("speedup", "scale", "peak_window")
_WINDOW_S: Final = 300.0
POLICIES: Final = (
    *("balanced:32:64:256", "none", "capped:128", "balanced:64:256:1024", "capped:64"),
    *("capped:256", "capped:512"),
)


@dataclass(frozen=True, kw_only=True)
class TrafficOptions(LengthOptions):
    """Traffic and latency target."""

    GROUP = "traffic"

    slo: str = option(
        REQUIRED,
        "such as ttft=500ms,tpot=30ms@p99; p99 where no percentile is named",
        metavar="TARGET",
    )
    trace: Path | None = option(
        None,
        "recorded: Azure's CSV or Mooncake's JSON lines",
        one_of="source",
        needs_one=True,
    )
    rate: float | None = option(None, "requests per second, Poisson", metavar="R", one_of="source")
    speedup: float | None = option(None, "of a trace: its times over X (default: 1)")
    scale: float | None = option(None, "of a trace: X times the requests, same times")
    peak_window: float | None = option(
        None, f"of a trace: length of its peak (default: {_WINDOW_S:g})", metavar="SECONDS"
    )
    lengths: Path | None = option(None, "or draw lengths from those of a trace")
    day: Path | None = option(
        None,
        "a CSV of hour,requests for the night's account (default: the trace's own, if it is a day "
        "long; else the recorded day of one operator)",
    )


@dataclass(frozen=True, kw_only=True)
class PlanOptions(
    TrafficOptions,
    PriceFileOptions,
    PageOptions,
    PlotOptions,
    SimulationOptions,
    ReplicaOptions,
):
    """All of a plan."""

    GROUP = SimulationOptions.GROUP

    no_pools: bool = option(False, "leave out pools of prefill and decode")
    disaggregated: bool = option(
        False, "does nothing any more: pools are tried unless --no-pools; it goes in 0.2"
    )
    prefill_policy: str | None = option(
        None,
        "how prefills are held back for decodes: none, staggered:RANKS, capped:TOKENS or "
        f"balanced:STEPS:FLOOR:CEILING (default: each of {', '.join(POLICIES)})",
        metavar="POLICY,...",
    )
    tries: int = option(6, "partitions to simulate at each size")
    effort: int | None = option(
        None, "does nothing any more: --budget bounds the search; it goes in 0.2", metavar="TOKENS"
    )
    budget_s: float = option(
        60.0,
        "time for the plan: when the search has had 0.7 of it, the best so far is the answer "
        "(default: 60s)",
        type=some_duration_s,
        metavar="TIME",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("requests", "tries"):
            check_least(name, getattr(self, name), 1)
        names: tuple[str, ...] = _OF_RATE if self.trace else _OF_TRACE
        source = "--rate" if self.trace else "--trace"
        if self.lengths is not None:
            names = (*names, "input", "output")
        check_absent(self, names, expected=f"nothing without {source}, or beside --lengths")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `plan` command."""
    parser = subparsers.add_parser(
        "plan",
        help="how many UltraServers meet a latency target, their power, cost and free nights",
        description="How many UltraServers, and which partition, serve a model's traffic within a "
        "latency target; megawatts, dollars per million tokens, N+1, and what the night leaves "
        "over. Partitions and prefill policies race in simulation. Modelled, not measured.",
        epilog="Example: ultraserve plan --model gpt-oss-120b --rate 20 --slo "
        "ttft=1s,tpot=30ms@p99 --price-hour 500 --price-kwh 0.08",
    )
    add_options(parser, PlanOptions)
    add_options(parser, OutlookOptions)
    add_options(
        parser, SchedulerLimits, without={*DRAFT_LIMITS, "prefill_policy"}, defaults=PLANNED_LIMITS
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Plan and print; returns 0, or 130 or 143 where a signal ended the search with the best so
    far. Raises UltraServeError.
    """
    from reporting.plain_text import document_lines
    from serving.analysis.explain.point_bottleneck import point_bottleneck
    from serving.analysis.plan.plan_difference import plan_answer, what_if_data, with_what_if
    from serving.analysis.plan.plan_report import plan_data, plan_document

    outlook = read_options(OutlookOptions, args)
    question = question_of(args)
    ended = "ultraserve plan: interrupted, nothing was planned"
    options = read_options(PlanOptions, args)
    if options.effort is not None:
        say("warning: --effort does nothing any more: --budget bounds the search")
    if options.disaggregated:
        say("warning: --disaggregated does nothing any more: see --no-pools")
    caught: list[int] = []
    planned = partial(
        plan_answer,
        catalog=_catalog_machine(options),
        outlook=outlook.terms(),
        is_interrupted=lambda: bool(caught),
    )
    try:
        with interrupted_by(caught):
            answer = interruptible(planned, question, options=options, ended=ended)
    except KeyboardInterrupt:
        return 128 + caught[0] if caught else 130
    point = answer.plan.choice.setting.option.point
    bottleneck = point_bottleneck(answer.plan.question.sweep, point)
    document = with_what_if(plan_document(answer.plan, bottleneck=bottleneck), answer)
    print_answer(
        document_lines(document),
        lambda: {**plan_data(answer.plan), **what_if_data(answer)},
        json=options.json,
    )
    _write_files(options, answer, document, command=f"ultraserve {shlex.join(args.words)}")
    return 128 + caught[0] if caught else 0


def _write_files(
    options: PlanOptions, answer: PlanAnswer, document: Document, *, command: str
) -> None:
    moved = answer.sensitivity

    def page() -> PlanPage:
        from serving.analysis.plan.plan_outlook import outlook_charts
        from serving.analysis.plan.plan_page import PlanPage
        from serving.analysis.plan.plan_sensitivity_chart import sensitivity_page_chart

        tornado = () if moved is None else (sensitivity_page_chart(moved),)
        further = (*outlook_charts(answer.plan, answer.outlook), *tornado)
        return PlanPage(plan=answer.plan, report=document, command=command, further=further)

    options.write_page(page)
    if moved is not None and options.plot:
        from serving.analysis.plan.plan_sensitivity_chart import sensitivity_chart

        options.write_plots(lambda: sensitivity_chart(moved, answer.plan))


def _catalog_machine(options: PlanOptions) -> SystemSpec | None:
    """The machine without the figures that were set; None where there are none."""
    from emulator.specs.assumptions import turns_switch, with_assumptions
    from emulator.specs.systems import system_by_name

    system = system_by_name(options.system)
    turned = [text for text in options.assumptions if turns_switch(system, text)]
    if len(turned) == len(options.assumptions):
        return None
    return with_assumptions(system, turned)


def question_of(args: argparse.Namespace) -> PlanQuestion:
    """The plan by the arguments; raises UltraServeError."""
    options = read_options(PlanOptions, args)
    machine = options.machine()
    question = question_by_system(args, options)(machine)
    return replace(question, prices=options.prices_on(machine.name))


def question_by_system(
    args: argparse.Namespace, options: PlanOptions
) -> Callable[[SystemSpec], PlanQuestion]:
    """The plan by the arguments on any system, without prices; raises UltraServeError for what is
    wrong on each. What it returns raises ConfigError for what the system cannot do.
    """
    from emulator.specs.models import model_by_name
    from serving.analysis.plan.plan_check import CheckTerms
    from serving.analysis.plan.plan_question import PlanQuestion, SearchTerms
    from serving.policy.prefill_throttle import parse_prefill_policy
    from serving.traffic.slo import parse_slo

    policies = tuple(options.prefill_policy.split(",")) if options.prefill_policy else POLICIES
    policies = tuple(parse_prefill_policy(each).name for each in policies)
    limits = {**given_options(SchedulerLimits, args), "prefill_policy": policies[0]}
    schedulers = SchedulerLimits(**limits)
    slo = parse_slo(options.slo)
    demand, day = _demand(options, model_by_name(options.model))
    peak = demand.peak
    check = CheckTerms(schedulers=schedulers, judged=options.requests, seed=options.seed)
    search = SearchTerms(policies=policies, tries=options.tries, budget_s=options.budget_s)

    def question_on(system: SystemSpec) -> PlanQuestion:
        return PlanQuestion(
            sweep=options.mean_sweep(
                peak.prompt_tokens, peak.output_tokens, schedulers, system=system
            ),
            demand=demand,
            slo=slo,
            day=day,
            check=check,
            search=search,
            pools=not options.no_pools,
            assumptions=tuple(options.assumptions),
        )

    return question_on


def _demand(options: PlanOptions, model: ModelSpec) -> tuple[PlanDemand, Day]:
    """The traffic and the shape of a day."""
    from serving.analysis.plan.night import day_of_trace, deepseek_day, read_day
    from serving.analysis.plan.plan_demand import TraceDemand, multiplied

    day = read_day(options.day) if options.day is not None else None
    if options.trace is None:
        return _rate_demand(options, model), day or deepseek_day()
    recorded, words = _recorded(options.trace, model)
    window_s = _WINDOW_S if options.peak_window is None else options.peak_window
    as_recorded = TraceDemand(traffic=recorded, window_s=window_s, source=words)
    day = day or day_of_trace(
        recorded, window_s=window_s, peak_rate_per_s=as_recorded.peak_rate_per_s
    )
    traffic = recorded
    if options.speedup is not None:
        traffic = traffic.sped_up(options.speedup)
        words = f"{words}, {options.speedup:g} times as fast"
    if options.scale is not None:
        traffic = multiplied(traffic, options.scale, seed=options.seed)
        words = f"{words}, {options.scale:g} times the requests"
    demand = TraceDemand(traffic=traffic, window_s=window_s, source=words)
    return demand, day or deepseek_day()


def _rate_demand(options: PlanOptions, model: ModelSpec) -> PlanDemand:
    from loadgen.workloads.length_pairs import LengthPairs
    from serving.analysis.plan.plan_demand import RateDemand

    lengths: LengthPairs
    if options.lengths is not None:
        recorded, words = _recorded(options.lengths, model)
        lengths, words = recorded.lengths, f"lengths of {words}"
    else:
        for name in ("input", "output"):
            text = getattr(options, name)
            if text is not None and mean_tokens(name, text) > model.max_context_tokens:
                raise ConfigError(name, text, f"at most the context, {model.max_context_tokens:,}")
        lengths = drawn_lengths(options)
        words = f"prompts of {lengths.prompt.words} tokens, replies of {lengths.output.words}"
    assert options.rate is not None  # the parser asks for it or for a trace
    return RateDemand(
        rate_per_s=options.rate,
        lengths=lengths,
        context_tokens=model.max_context_tokens,
        lengths_in_words=words,
        lengths_seed=options.seed,
    )


def _recorded(path: Path, model: ModelSpec) -> tuple[Traffic, str]:
    """A trace within the context, and its name with the number of left out requests."""
    from loadgen.workloads.traffic import Traffic
    from serving.analysis.plan.plan_demand import too_long

    everything = Traffic.recorded(path)
    traffic = everything.within_context(model.max_context_tokens)
    if not len(traffic):
        raise too_long(model.max_context_tokens)
    dropped = len(everything) - len(traffic)
    words = path.name
    if dropped:
        words += f" without {dropped:,} requests longer than the context"
    return traffic, words

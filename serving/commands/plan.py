"""`ultraserve plan`: how many UltraServers a model's traffic needs, their power and cost.

Starts no server: the steady state proposes, the server's own scheduler decides in virtual time.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from emulator.errors import ConfigError
from loadgen.workloads.session_options import LengthOptions
from loadgen.workloads.traffic_class_spec import add_traffic_class_arguments
from serving.commands.analysis_options import (
    BudgetOptions,
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
from serving.commands.plan_searched import SEARCHED, SearchedOptions
from serving.commands.planned_classes import CLASS_KEYS, planned_classes
from serving.commands.planned_sessions import (
    add_session_arguments,
    planned_sessions,
    sessions_given,
)
from serving.policy.prefill_throttle import PREFILL_POLICIES, parse_prefill_policy
from serving.traffic.draft_options import DRAFT_LIMITS
from serving.traffic.engine_limits import SchedulerLimits
from startup.typed_options import REQUIRED, add_options, given_options, option, read_options

if TYPE_CHECKING:
    from emulator.specs.model import ModelSpec
    from emulator.specs.system import SystemSpec
    from loadgen.measures.slo import Slo
    from loadgen.workloads.traffic import Traffic
    from reporting.document import Document
    from serving.analysis.plan.class_demand import PlannedClass
    from serving.analysis.plan.night import Day
    from serving.analysis.plan.plan_demand import PlanDemand, RateDemand, TrafficPart
    from serving.analysis.plan.plan_difference import PlanAnswer
    from serving.analysis.plan.plan_page import PlanPage
    from serving.analysis.plan.plan_question import LostPart, PlanQuestion
    from serving.analysis.plan.session_demand import SessionDemand

_OF_RATE: Final = ("input", "output", "lengths")
_OF_TRACE: Final = ("speedup", "scale", "peak_window")
_WINDOW_S: Final = 300.0
ENDED: Final = "ultraserve plan: interrupted, nothing was planned"
POLICIES: Final = (
    *("balanced:32:64:256", "none", "capped:128", "balanced:64:256:1024", "capped:64"),
    *("capped:256", "capped:512"),
)


@dataclass(frozen=True, kw_only=True)
class TrafficOptions(LengthOptions):
    """Traffic and latency target."""

    GROUP = "traffic"

    slo: str | None = option(
        None,
        "such as ttft=500ms,tpot=30ms@p99; p99 where no percentile is named",
        metavar="TARGET",
    )
    trace: Path | None = option(
        None,
        "recorded requests (Azure 2023 and 2024, BurstGPT, Mooncake, a folder of ServeGen's "
        "clients)",
        one_of="source",
    )
    rate: float | None = option(
        None, "requests (or sessions) per second, Poisson", metavar="R", one_of="source"
    )
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

    def target(self) -> Slo:
        """The target; raises ConfigError without one."""
        from serving.traffic.slo import parse_slo

        if self.slo is None:
            raise ConfigError("slo", "", "a target, such as ttft=500ms,tpot=30ms@p99")
        return parse_slo(self.slo)


@dataclass(frozen=True, kw_only=True)
class PlanOptions(
    SearchedOptions,
    TrafficOptions,
    PriceFileOptions,
    PageOptions,
    PlotOptions,
    BudgetOptions,
    SimulationOptions,
    ReplicaOptions,
):
    """All of a plan of one model."""

    GROUP = SimulationOptions.GROUP

    no_pools: bool = option(False, "leave out pools of prefill and decode")
    disaggregated: bool = option(
        False, "does nothing any more: pools are tried unless --no-pools; it goes in 0.2"
    )
    prefill_policy: str | None = option(
        None,
        f"how prefills are held back for decodes: {PREFILL_POLICIES} "
        f"(default: each of {', '.join(POLICIES)})",
        metavar="POLICY,...",
    )
    tries: int = option(6, "partitions to simulate at each size")
    effort: int | None = option(
        None, "does nothing any more: --budget bounds the search; it goes in 0.2", metavar="TOKENS"
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


@dataclass(frozen=True, kw_only=True)
class MixOptions(PlanOptions):
    """All of a plan."""

    GROUP = PlanOptions.GROUP

    model: str = option(
        REQUIRED,
        "a model of the catalog, or several on one fleet with their shares of the requests, as in "
        "deepseek-r1=0.7,gpt-oss-120b=0.3; shares are weights and need not add up to 1",
        metavar="NAME[=SHARE,...]",
    )
    lose: Literal["chip", "tray", "machine"] | None = option(
        None,
        "keep the target also once a chip, a tray or a machine is lost: by spare chips, engines or "
        "replicas more, whichever costs the least",
    )

    @property
    def is_mix(self) -> bool:
        """Whether several models share the fleet."""
        return "=" in self.model or "," in self.model

    @property
    def lost(self) -> LostPart | None:
        """What may be lost."""
        from serving.analysis.plan.plan_question import LostPart

        return None if self.lose is None else LostPart(self.lose)


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
    add_options(parser, MixOptions)
    add_session_arguments(parser)
    add_traffic_class_arguments(parser, own=CLASS_KEYS)
    add_options(parser, OutlookOptions)
    add_options(parser, SchedulerLimits, without={*DRAFT_LIMITS, *SEARCHED})
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Plan and print; returns 0, or 130 or 143 where a signal ended the search with the best so
    far. Raises UltraServeError.
    """
    from reporting.plain_text import document_lines
    from serving.analysis.explain.point_bottleneck import point_bottleneck
    from serving.analysis.plan.plan_difference import plan_answer, what_if_data, with_what_if
    from serving.analysis.plan.plan_report import plan_data, plan_document

    options, outlook = read_options(MixOptions, args), read_options(OutlookOptions, args)
    if sessions_given(args) and (outlook.cold_start or outlook.surge is not None):
        named, value = ("surge", outlook.surge) if outlook.surge else ("cold-start", True)
        raise ConfigError(named, value, "nothing beside sessions, which go on where they began")
    if options.effort is not None:
        say("warning: --effort does nothing any more: --budget bounds the search")
    if options.disaggregated:
        say("warning: --disaggregated does nothing any more: see --no-pools")
    if options.is_mix:
        from serving.commands.plan_mix import run_mix

        if options.minimise != "chips":
            raise ConfigError("minimise", options.minimise, "chips with several models")
        return run_mix(args, options, outlook)
    question = question_of(args)
    question = replace(question, lose=options.lost)
    caught: list[int] = []
    planned = partial(
        plan_answer,
        catalog=_catalog_machine(options),
        outlook=outlook.terms(),
        is_interrupted=lambda: bool(caught),
    )
    try:
        with interrupted_by(caught):
            answer = interruptible(planned, question, options=options, ended=ENDED)
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
    from serving.analysis.plan.plan_question import Minimised

    options = read_options(PlanOptions, args)
    machine = options.machine()
    question = question_by_system(args, options)(machine)
    return replace(
        question,
        prices=options.prices_on(machine.name),
        grid_gco2_per_kwh=options.grid_gco2_per_kwh(),
        minimise=Minimised(options.minimise),
        narrow_kv=options.kv_cache_dtype == "auto",
    )


def question_by_system(
    args: argparse.Namespace, options: PlanOptions, part: TrafficPart | None = None
) -> Callable[[SystemSpec], PlanQuestion]:
    """The plan by the arguments on any system, without prices, for a part of the traffic or all;
    raises UltraServeError for what is wrong on each. What it returns raises ConfigError for what
    the system cannot do.
    """
    from emulator.specs.precisions import with_kv_dtype
    from serving.analysis.plan.class_demand import ClassesDemand
    from serving.analysis.plan.plan_check import CheckTerms
    from serving.analysis.plan.plan_question import PlanQuestion, SearchTerms

    policies = tuple(options.prefill_policy.split(",")) if options.prefill_policy else POLICIES
    policies = tuple(parse_prefill_policy(each).name for each in policies)
    batches = options.batch_limits()
    given = {**given_options(SchedulerLimits, args), **asdict(batches[0])}
    schedulers = SchedulerLimits(**{**given, "prefill_policy": policies[0]})
    demand, day = _demand(args, options, part, prefix_caching=schedulers.prefix_caching)
    slo = options.target() if not isinstance(demand, ClassesDemand) else demand.slo
    if isinstance(demand, ClassesDemand) and demand.has_priorities:
        schedulers = replace(schedulers, scheduling_policy="priority")
    peak, prefixes = demand.peak, demand.prefixes
    check = CheckTerms(schedulers=schedulers, judged=options.requests, seed=options.seed)
    search = SearchTerms(
        policies=policies,
        other_limits=batches[1:],
        tries=options.tries,
        budget_s=options.budget_s,
    )

    def question_on(system: SystemSpec) -> PlanQuestion:
        sweep = options.mean_sweep(
            peak.prompt_tokens, peak.output_tokens, schedulers, system=system
        )
        if prefixes is not None:
            sweep = replace(sweep, shape=prefixes.shape(sweep.shape))
        model = with_kv_dtype(options.kv_cache_dtype, sweep.model, system.chip)
        return PlanQuestion(
            sweep=replace(sweep, model=model),
            demand=demand,
            slo=slo,
            day=day,
            check=check,
            search=search,
            pools=not options.no_pools,
            assumptions=tuple(options.assumptions),
        )

    return question_on


def _demand(
    args: argparse.Namespace,
    options: PlanOptions,
    part: TrafficPart | None,
    *,
    prefix_caching: bool,
) -> tuple[PlanDemand, Day]:
    """The traffic and the shape of a day; what prompts share is kept for `prefix_caching` alone."""
    from emulator.specs.models import model_by_name
    from serving.analysis.plan.night import day_of_trace, deepseek_day, read_day
    from serving.analysis.plan.plan_demand import TraceDemand, multiplied

    day = read_day(options.day) if options.day is not None else None
    model = model_by_name(options.model)
    classes = planned_classes(args, options)
    if classes or options.trace is None or sessions_given(args):
        drawn: RateDemand | SessionDemand
        if sessions_given(args):
            drawn = planned_sessions(
                args,
                rate_per_s=options.rate,
                slo=options.target(),
                context_tokens=model.max_context_tokens,
                seed=options.seed,
                caches=prefix_caching,
            )
        else:
            drawn = _rate_demand(options, model, classes)
        return drawn if part is None else part.of_rate(drawn), day or deepseek_day()
    recorded, words = _recorded(options.trace, model, part, seed=options.seed)
    blocks = recorded.blocks if prefix_caching else None
    recorded = replace(recorded, blocks=blocks and blocks.shared())
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


def _rate_demand(
    options: PlanOptions, model: ModelSpec, classes: Sequence[PlannedClass]
) -> RateDemand:
    from loadgen.workloads.length_pairs import LengthPairs
    from serving.analysis.plan.class_demand import ClassesDemand
    from serving.analysis.plan.plan_demand import RateDemand

    if classes:
        return ClassesDemand.of(classes, context_tokens=model.max_context_tokens, seed=options.seed)
    if options.rate is None:
        raise ConfigError("rate", "", "requests per second, or a --trace, or --traffic-class")
    lengths: LengthPairs
    if options.lengths is not None:
        recorded, words = _recorded(options.lengths, model, seed=options.seed)
        lengths, words = recorded.lengths, f"lengths of {words}"
    else:
        for name in ("input", "output"):
            text = getattr(options, name)
            if text is not None and mean_tokens(name, text) > model.max_context_tokens:
                raise ConfigError(name, text, f"at most the context, {model.max_context_tokens:,}")
        lengths = drawn_lengths(options)
        words = f"prompts of {lengths.prompt.words} tokens, replies of {lengths.output.words}"
    return RateDemand(
        rate_per_s=options.rate,
        lengths=lengths,
        context_tokens=model.max_context_tokens,
        lengths_in_words=words,
        lengths_seed=options.seed,
    )


def _recorded(
    path: Path, model: ModelSpec, part: TrafficPart | None = None, *, seed: int
) -> tuple[Traffic, str]:
    """A trace, or a part, within the context; its name with the number of left out requests."""
    from loadgen.workloads.traffic import Traffic
    from serving.analysis.plan.plan_demand import too_long

    everything = Traffic.recorded(path, seed=seed)
    words = path.name
    if part is not None:
        everything = part.of_trace(everything)
        words = f"{100 * part.share:.3g} % of {words} (dealt out at random)"
    traffic = everything.within_context(model.max_context_tokens)
    if len(everything) and not len(traffic):
        raise too_long(model.max_context_tokens)
    dropped = len(everything) - len(traffic)
    if dropped:
        words += f" without {dropped:,} requests longer than the context"
    return traffic, words

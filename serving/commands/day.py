"""`ultraserve day`: chips that serve by day and train by night, over a whole day or week.

Starts no server: one replica is simulated exactly at several rates, then policies walk it.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from emulator.errors import ConfigError
from loadgen.workloads.session_options import LengthOptions
from serving.commands.analysis_options import (
    PlotOptions,
    ReplicaOptions,
    SimulationOptions,
    check_absent,
    check_least,
    interruptible,
    print_answer,
)
from serving.commands.demand_source import DemandSourceOptions
from serving.commands.drawn_lengths import drawn_lengths
from serving.commands.leases import GRACE_S
from serving.commands.simulated_events import REPAIR_S
from serving.traffic.draft_options import DRAFT_LIMITS
from serving.traffic.engine_limits import PLANNED_LIMITS, SchedulerLimits
from serving.traffic.start_time import START_S
from startup.typed_options import add_options, option, read_options

if TYPE_CHECKING:
    from emulator.specs.model import ModelSpec
    from loadgen.workloads.length_pairs import ObservedLengths
    from serving.analysis.day.day_comparison import DayQuestion
    from serving.analysis.day.day_trace import DayTrace
    from serving.analysis.day.held_day import ExactQuestion
    from serving.analysis.day.virtual_day import DaySettings
    from serving.analysis.steady_state.sweep import Sweep
    from serving.simulator.job_cost import JobTerms

_ALL: Final = ("demand", "quantile", "erlang", "schedule:22:00-06:00@{zone}", "price:assumed")
"""Of which hours are those of the trace's zone."""
SLO: Final = "ttft=1s,tpot=30ms@p99"
_DRAWN_PAIRS: Final = 20_000
DAY_S: Final = 86_400.0
_HEADLINE_SHARE: Final = 0.7


@dataclass(frozen=True, kw_only=True)
class DemandOptions(LengthOptions, DemandSourceOptions):
    """Demand and latency target."""

    GROUP = "demand"

    slo: str = option(
        SLO,
        "of TTFT and TPOT, which requests keep both at once",
        metavar="TARGET",
    )
    days: int | None = option(None, "to walk (default: 1)", one_of="length")
    week: bool = option(False, "7 days", one_of="length")
    first_day: int | None = option(
        None,
        "counted from 0 (default: the busiest of the trace; its first one for several days)",
    )
    peak: str = option(
        "50,70,90",
        "of what the machines serve within the target, that the trace's highest rate is scaled to",
        metavar="PERCENT",
    )
    lengths: Path | None = option(
        None,
        "or draw lengths from those of a trace",
    )
    cold: bool = option(
        False,
        "policies know nothing from before a walk that begins with the trace (without it: they are "
        "shown the trace's last day as the day before)",
    )


@dataclass(frozen=True, kw_only=True)
class PolicyOptions:
    """Policies, and how chips change hands."""

    GROUP = "policies"

    policy: str = option(
        "demand",
        "never, schedule:22:00-06:00@Europe/Berlin, demand, quantile:0.99, erlang, price:FILE, "
        "carbon:FILE, python:FILE.py:FUNCTION, oracle or fixed:N",
    )
    policies: tuple[str, ...] = option(
        (),
        "more of them to compare, or all; may be repeated; never, the best fixed split and the "
        "oracle are always there",
        metavar="A,B,C",
    )
    compare: bool = option(
        False,
        "print what the policies come to side by side and nothing else; all of them, unless "
        "--policies says which",
    )
    unit: Literal["flops", "tokens", "trained"] = option(
        "flops",
        "of a policy's value per MWh: model flops of served and trained tokens, output tokens and "
        "trained ones, or trained ones alone",
    )
    train_model: str | None = option(
        None, "of the catalog (default: the served one)", metavar="NAME"
    )
    train_recipe: Literal["default", "searched"] = option(
        "default",
        "default: data and expert parallel, nothing recomputed; searched: the fastest under HBM on "
        "each number of chips (see `ultraserve recipe`)",
    )
    drain_grace: str = option(
        f"{GRACE_S:g}s",
        "emulated seconds that running requests of leaving chips have to end before they go on "
        "elsewhere",
        metavar="S",
    )
    start_seconds: float = option(
        START_S,
        "until processes run and models are loaded, weights left out; assumed",
        metavar="SECONDS",
    )
    check_hour: float | None = option(
        None,
        "of the walk: hold it against the exact run of one replica (minutes of wall time)",
        metavar="H",
    )
    check_minutes: float = option(60.0, "so long", metavar="N")
    exact: bool = option(
        False,
        "simulate the headline's day under --policy too, all replicas step by step with their "
        "hand-overs, and print it beside the walk (minutes of wall time)",
    )
    chip_loss_every: float | None = option(
        None,
        "with --exact: mean seconds between random losses of chips of a machine, which the walk "
        "does not know",
        metavar="S",
    )
    repair: float | None = option(
        None, f"seconds until a lost chip is repaired (default: {REPAIR_S:g})", metavar="S"
    )

    def exact_question(self) -> ExactQuestion | None:
        """What is simulated step by step, if anything; raises ConfigError."""
        from serving.analysis.day.held_day import ExactQuestion

        if not self.exact:
            check_absent(self, ("chip_loss_every",), expected="nothing without --exact")
        if self.chip_loss_every is None:
            check_absent(self, ("repair",), expected="nothing without --chip-loss-every")
        if not self.exact:
            return None
        return ExactQuestion(
            loss_every_s=self.chip_loss_every,
            repair_s=REPAIR_S if self.repair is None else self.repair,
        )


@dataclass(frozen=True, kw_only=True)
class DayOptions(PlotOptions, PolicyOptions, DemandOptions, SimulationOptions, ReplicaOptions):
    """All of a day."""

    GROUP = "machine"

    model: str = option(
        "", "a model of the catalog", metavar="NAME", one_of="who serves", needs_one=True
    )
    tenants: Path | None = option(
        None,
        "or several served models, and training jobs and batch inference on the chips that they "
        "leave: a TOML file as deploy/tenants/example.toml",
        one_of="who serves",
        needs_one=True,
    )
    group_chips: int | None = option(
        None,
        "chips that change hands together, parts of one engine of --chips chips (default: all of a "
        "machine), whose experts go to the chips that stay (without it: a group is a replica)",
    )
    ultraservers: int = option(
        1, "machines, alike and independent; groups, such as those of fixed:N, are of each"
    )
    no_cache: bool = option(
        False,
        "simulate the replica anew, and keep nothing (without it: what a run before simulated for "
        "the same question is taken from the user's cache, ~/.cache/ultraserve)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lengths is not None:
            expected = "nothing beside --lengths"
            check_absent(self, ("input", "output"), expected=expected)
        check_least("group-chips", self.group_chips, 1)
        if self.days is not None and self.days < 1:
            raise ConfigError("days", self.days, "at least 1")

    @property
    def days_walked(self) -> int:
        """Whole days, or the one of a shorter trace."""
        return 7 if self.week else 1 if self.days is None else self.days


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `day` command."""
    parser = subparsers.add_parser(
        "day",
        help="a day or a week of chips that serve by day and train by night, policies compared",
        description="Replicas of UltraServers serve a day's demand within a latency target and "
        "train when it falls, by one policy and by those that it is held against. One replica is "
        "simulated exactly at several rates, the day is walked on what came of it. Modelled, not "
        "measured.",
        epilog="Example: ultraserve day --trace sample --model gpt-oss-120b --policy demand --plot "
        "day.png",
    )
    add_options(parser, DayOptions)
    add_options(parser, SchedulerLimits, without=DRAFT_LIMITS, defaults=PLANNED_LIMITS)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Walk the day and print; returns 0. Raises UltraServeError."""
    from reporting.plain_text import document_lines
    from serving.analysis.day.compared_policies import compared_data, compared_document
    from serving.analysis.day.day_report import day_data, day_document
    from serving.analysis.day.kept_figures import FigureStore
    from serving.analysis.day.virtual_day import virtual_day

    ended = "ultraserve day: interrupted, no day was walked"
    options = read_options(DayOptions, args)
    if options.tenants is not None:
        from serving.commands.day_tenants import run_tenants

        return run_tenants(args, options.tenants)
    walked = partial(virtual_day, store=None if options.no_cache else FigureStore(_cache_folder()))
    found = interruptible(walked, settings_of(args), options=options, ended=ended)
    if options.plot:
        from serving.analysis.day.day_chart import day_chart

        options.write_plots(lambda: day_chart(found))
    document, data = day_document, day_data
    if options.compare:
        document, data = compared_document, compared_data
    print_answer(document_lines(document(found)), lambda: data(found), json=options.json)
    return 0


def _cache_folder() -> Path:
    """Of the user's own, as the XDG base directories are."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if Path(home).is_absolute() else Path.home() / ".cache") / "ultraserve"


def settings_of(args: argparse.Namespace) -> DaySettings:
    """The day by the arguments; raises UltraServeError."""
    return day_settings(read_options(DayOptions, args), read_options(SchedulerLimits, args))


def day_settings(options: DayOptions, schedulers: SchedulerLimits) -> DaySettings:
    """The day by its options; raises UltraServeError."""
    from emulator.specs.models import model_by_name
    from serving.analysis.day.curve_search import CurveTerms
    from serving.analysis.day.day_result import ValueUnit
    from serving.analysis.day.exact_hour import HourCheck
    from serving.analysis.day.virtual_day import DaySettings
    from serving.policy.day_night.options import duration_s
    from serving.traffic.slo import parse_slo

    slo = parse_slo(options.slo)
    model = model_by_name(options.model)
    trace = options.day_trace(seed=options.seed)
    lengths, words = lengths_of_day(options, model, trace)
    sweep = options.mean_sweep(lengths.prompt_tokens, lengths.output_tokens, schedulers)
    if options.group_chips is not None and not sweep.asked.chips:
        whole = (sweep.system.chips.count,)
        sweep = replace(sweep, asked=replace(sweep.asked, chips=whole))
    check = None
    if options.check_hour is not None:
        length_s = options.check_minutes * 60.0
        check = HourCheck(begin_s=options.check_hour * 3_600.0, length_s=length_s)
    shares = [bound.share for bound in slo.bounds]
    return DaySettings(
        sweep=sweep,
        machines=options.ultraservers,
        slo=slo,
        lengths=lengths,
        lengths_in_words=words,
        limits=replace(schedulers, max_model_len=model.max_context_tokens),
        job=training_terms(options, sweep),
        question=_question(options, trace),
        curve=CurveTerms(required_share=max(shares), judged=options.requests, seed=options.seed),
        grace_s=duration_s(options.drain_grace, field="drain_grace"),
        headline_share=_HEADLINE_SHARE,
        group_chips=options.group_chips,
        unit=ValueUnit(options.unit),
        check=check,
        exact=options.exact_question(),
    )


def _question(options: DayOptions, trace: DayTrace) -> DayQuestion:
    from serving.analysis.day.day_comparison import DayQuestion
    from serving.analysis.day.day_demand import WalkTerms

    try:
        shares = tuple(float(part) / 100 for part in options.peak.split(","))
    except ValueError:
        raise ConfigError("peak", options.peak, "percentages such as 50,70,90") from None
    days, first = options.days_walked, first_day(options, trace)
    # A trace of less than a day is walked whole.
    whole = days * DAY_S if trace.days or days > 1 else trace.length_s
    built_in = [known.format(zone=trace.zone) for known in _ALL]
    policies = [options.policy]
    for text in options.policies or (("all",) if options.compare else ()):
        for each in _split(text):
            policies += built_in if each == "all" else [each]
    return DayQuestion(
        trace=trace,
        begin_s=first * DAY_S,
        length_s=whole,
        policies=tuple(dict.fromkeys(policies)),
        peak_shares=shares,
        terms=WalkTerms(seed=options.seed),
        cold=options.cold,
    )


def first_day(options: DayOptions, trace: DayTrace) -> int:
    """Of the walk, counted from 0."""
    if options.first_day is not None:
        return options.first_day
    return trace.busiest_day() if options.days_walked == 1 else 0


def _split(text: str) -> list[str]:
    """Policies between commas; options and hours belong to the policy before them."""
    from serving.analysis.day.day_oracle import ORACLE
    from serving.policy.day_night.policy_text import KINDS

    found: list[str] = []
    for part in text.split(","):
        is_policy = part.partition(":")[0].strip() in ("all", ORACLE, *KINDS)
        if found and not is_policy and any(sign in part for sign in "=-"):
            found[-1] += f",{part}"
        else:
            found.append(part.strip())
    return found


def lengths_of_day(
    options: DayOptions, model: ModelSpec, trace: DayTrace | None
) -> tuple[ObservedLengths, str]:
    """Pairs of lengths within the context, and their source; raises UltraServeError."""
    import numpy as np

    from loadgen.workloads.length_pairs import ObservedLengths
    from loadgen.workloads.traffic import Traffic

    context = model.max_context_tokens
    recorded = None if trace is None else trace.traffic
    if options.lengths is not None:
        recorded = Traffic.recorded(options.lengths, seed=options.seed)
    if options.input is not None or options.output is not None:
        recorded = None
    if recorded is not None:
        within = recorded.within_context(context)
        if not len(within):
            raise ConfigError("lengths", options.lengths, f"some within {context:,} tokens")
        name = options.lengths.name if options.lengths is not None else "the trace itself"
        words = f"lengths drawn from {len(within):,} pairs of {name}"
        if len(within) < len(recorded):
            words += f", {len(recorded) - len(within):,} longer than the context left out"
        return within.lengths, words
    drawn = drawn_lengths(options)
    prompts, outputs = drawn.draw_pairs(np.random.default_rng(options.seed), _DRAWN_PAIRS)
    fits = prompts + outputs <= context
    if not fits.any():
        raise ConfigError("input", drawn.prompt.words, f"some within {context:,} tokens")
    words = (
        f"drawn lengths (assumed): prompts of {drawn.prompt.words} tokens, replies of "
        f"{drawn.output.words}"
    )
    return ObservedLengths(prompt_tokens=prompts[fits], output_tokens=outputs[fits]), words


def training_terms(options: DayOptions, sweep: Sweep) -> JobTerms:
    """How training is done on the sweep's machine: of its model, or the options' own."""
    from emulator.faults.recovery_time import RecoveryRates
    from emulator.specs.models import model_by_name
    from emulator.specs.training_recipe import TrainingRecipe
    from serving.simulator.job_cost import JobTerms

    return JobTerms(
        system=sweep.system,
        model=model_by_name(options.train_model) if options.train_model else sweep.model,
        recipe=TrainingRecipe(),
        calibration=sweep.assumptions.calibration,
        rates=RecoveryRates(),
        start_s=options.start_seconds,
        searched=options.train_recipe == "searched",
    )

"""`ultraserve day`: chips that serve by day and train by night, over a whole day or week.

It starts no server: one replica is simulated exactly at several rates, then policies walk it.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from emulator.errors import ConfigError
from reporting.data_forms import json_text
from serving.commands.calibration_argument import add_calibration_argument
from serving.commands.reading_argument import add_reading_argument

if TYPE_CHECKING:
    from emulator.specs.model import ModelSpec
    from loadgen.workloads.length_pairs import ObservedLengths
    from serving.analysis.day.day_comparison import DayQuestion
    from serving.analysis.day.day_trace import DayTrace
    from serving.analysis.day.training_table import JobTerms
    from serving.analysis.day.virtual_day import DaySettings
    from serving.analysis.steady_state.sweep import Sweep

_ALL: Final = ("demand", "schedule:22:00-06:00", "price:assumed")
_KINDS: Final = ("all", "demand", "fixed", "never", "oracle", "price", "schedule")
_OVERLAPS: Final = ("none", "two-batch", "full")
_SEASONS: Final = ("peak", "summer", "spring-autumn", "winter")
_ISL, _OSL, _SPREAD, _SYNTHETIC_PAIRS = 1_155, 211, 0.8, 20_000
_DAY_S: Final = 86_400.0


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
    parser.add_argument("--model", required=True, metavar="NAME", help="a model of the catalog")
    parser.add_argument("--system", metavar="NAME", help="a machine of the catalog (the default)")
    parser.add_argument(
        "--slo",
        default="ttft=1s,tpot=30ms@p99",
        metavar="TARGET",
        help="of TTFT and TPOT, which requests keep both at once (%(default)s)",
    )
    _add_traffic(parser)
    _add_policies(parser)
    _add_machine(parser)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="a picture: .png, .svg or .html")
    parser.add_argument("--json", action="store_true", help="print JSON, in base units")
    parser.set_defaults(run=run)


def _add_traffic(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("demand")
    group.add_argument(
        "--trace",
        default="sample",
        metavar="FILE",
        help="requests by hour (CSV as the Azure 2024 traces were digitised), nodes by time of day "
        "(CSV as DeepSeek's), recorded requests, or built in: deepseek, sample (%(default)s)",
    )
    length = group.add_mutually_exclusive_group()
    length.add_argument("--days", type=int, metavar="N", help="to walk (1)")
    length.add_argument("--week", action="store_true", help="7 days")
    group.add_argument(
        "--first-day",
        type=int,
        metavar="N",
        help="counted from 0 (the busiest of the trace; its first one for several days)",
    )
    group.add_argument(
        "--peak",
        default="50,70,90",
        metavar="PERCENT",
        help="of what the machines serve within the target, that the trace's highest rate is "
        "scaled to (%(default)s)",
    )
    group.add_argument(
        "--lengths",
        type=Path,
        metavar="FILE",
        help="draw prompts and replies from those of a recorded trace (without it: lognormal, mean "
        f"{_ISL} and {_OSL} tokens)",
    )
    group.add_argument(
        "--cold",
        action="store_true",
        help="policies know nothing from before a walk that begins with the trace (without it: "
        "they are shown the trace's last day as the day before)",
    )
    group.add_argument("--seed", type=int, default=0, metavar="N", help="(%(default)s)")


def _add_policies(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("policies")
    group.add_argument(
        "--policy",
        default="demand",
        help="never, schedule:22:00-06:00@Europe/Berlin, demand, price:FILE, oracle or fixed:N "
        "(%(default)s)",
    )
    group.add_argument(
        "--policies",
        action="append",
        metavar="A,B,C",
        help="more of them to compare, or all; may be repeated; never, the best fixed split and "
        "the oracle are always there",
    )
    group.add_argument(
        "--train-model", metavar="NAME", help="of the catalog (default: the served one)"
    )
    group.add_argument(
        "--grace", type=float, default=30.0, metavar="SECONDS", help="of a drain (%(default)g)"
    )
    group.add_argument(
        "--start-seconds",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="until processes run and models are loaded, weights left out; assumed (%(default)g)",
    )
    group.add_argument(
        "--check-hour",
        type=float,
        metavar="H",
        help="of the walk: hold it against the exact run of one replica (minutes of wall time)",
    )
    group.add_argument(
        "--check-minutes", type=float, default=60.0, metavar="N", help="so long (%(default)g)"
    )


def _add_machine(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("machine and server")
    group.add_argument(
        "--ultraservers", type=int, default=1, metavar="N", help="machines (%(default)s)"
    )
    group.add_argument(
        "--replica-chips", type=int, metavar="N", help="of one replica (default: chosen)"
    )
    for name, what in (
        ("tp", "chips of a rank"),
        ("ep", "chips of an expert group"),
        ("lnc", "physical cores of a logical one"),
    ):
        group.add_argument(f"--{name}", type=int, metavar="N", help=f"{what} (default: any)")
    group.add_argument("--precision", metavar="NAME", help="of weights (as stored)")
    group.add_argument("--routing", default="uniform", help="uniform, zipf:S, or a file of loads")
    group.add_argument("--overlap", choices=_OVERLAPS, default="none", help="(%(default)s)")
    add_calibration_argument(group, default="fitted")
    add_reading_argument(group, default=[])
    group.add_argument("--season", choices=_SEASONS, default="peak", help="(%(default)s)")
    for name, default in (
        ("gpu-memory-utilization", 0.92),
        ("max-num-seqs", 1_024),
        ("max-num-batched-tokens", 8_192),
        ("block-size", 32),
    ):
        group.add_argument(
            f"--{name}",
            type=type(default),
            default=default,
            metavar="N",
            help="as of `ultraserve serve` (%(default)s)",
        )
    group.add_argument("--prefill-policy", metavar="POLICY", help="as of `ultraserve serve`")
    group.add_argument(
        "--requests", type=int, default=800, metavar="N", help="to judge a rate by (%(default)s)"
    )
    group.add_argument(
        "--processes", type=int, metavar="N", help="that simulate at once (default: up to 2)"
    )


def run(args: argparse.Namespace) -> int:
    """Walk the day and print; returns 0, or 130 after one line when it is interrupted.

    Raises:
        UltraServeError: a wrong argument, a trace that cannot be read, a target out of reach.
    """
    from reporting.plain_text import document_lines
    from serving.analysis.day.day_report import day_data, day_document
    from serving.analysis.day.virtual_day import virtual_day

    processes = args.processes if args.processes is not None else min(2, os.cpu_count() or 1)
    if processes < 1:
        raise ConfigError(field="processes", value=processes, expected="at least 1")
    if args.plot is not None:
        from serving.analysis.chart_file import check_chart_path

        check_chart_path(args.plot, field="plot")
    try:
        found = virtual_day(settings_of(args), processes=processes, progress=_tell)
    except KeyboardInterrupt:
        _tell("ultraserve day: interrupted, no day was walked")
        return 130
    if args.plot is not None:
        from serving.analysis.chart_file import write_chart
        from serving.analysis.day.day_chart import day_chart

        write_chart(day_chart(found), args.plot, field="plot")
        _tell(f"picture: {args.plot}")
    lines = document_lines(day_document(found))
    print(json_text(day_data(found)) if args.json else "\n".join(lines))
    return 0


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def settings_of(args: argparse.Namespace) -> DaySettings:
    """What the arguments ask; raises UltraServeError."""
    from emulator.specs.models import model_by_name
    from serving.analysis.day.curve_search import CurveTerms
    from serving.analysis.day.day_trace_file import day_trace
    from serving.analysis.day.exact_hour import HourCheck
    from serving.analysis.day.virtual_day import DaySettings
    from serving.traffic.engine_limits import EngineLimits
    from serving.traffic.slo import parse_slo

    if args.seed < 0:
        raise ConfigError(field="seed", value=args.seed, expected="from 0 on")
    slo = parse_slo(args.slo)
    model = model_by_name(args.model)
    trace = day_trace(args.trace)
    lengths, words = _lengths(args, model, trace)
    sweep = _sweep(args, model, lengths)
    question = _question(args, trace)
    check = None
    if args.check_hour is not None:
        length_s = args.check_minutes * 60.0
        check = HourCheck(begin_s=args.check_hour * 3_600.0, length_s=length_s)
    shares = [bound.share for bound in slo.bounds]
    return DaySettings(
        sweep=sweep,
        machines=args.ultraservers,
        slo=slo,
        lengths=lengths,
        lengths_in_words=words,
        limits=EngineLimits(
            max_num_batched_tokens=args.max_num_batched_tokens,
            max_num_seqs=args.max_num_seqs,
            kv_blocks_per_rank=2,
            block_tokens=args.block_size,
            max_model_len=model.max_context_tokens,
            prefill_policy=args.prefill_policy,
        ),
        job=_job(args, sweep),
        question=question,
        curve=CurveTerms(required_share=max(shares), judged=args.requests, seed=args.seed),
        grace_s=args.grace,
        headline_share=0.7,
        check=check,
    )


def _question(args: argparse.Namespace, trace: DayTrace) -> DayQuestion:
    from serving.analysis.day.day_comparison import DayQuestion
    from serving.analysis.day.day_walk import WalkTerms

    try:
        shares = tuple(float(part) / 100 for part in args.peak.split(","))
    except ValueError:
        expected = "percentages such as 50,70,90"
        raise ConfigError(field="peak", value=args.peak, expected=expected) from None
    days = 7 if args.week else 1 if args.days is None else args.days
    if days < 1:
        raise ConfigError(field="days", value=days, expected="at least 1")
    first = args.first_day
    if first is None:
        first = trace.busiest_day() if days == 1 else 0
    # A trace of less than a day is walked whole.
    whole = days * _DAY_S if trace.days or days > 1 else trace.length_s
    policies = [args.policy]
    for text in args.policies or ():
        for each in _split(text):
            policies += _ALL if each == "all" else [each]
    return DayQuestion(
        trace=trace,
        begin_s=first * _DAY_S,
        length_s=whole,
        policies=tuple(dict.fromkeys(policies)),
        peak_shares=shares,
        terms=WalkTerms(seed=args.seed),
        cold=args.cold,
    )


def _split(text: str) -> list[str]:
    """Policies between commas; options and hours after one belong to the policy before it."""
    found: list[str] = []
    for part in text.split(","):
        is_policy = part.partition(":")[0].strip() in _KINDS
        if found and not is_policy and any(sign in part for sign in "=-"):
            found[-1] += f",{part}"
        else:
            found.append(part.strip())
    return found


def _lengths(
    args: argparse.Namespace, model: ModelSpec, trace: DayTrace
) -> tuple[ObservedLengths, str]:
    """Pairs of lengths within the context, and where they come from."""
    import numpy as np

    from loadgen.workloads.length_pairs import IndependentLengths, ObservedLengths
    from loadgen.workloads.lengths import lognormal_of_median
    from loadgen.workloads.traffic import Traffic

    context = model.max_context_tokens
    recorded = Traffic.recorded(args.lengths) if args.lengths is not None else trace.traffic
    if recorded is not None:
        within = recorded.within_context(context)
        if not len(within):
            raise ConfigError(
                field="lengths", value=args.lengths, expected=f"some within {context:,} tokens"
            )
        name = args.lengths.name if args.lengths is not None else "the trace itself"
        words = f"lengths drawn from {len(within):,} pairs of {name}"
        if len(within) < len(recorded):
            words += f", {len(recorded) - len(within):,} longer than the context left out"
        return within.lengths, words
    ratio = float(np.exp(-(_SPREAD**2) / 2))
    lengths = IndependentLengths(
        prompt=lognormal_of_median(median=round(_ISL * ratio), sigma=_SPREAD, most=context // 2),
        output=lognormal_of_median(median=round(_OSL * ratio), sigma=_SPREAD, most=context // 4),
    )
    rng = np.random.default_rng(args.seed)
    prompts, outputs = lengths.draw_pairs(rng, _SYNTHETIC_PAIRS)
    words = (
        f"made-up lengths (assumed): lognormal, sigma {_SPREAD:g}, means of about {_ISL:,} prompt "
        f"and {_OSL:,} output tokens, those of the Azure 2023 conversation trace"
    )
    return ObservedLengths(prompt_tokens=prompts, output_tokens=outputs), words


def _sweep(args: argparse.Namespace, model: ModelSpec, lengths: ObservedLengths) -> Sweep:
    """The machine and the partitions, about requests of the mean lengths."""
    from emulator.memory.chip_contents import HbmTerms
    from emulator.specs.assumptions import with_assumptions
    from emulator.specs.overlap import Overlap
    from emulator.specs.rack_power import Season
    from emulator.specs.shipped_fits import calibration_for
    from emulator.specs.systems import system_by_name
    from serving.analysis.steady_state.partitions import PartitionFilter
    from serving.analysis.steady_state.precision import as_stored_or_narrowest
    from serving.analysis.steady_state.request_shape import RequestShape
    from serving.analysis.steady_state.step_assumptions import StepAssumptions
    from serving.analysis.steady_state.sweep import Sweep
    from serving.settings import Settings

    system = with_assumptions(system_by_name(args.system or Settings().system), args.reading)
    asked: dict[str, Any] = {
        name: (value,)
        for name, value in (
            ("chips", args.replica_chips),
            ("tp", args.tp),
            ("ep", args.ep),
            ("lnc", args.lnc),
        )
        if value is not None
    }
    return Sweep(
        system=system,
        model=model,
        shape=RequestShape(
            prompt_tokens=max(1, round(float(lengths.prompt_tokens.mean()))),
            output_tokens=max(1, round(float(lengths.output_tokens.mean()))),
            batched_tokens_max=args.max_num_batched_tokens,
        ),
        asked=PartitionFilter(**asked),
        precisions=(args.precision or as_stored_or_narrowest(system.chip, model),),
        terms=HbmTerms(utilization=args.gpu_memory_utilization),
        assumptions=StepAssumptions(
            overlap=Overlap(args.overlap),
            calibration=calibration_for(system.chip.name, name=args.calibration),
        ),
        routing=args.routing,
        season=Season(args.season),
    )


def _job(args: argparse.Namespace, sweep: Sweep) -> JobTerms:
    from emulator.faults.recovery_time import RecoveryRates
    from emulator.specs.models import model_by_name
    from emulator.specs.training_recipe import TrainingRecipe
    from serving.analysis.day.training_table import JobTerms

    return JobTerms(
        system=sweep.system,
        model=model_by_name(args.train_model) if args.train_model else sweep.model,
        recipe=TrainingRecipe(),
        calibration=sweep.assumptions.calibration,
        rates=RecoveryRates(),
        start_s=args.start_seconds,
    )

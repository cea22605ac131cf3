"""`ultraserve plan`: how many UltraServers a model's traffic needs, and what they draw and cost.

It starts no server: the steady state proposes, the server's own scheduler decides in virtual time.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from emulator.errors import ConfigError
from reporting.data_forms import json_text
from serving.commands.calibration_argument import add_calibration_argument
from serving.commands.reading_argument import add_reading_argument

if TYPE_CHECKING:
    from emulator.power.token_cost import Prices
    from emulator.specs.model import ModelSpec
    from loadgen.workloads.traffic import Traffic
    from serving.analysis.plan.night import Day
    from serving.analysis.plan.plan import PlanQuestion
    from serving.analysis.plan.plan_demand import Demand
    from serving.analysis.steady_state.sweep import Sweep

_OVERLAPS: Final = ("none", "two-batch", "full")
_SEASONS: Final = ("peak", "summer", "spring-autumn", "winter")
_OF_RATE: Final = ("isl", "osl", "spread", "lengths")
_OF_TRACE: Final = ("speed_up", "scale", "window")
_WINDOW_S: Final = 300.0
_ISL, _OSL, _SPREAD = 1_024, 256, 0.5


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `plan` command."""
    parser = subparsers.add_parser(
        "plan",
        help="how many UltraServers meet a latency target, their power, cost and free nights",
        description="How many UltraServers, and which partition, serve a model's traffic within a "
        "latency target; megawatts, dollars per million tokens, N+1, and what the night leaves "
        "over. Checked by simulating the plan and the next smaller one. Modelled, not measured.",
        epilog="Example: ultraserve plan --model gpt-oss-120b --rate 20 --slo "
        "ttft=1s,tpot=30ms@p99 --price-hour 500 --price-kwh 0.08",
    )
    parser.add_argument("--model", required=True, metavar="NAME", help="a model of the catalog")
    parser.add_argument("--system", metavar="NAME", help="a machine of the catalog (the default)")
    parser.add_argument(
        "--slo",
        required=True,
        metavar="TARGET",
        help="such as ttft=500ms,tpot=30ms@p99; p99 where no percentile is named",
    )
    _add_traffic(parser)
    _add_prices(parser)
    _add_choices(parser)
    _add_search(parser)
    parser.add_argument("--json", action="store_true", help="print JSON, in base units")
    parser.set_defaults(run=run)


def _add_traffic(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("traffic")
    source = group.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--trace", type=Path, metavar="FILE", help="recorded: Azure's CSV or Mooncake's JSON lines"
    )
    source.add_argument("--rate", type=float, metavar="R", help="requests per second, Poisson")
    group.add_argument("--speed-up", type=float, metavar="X", help="of a trace: its times over X")
    group.add_argument(
        "--scale", type=float, metavar="X", help="of a trace: X times the requests, same times"
    )
    group.add_argument(
        "--window",
        type=float,
        metavar="SECONDS",
        help=f"of a trace: length of its peak ({_WINDOW_S:g})",
    )
    group.add_argument("--isl", type=float, metavar="N", help=f"mean prompt tokens ({_ISL})")
    group.add_argument("--osl", type=float, metavar="N", help=f"mean output tokens ({_OSL})")
    group.add_argument(
        "--spread",
        type=float,
        metavar="SIGMA",
        help=f"of both lengths, lognormal; 0: fixed ({_SPREAD})",
    )
    group.add_argument(
        "--lengths", type=Path, metavar="FILE", help="or draw lengths from those of a trace"
    )
    group.add_argument(
        "--day",
        type=Path,
        metavar="FILE",
        help="a CSV of hour,requests for the night's account (default: the trace's own, if it is "
        "a day long; else the recorded day of one operator)",
    )


def _add_prices(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("prices and power")
    group.add_argument("--price-hour", type=float, metavar="USD", help="of an UltraServer")
    group.add_argument("--price-chip-hour", type=float, metavar="USD", help="or of a chip")
    group.add_argument("--price-kwh", type=float, metavar="USD", help="at the utility's meter")
    group.add_argument("--season", choices=_SEASONS, default="peak", help="(%(default)s)")


def _add_choices(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("machine and server")
    for name, what in (
        ("chips", "chips of one replica"),
        ("tp", "chips of a rank"),
        ("ep", "chips of an expert group"),
        ("lnc", "physical cores of a logical one"),
    ):
        group.add_argument(f"--{name}", type=int, metavar="N", help=f"{what} (default: any)")
    group.add_argument(
        "--precision", metavar="NAME", help="of weights (as stored, where the chip takes that)"
    )
    group.add_argument("--routing", default="uniform", help="uniform, zipf:S, or a file of loads")
    group.add_argument("--overlap", choices=_OVERLAPS, default="none", help="(%(default)s)")
    add_calibration_argument(group, default="fitted")
    add_reading_argument(group, default=[])
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
        "--disaggregated",
        action="store_true",
        help="add prefill and decode pools, by the steady state alone",
    )


def _add_search(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("search")
    group.add_argument(
        "--requests", type=int, default=600, metavar="N", help="to judge a size by (%(default)s)"
    )
    group.add_argument(
        "--tries", type=int, default=3, metavar="N", help="partitions to simulate (%(default)s)"
    )
    group.add_argument(
        "--effort",
        type=int,
        default=1_500_000,
        metavar="TOKENS",
        help="leave out partitions with more to simulate for one size (%(default)s)",
    )
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of arrivals (%(default)s)")
    group.add_argument(
        "--processes", type=int, metavar="N", help="that simulate at once (default: up to 2)"
    )


def run(args: argparse.Namespace) -> int:
    """Plan and print; returns 0, or 130 after one line when it is interrupted.

    Raises:
        UltraServeError: a wrong argument, a trace that cannot be read, a target out of reach.
    """
    from reporting.plain_text import document_lines
    from serving.analysis.plan.plan import plan
    from serving.analysis.plan.plan_report import plan_data, plan_document

    processes = args.processes if args.processes is not None else min(2, os.cpu_count() or 1)
    if processes < 1:
        raise ConfigError(field="processes", value=processes, expected="at least 1")
    try:
        found = plan(question_of(args), processes=processes, progress=_tell)
    except KeyboardInterrupt:
        _tell("ultraserve plan: interrupted, nothing was planned")
        return 130
    lines = document_lines(plan_document(found))
    print(json_text(plan_data(found)) if args.json else "\n".join(lines))
    return 0


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def question_of(args: argparse.Namespace) -> PlanQuestion:
    """What the arguments ask; raises UltraServeError."""
    from emulator.specs.models import model_by_name
    from serving.analysis.plan.plan import PlanQuestion
    from serving.analysis.plan.plan_check import CheckTerms
    from serving.analysis.plan.plan_choice import SearchTerms
    from serving.traffic.slo import parse_slo

    slo = parse_slo(args.slo)
    model = model_by_name(args.model)
    prices = _prices(args)
    _refuse_what_is_not_used(args)
    _refuse_less_than_one(args)
    demand, day = _demand(args, model)
    return PlanQuestion(
        sweep=_sweep(args, model, demand.peak),
        demand=demand,
        slo=slo,
        day=day,
        prices=prices,
        check=CheckTerms(
            max_num_seqs=args.max_num_seqs,
            max_num_batched_tokens=args.max_num_batched_tokens,
            block_tokens=args.block_size,
            prefill_policy=args.prefill_policy,
            judged=args.requests,
            seed=args.seed,
        ),
        search=SearchTerms(tries=args.tries, tokens_max=args.effort),
        disaggregated=args.disaggregated,
        readings=tuple(args.reading),
    )


def _refuse_what_is_not_used(args: argparse.Namespace) -> None:
    """An argument of the other kind of traffic would silently do nothing."""
    names, source = (_OF_RATE, "--rate") if args.trace else (_OF_TRACE, "--trace")
    if args.lengths is not None:
        names = (*names, "isl", "osl", "spread")
    for name in names:
        value = getattr(args, name)
        if value is not None:
            expected = f"nothing without {source}, or beside --lengths"
            raise ConfigError(field=name.replace("_", "-"), value=value, expected=expected)


def _refuse_less_than_one(args: argparse.Namespace) -> None:
    for name in ("requests", "tries", "effort", "max_num_seqs", "max_num_batched_tokens"):
        value = getattr(args, name)
        if value < 1:
            raise ConfigError(field=name.replace("_", "-"), value=value, expected="at least 1")
    if args.seed < 0:
        raise ConfigError(field="seed", value=args.seed, expected="at least 0")


def _demand(args: argparse.Namespace, model: ModelSpec) -> tuple[Demand, Day]:
    """The traffic and the shape of a day."""
    from serving.analysis.plan.night import day_of_trace, deepseek_day, read_day
    from serving.analysis.plan.plan_demand import TraceDemand, multiplied

    day = read_day(args.day) if args.day is not None else None
    if args.trace is None:
        return _rate_demand(args, model), day or deepseek_day()
    recorded, words = _recorded(args.trace, model)
    window_s = _WINDOW_S if args.window is None else args.window
    as_recorded = TraceDemand(traffic=recorded, window_s=window_s, source=words)
    day = day or day_of_trace(
        recorded, window_s=window_s, peak_rate_per_s=as_recorded.peak_rate_per_s
    )
    traffic = recorded
    if args.speed_up is not None:
        traffic, words = traffic.sped_up(args.speed_up), f"{words}, {args.speed_up:g} times as fast"
    if args.scale is not None:
        traffic = multiplied(traffic, args.scale, seed=args.seed)
        words = f"{words}, {args.scale:g} times the requests"
    demand = TraceDemand(traffic=traffic, window_s=window_s, source=words)
    return demand, day or deepseek_day()


def _rate_demand(args: argparse.Namespace, model: ModelSpec) -> Demand:
    from loadgen.workloads.length_pairs import IndependentLengths, LengthPairs
    from loadgen.workloads.lengths import lognormal_of_median
    from loadgen.workloads.workload_spec import Lengths
    from serving.analysis.plan.plan_demand import RateDemand

    lengths: LengthPairs
    if args.lengths is not None:
        recorded, words = _recorded(args.lengths, model)
        lengths, words = recorded.lengths, f"lengths of {words}"
    else:
        isl = _ISL if args.isl is None else args.isl
        osl = _OSL if args.osl is None else args.osl
        spread = _SPREAD if args.spread is None else args.spread
        if not 0 <= spread <= 3:
            raise ConfigError(field="spread", value=spread, expected="0 to 3")

        def lognormal(name: str, mean: float) -> Lengths:
            if not 1 <= mean <= model.max_context_tokens:
                expected = f"1 to the context, {model.max_context_tokens:,}"
                raise ConfigError(field=name, value=mean, expected=expected)
            median = max(1, round(mean * math.exp(-(spread**2) / 2)))
            return lognormal_of_median(median=median, sigma=spread)

        lengths = IndependentLengths(prompt=lognormal("isl", isl), output=lognormal("osl", osl))
        words = f"lognormal lengths of mean {isl:,g} and {osl:,g} tokens, sigma {spread:g}"
    return RateDemand(
        rate_per_s=args.rate,
        lengths=lengths,
        context_tokens=model.max_context_tokens,
        lengths_in_words=words,
        lengths_seed=args.seed,
    )


def _recorded(path: Path, model: ModelSpec) -> tuple[Traffic, str]:
    """A trace without what is longer than the context, and its name with how many those were."""
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


def _sweep(args: argparse.Namespace, model: ModelSpec, peak: Traffic) -> Sweep:
    """The machine and the partitions, about requests of the peak's mean lengths."""
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
        name: (getattr(args, name),)
        for name in ("chips", "tp", "ep", "lnc")
        if getattr(args, name) is not None
    }
    return Sweep(
        system=system,
        model=model,
        shape=RequestShape(
            prompt_tokens=max(1, round(float(peak.prompt_tokens.mean()))),
            output_tokens=max(1, round(float(peak.output_tokens.mean()))),
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


def _prices(args: argparse.Namespace) -> Prices | None:
    from emulator.power.token_cost import Prices

    given = {
        "system_hour_dollars": args.price_hour,
        "chip_hour_dollars": args.price_chip_hour,
        "kwh_dollars": args.price_kwh,
    }
    return Prices(**given) if any(value is not None for value in given.values()) else None

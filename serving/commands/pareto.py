"""`ultraserve pareto`: machines' tokens a megawatt against each user's rate.

Every partition, batch, precision and LNC of the named machines, by the cost model; starts nothing.
With both machines of the vendor's launch, its claims are held against the curves. With a latency
target the curve's partitions are simulated under it, as `plan` does it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Final

from emulator.errors import ConfigError
from loadgen.workloads.drawn_defaults import INPUT, OUTPUT
from loadgen.workloads.session_options import LengthOptions
from serving.analysis.steady_state.request_shape import BATCHED_TOKENS_MAX
from serving.commands.analysis_options import (
    PRINTED,
    BudgetOptions,
    PartitionSweepOptions,
    PlotOptions,
    PriceOptions,
    SimulationOptions,
    check_least,
    interrupted_by,
    one_of,
    say,
    whole_numbers,
    write_json,
)
from serving.commands.drawn_lengths import drawn_lengths, mean_tokens
from serving.commands.plan import POLICIES
from serving.traffic.engine_limits import PLANNED_LIMITS, SchedulerLimits
from startup.typed_options import (
    REQUIRED,
    add_options,
    flag_of,
    given_options,
    option,
    read_options,
)

if TYPE_CHECKING:
    from emulator.specs.system import SystemSpec
    from serving.analysis.pareto.pareto import Pareto
    from serving.analysis.pareto.simulated_points import CurveTarget, SimulatedCurve
    from serving.analysis.steady_state.sweep import Sweep
    from serving.simulator import SimulationWorkers

_OF_SLO: Final = ("budget_s", "requests", "seed")


@dataclass(frozen=True, kw_only=True)
class RequestOptions(LengthOptions):
    """The requests of the steps, by their mean lengths."""

    GROUP = "requests"

    prefill_tokens: int | None = option(
        None, "prompt tokens of a rank in a step that computes any (default: spread evenly)"
    )
    max_num_batched_tokens: int = option(BATCHED_TOKENS_MAX, "new tokens of a rank in a step")


@dataclass(frozen=True, kw_only=True)
class OutputOptions(PlotOptions, BudgetOptions, SimulationOptions):
    """Simulations, and destinations of the answer."""

    GROUP = "output"

    rows: int = option(16, "of each envelope in the table")

    def __post_init__(self) -> None:
        """Refuse unwritable paths before a minute's work."""
        super().__post_init__()
        check_least("rows", self.rows, 2)
        check_least("requests", self.requests, 1)


@dataclass(frozen=True, kw_only=True)
class ParetoOptions(OutputOptions, RequestOptions, PriceOptions, PartitionSweepOptions):
    """All of a comparison."""

    GROUP = PartitionSweepOptions.GROUP

    systems: str = option(
        REQUIRED,
        "machines of the catalog, each perhaps with assumptions and figures of its own "
        "(trn3-nl72x2:hop_ns=230ns); the first is what others are compared to",
        metavar="NAME[:NAME=VALUE...],...",
    )
    batch: str | None = option(None, "decoding requests of a rank", metavar="N,...")
    serving: str = option(
        "aggregated",
        "prompts on the chips that decode, on a pool of their own, or try both",
        choices=("aggregated", "disaggregated", "both"),
    )
    units: int = option(1, "of each machine, joined by network cards")
    across_units: bool = option(False, "let a replica lie on several units")
    slo: str | None = option(
        None,
        "also simulate the curve's partitions under a target, such as ttft=500ms,tpot=30ms@p99: "
        "each at the highest Poisson rate that keeps it, with what takes the rest",
        metavar="TARGET",
    )
    power: str = option(
        "provisioned", "what a megawatt is: provisioned, drawn or all-in", metavar="BASIS"
    )


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `pareto` command."""
    parser = subparsers.add_parser(
        "pareto",
        help="tokens/s/MW against tokens/s/user, over all partitions and batches",
        description="Tokens/s/MW against tokens/s/user over all partitions, batches, precisions "
        "and LNCs of machines, with the upper envelope; with --slo also what of it is left under a "
        "latency target, simulated. Modelled, not measured.",
        epilog="Example: ultraserve pareto --model gpt-oss-120b --systems trn3-nl72x2 --slo "
        "ttft=1s,tpot=30ms@p99 --budget 2m --plot curve.png",
    )
    add_options(parser, ParetoOptions, without=_OF_SLO)
    others = {each.name for each in fields(ParetoOptions)}.difference(_OF_SLO)
    add_options(parser, ParetoOptions, without=others, defaults=None)  # to know the given ones
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Sweep, print the table or JSON, write the files; returns 0, or 130 or 143 where a signal
    ended it, with the points simulated so far. Raises ConfigError.
    """
    options = read_options(ParetoOptions, args)
    _check_given(given_options(ParetoOptions, args), options)
    target = None if options.slo is None else target_of(options)
    caught: list[int] = []
    try:
        with interrupted_by(caught), options.workers() as workers:
            found = _curve(options, workers)
            simulated = None if target is None else _simulated(found, target, workers)
    except KeyboardInterrupt:
        say("ultraserve pareto: interrupted, there is no curve")
        return 128 + caught[0] if caught else 130
    _write(options, found, simulated)
    return 128 + caught[0] if caught else 0


def _check_given(given: Mapping[str, object], options: ParetoOptions) -> None:
    """Raise ConfigError for what would silently do nothing, and for pools of several units."""
    if options.slo is None:
        for name in _OF_SLO:
            if name in given:
                field = flag_of(name).removeprefix("--")
                raise ConfigError(field, given[name], "nothing without --slo")
    elif options.units > 1 and options.serving != "aggregated":
        expected = "aggregated with --slo and several units: pools are simulated on one"
        raise ConfigError("serving", options.serving, expected)


def target_of(options: ParetoOptions) -> CurveTarget:
    """The target, with what its requests are judged by; raises UltraServeError."""
    from serving.analysis.pareto.simulated_points import CurveTarget
    from serving.analysis.plan.plan_check import CheckTerms
    from serving.analysis.plan.plan_question import SearchTerms
    from serving.traffic.slo import parse_slo

    assert options.slo is not None
    lengths = drawn_lengths(options)
    return CurveTarget(
        slo=parse_slo(options.slo),
        lengths=lengths,
        lengths_in_words=f"prompts of {lengths.prompt.words} tokens, replies of "
        f"{lengths.output.words}",
        check=CheckTerms(
            schedulers=SchedulerLimits(
                max_num_seqs=PLANNED_LIMITS["max_num_seqs"],
                max_num_batched_tokens=options.max_num_batched_tokens,
            ),
            judged=options.requests,
            seed=options.seed,
        ),
        search=SearchTerms(policies=POLICIES, tries=1, budget_s=options.budget_s),
    )


def _curve(options: ParetoOptions, workers: SimulationWorkers) -> Pareto:
    from emulator.power.efficiency import PowerBasis
    from serving.analysis.pareto.pareto import pareto

    return pareto(
        sweeps_of(options),
        basis=one_of(PowerBasis, "power", options.power),
        aggregated=options.serving != "disaggregated",
        pools=options.serving != "aggregated",
        workers=workers,
    )


def _simulated(found: Pareto, target: CurveTarget, workers: SimulationWorkers) -> SimulatedCurve:
    from serving.analysis.pareto.simulated_points import simulated_curve

    return simulated_curve(found, target, workers=workers, progress=say)


def _write(options: ParetoOptions, found: Pareto, simulated: SimulatedCurve | None) -> None:
    prices = options.prices()
    if options.json:
        import msgspec

        from serving.analysis.pareto.pareto_report import as_data
        from serving.analysis.pareto.simulated_points_report import simulated_data

        data = as_data(found, prices)
        if simulated is not None:
            data["simulated"] = simulated_data(simulated, found.basis)
        write_json(msgspec.json.encode(data).decode(), options.json)  # a line: it has every point
    if options.json != PRINTED:
        from serving.analysis.explain.point_bottleneck import point_bottleneck
        from serving.analysis.pareto.pareto_report import report_lines
        from serving.analysis.pareto.simulated_points_report import simulated_lines

        block = () if simulated is None else simulated_lines(simulated, found, options.rows)
        lines = report_lines(found, options.rows, prices, point_bottleneck, block)
        print("\n".join(lines))
    if options.plot:
        from serving.analysis.pareto.pareto_chart import pareto_chart

        options.write_plots(lambda: pareto_chart(found, simulated))


def sweeps_of(options: ParetoOptions) -> tuple[Sweep, ...]:
    """A sweep for each named machine; raises ConfigError."""
    from serving.analysis.steady_state.request_shape import RequestShape

    shape = RequestShape(
        prompt_tokens=mean_tokens("input", options.input or INPUT),
        output_tokens=mean_tokens("output", options.output or OUTPUT),
        prefill_chunk_tokens=options.prefill_tokens,
        batched_tokens_max=options.max_num_batched_tokens,
    )
    batches = whole_numbers("batch", options.batch)
    systems = _systems(options)
    sweeps = [options.sweep(system, shape) for system in systems]
    return tuple(
        replace(
            sweep,
            batches=batches,
            asked=replace(
                sweep.asked,
                across_units=options.across_units,
                lnc=lncs_of(sweep.system, systems, sweep.asked.lnc),
            ),
        )
        for sweep in sweeps
    )


def lncs_of(
    system: SystemSpec, systems: Sequence[SystemSpec], asked: tuple[int, ...]
) -> tuple[int, ...]:
    """The chip's LNCs among those asked for; all, where other machines have these.

    One that no chip has is left in, to be refused.
    """
    known = {size for each in systems for size in each.chip.lnc_sizes}
    return tuple(lnc for lnc in asked if lnc in system.chip.lnc_sizes or lnc not in known)


def _systems(options: ParetoOptions) -> list[SystemSpec]:
    systems = assumed_systems(options.systems.split(","), options.assumptions)
    return [system.cluster(options.units) for system in systems]


def assumed_systems(names: Sequence[str], assumptions: Sequence[str]) -> list[SystemSpec]:
    """The machines "NAME[:NAME=VALUE...]", each with those of the assumptions and figures that it
    has, and with its own; raises ConfigError.
    """
    from emulator.specs.assumptions import machine_named
    from emulator.specs.systems import system_by_name

    named = [each.split(":") for each in names]
    catalog = [system_by_name(name) for name, *_ in named]
    return [
        machine_named(system, shared, own)
        for system, shared, (_, *own) in zip(
            catalog, accepted_assumptions(catalog, assumptions), named, strict=True
        )
    ]


def accepted_assumptions(
    systems: Sequence[SystemSpec], assumptions: Sequence[str]
) -> list[list[str]]:
    """Of each system those assumptions and figures that it has; raises ConfigError for one that
    none has.
    """
    from emulator.specs.assumptions import accepts, with_assumptions

    accepted = [[text for text in assumptions if accepts(each, text)] for each in systems]
    known = {text for texts in accepted for text in texts}
    for system in systems[:1]:  # which refuses, as any other would, what no system has
        with_assumptions(system, [text for text in assumptions if text not in known])
    return accepted

"""`ultraserve pareto`: machines' tokens a megawatt against each user's rate.

Every partition, batch, precision and LNC of the named machines, by the cost model; starts nothing.
With both machines of the vendor's launch, its claims are held against the curves.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from loadgen.workloads.drawn_defaults import INPUT, OUTPUT
from loadgen.workloads.session_options import LengthOptions
from serving.analysis.steady_state.request_shape import BATCHED_TOKENS_MAX
from serving.commands.analysis_options import (
    PRINTED,
    JsonOptions,
    PartitionSweepOptions,
    PlotOptions,
    PriceOptions,
    WorkerOptions,
    check_least,
    check_outputs,
    one_of,
    whole_numbers,
    write_json,
)
from serving.commands.drawn_lengths import mean_tokens
from startup.typed_options import REQUIRED, add_options, option, read_options

if TYPE_CHECKING:
    from emulator.specs.system import SystemSpec
    from serving.analysis.steady_state.sweep import Sweep


@dataclass(frozen=True, kw_only=True)
class RequestOptions(LengthOptions):
    """The requests of the steps, by their mean lengths."""

    GROUP = "requests"

    prefill_tokens: int | None = option(
        None, "prompt tokens of a rank in a step that computes any (default: spread evenly)"
    )
    max_num_batched_tokens: int = option(BATCHED_TOKENS_MAX, "new tokens of a rank in a step")


@dataclass(frozen=True, kw_only=True)
class OutputOptions(JsonOptions, PlotOptions, WorkerOptions):
    """Destinations of the answer."""

    GROUP = "output"

    rows: int = option(16, "of each envelope in the table")

    def __post_init__(self) -> None:
        """Refuse unwritable paths before a minute's work."""
        super().__post_init__()
        check_least("rows", self.rows, 2)
        check_outputs(self)


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
    power: str = option(
        "provisioned", "what a megawatt is: provisioned, drawn or all-in", metavar="BASIS"
    )


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `pareto` command."""
    parser = subparsers.add_parser(
        "pareto",
        help="tokens/s/MW against tokens/s/user, over all partitions and batches",
        description="Tokens/s/MW against tokens/s/user over all partitions, batches, precisions "
        "and LNCs of machines, with the upper envelope; modelled, not measured.",
    )
    add_options(parser, ParetoOptions)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Sweep, print the table or JSON, write the files; returns 0. Raises ConfigError."""
    from emulator.power.efficiency import PowerBasis
    from serving.analysis.pareto.pareto import pareto

    options = read_options(ParetoOptions, args)
    prices = options.prices()
    with options.workers() as workers:
        found = pareto(
            sweeps_of(options),
            basis=one_of(PowerBasis, "power", options.power),
            aggregated=options.serving != "disaggregated",
            pools=options.serving != "aggregated",
            workers=workers,
        )
    if options.json:
        import msgspec

        from serving.analysis.pareto.pareto_report import as_data

        data = msgspec.json.encode(as_data(found, prices))  # a line: it has every point
        write_json(data.decode(), options.json)
    if options.json != PRINTED:
        from serving.analysis.explain.point_bottleneck import point_bottleneck
        from serving.analysis.pareto.pareto_report import report_lines

        print("\n".join(report_lines(found, options.rows, prices, point_bottleneck)))
    if options.plot:
        from serving.analysis.pareto.pareto_chart import pareto_chart

        options.write_plots(lambda: pareto_chart(found))
    return 0


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
    from emulator.specs.assumptions import accepts, machine_named, with_assumptions
    from emulator.specs.systems import system_by_name

    named = [each.split(":") for each in names]
    catalog = [system_by_name(name) for name, *_ in named]
    shared = [text for text in assumptions if any(accepts(system, text) for system in catalog)]
    for system in catalog[:1]:  # which refuses, as any other would, what no system has
        with_assumptions(system, [text for text in assumptions if text not in shared])
    return [
        machine_named(system, [text for text in shared if accepts(system, text)], own)
        for system, (_, *own) in zip(catalog, named, strict=True)
    ]

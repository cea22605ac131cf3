"""`ultraserve pareto`: what machines give a megawatt against what each user gets.

Every partition, batch, precision and LNC of every machine that is named, by the cost model; it
starts nothing. Where both machines of the vendor's launch are named, its claims are held against
the curves.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from emulator.errors import ConfigError
from serving.commands.calibration_argument import add_calibration_argument
from serving.commands.reading_argument import add_reading_argument

if TYPE_CHECKING:
    from emulator.power.token_cost import Prices
    from emulator.specs.system import SystemSpec
    from serving.analysis.pareto.pareto import Pareto
    from serving.analysis.steady_state.sweep import Sweep

Word = TypeVar("Word", bound=StrEnum)

_LIST_FLAGS = ("chips", "tp", "ep", "lnc", "batch")
_PICTURE_SUFFIXES = {"png": ".png", "html": ".html"}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `pareto` command."""
    parser = subparsers.add_parser(
        "pareto",
        help="tokens/s/MW against tokens/s/user, over all partitions and batches",
        description="Tokens/s/MW against tokens/s/user over all partitions, batches, precisions "
        "and LNCs of machines, with the upper envelope; modelled, not measured.",
    )
    parser.add_argument("--model", required=True, metavar="NAME", help="a model of the catalog")
    parser.add_argument(
        "--systems",
        required=True,
        metavar="NAME,...",
        help="machines of the catalog; the first is what others are compared to",
    )
    _add_workload(parser)
    _add_choices(parser)
    _add_assumptions(parser)
    _add_outputs(parser)
    parser.set_defaults(run=run)


def _add_workload(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("requests")
    group.add_argument("--isl", type=int, default=1024, metavar="N", help="prompt tokens (1024)")
    group.add_argument("--osl", type=int, default=1024, metavar="N", help="output tokens (1024)")
    group.add_argument(
        "--prefill-chunk",
        type=int,
        metavar="N",
        help="prompt tokens of a rank in a step that computes any (default: spread evenly)",
    )
    group.add_argument(
        "--max-batched-tokens", type=int, metavar="N", help="new tokens of a rank in a step (8192)"
    )
    group.add_argument(
        "--routing", default="uniform", help="uniform, zipf:S, or a file of expert loads"
    )


def _add_choices(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what to try (default: everything that fits)")
    words = {
        "chips": "chips of one replica",
        "tp": "chips of a rank",
        "ep": "chips of an expert group",
        "lnc": "physical cores of a logical one; an announced LNC only when it is named",
        "batch": "decoding requests of a rank",
    }
    for name in _LIST_FLAGS:
        group.add_argument(f"--{name}", metavar="N,...", help=words[name])
    group.add_argument("--precision", metavar="NAME,...", help="bf16, fp8, mxfp4, nvfp4, stored")
    group.add_argument(
        "--serving",
        choices=("aggregated", "disaggregated", "both"),
        default="aggregated",
        help="prompts on the chips that decode, on a pool of their own, or try both",
    )
    group.add_argument(
        "--units", type=int, default=1, metavar="N", help="of each machine, joined by network cards"
    )
    group.add_argument(
        "--across-units", action="store_true", help="let a replica lie on several units"
    )


def _add_assumptions(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("assumptions")
    group.add_argument("--overlap", default="none", help="none, two-batch or full")
    add_calibration_argument(group, default="fitted")
    add_reading_argument(group, default=[])
    group.add_argument(
        "--gpu-memory-utilization", type=float, default=0.92, help="share of HBM to use (0.92)"
    )
    group.add_argument(
        "--power", default="provisioned", help="what a megawatt is: provisioned, drawn or all-in"
    )
    group.add_argument("--season", default="peak", help="peak, summer, spring-autumn or winter")
    for name in ("chip-hour", "system-hour", "kwh"):
        group.add_argument(f"--{name}-dollars", type=float, metavar="USD", help="a price to count")


def _add_outputs(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--rows", type=int, default=16, help="of each envelope in the table (16)")
    group.add_argument("--json", metavar="FILE", help="write every point; - for standard output")
    group.add_argument("--png", metavar="FILE", type=Path, help="write a picture")
    group.add_argument("--html", metavar="FILE", type=Path, help="a page that needs no network")
    group.add_argument(
        "--processes", type=int, metavar="N", help="that share the work (default: one a core)"
    )


def run(args: argparse.Namespace) -> int:
    """Sweep, print the table or JSON, write the files; returns 0.

    Raises:
        ConfigError: an unknown name, or a choice that no machine or model allows.
    """
    from emulator.power.efficiency import PowerBasis
    from serving.analysis.pareto.pareto import pareto

    _check_outputs(args)
    prices = _prices(args)
    found = pareto(
        sweeps_of(args),
        basis=_one_of(PowerBasis, "power", args.power),
        aggregated=args.serving != "disaggregated",
        pools=args.serving != "aggregated",
        processes=args.processes,
    )
    if args.json:
        _write_json(found, args.json, prices)
    if args.json != "-":
        from serving.analysis.pareto.pareto_report import report_lines

        print("\n".join(report_lines(found, args.rows, prices)))
    for path in (args.png, args.html):
        if path is not None:
            from serving.analysis.chart_file import write_chart
            from serving.analysis.pareto.pareto_chart import pareto_chart

            write_chart(pareto_chart(found), path, field="picture")
            print(f"wrote {path}", file=sys.stderr)
    return 0


def sweeps_of(args: argparse.Namespace) -> tuple[Sweep, ...]:
    """One sweep for each machine that is named; raises ConfigError."""
    from emulator.memory.chip_contents import HbmTerms
    from emulator.specs.models import model_by_name
    from emulator.specs.overlap import Overlap
    from emulator.specs.rack_power import Season
    from emulator.specs.shipped_fits import calibration_for
    from serving.analysis.steady_state.partitions import PartitionFilter
    from serving.analysis.steady_state.request_shape import BATCHED_TOKENS_MAX, RequestShape
    from serving.analysis.steady_state.step_assumptions import StepAssumptions
    from serving.analysis.steady_state.sweep import Sweep

    shape = RequestShape(
        prompt_tokens=args.isl,
        output_tokens=args.osl,
        prefill_chunk_tokens=args.prefill_chunk,
        batched_tokens_max=BATCHED_TOKENS_MAX
        if args.max_batched_tokens is None
        else args.max_batched_tokens,
    )
    numbers = {name: _numbers(name, getattr(args, name)) for name in _LIST_FLAGS}
    overlap = _one_of(Overlap, "overlap", args.overlap)
    systems = _systems(args)
    common = Sweep(
        system=systems[0],
        model=model_by_name(args.model),
        shape=shape,
        asked=PartitionFilter(
            chips=numbers["chips"],
            tp=numbers["tp"],
            ep=numbers["ep"],
            across_units=args.across_units,
        ),
        batches=numbers["batch"],
        terms=HbmTerms(utilization=args.gpu_memory_utilization),
        routing=args.routing,
        season=_one_of(Season, "season", args.season),
    )
    precisions = tuple(args.precision.split(",")) if args.precision else ()
    return tuple(
        replace(
            common,
            system=system,
            precisions=precisions,
            asked=replace(common.asked, lnc=_lncs_of(system, systems, numbers["lnc"])),
            assumptions=StepAssumptions(
                overlap=overlap,
                calibration=calibration_for(system.chip.name, name=args.calibration),
            ),
        )
        for system in systems
    )


def _lncs_of(
    system: SystemSpec, systems: list[SystemSpec], asked: tuple[int, ...]
) -> tuple[int, ...]:
    """Those that were asked for and the chip has; all of its own where another machine has them.

    One that no chip has is left in, to be refused.
    """
    known = {size for each in systems for size in each.chip.lnc_sizes}
    return tuple(lnc for lnc in asked if lnc in system.chip.lnc_sizes or lnc not in known)


def _systems(args: argparse.Namespace) -> list[SystemSpec]:
    """The machines with their readings, each reading on those that have its switch."""
    from emulator.specs.assumptions import with_assumptions
    from emulator.specs.systems import system_by_name

    systems = [system_by_name(name) for name in args.systems.split(",")]
    for text in args.reading:
        name = text.partition("=")[0]
        having = [
            any(switch.name == name for switch in (*system.variants, *system.chip.switches))
            for system in systems
        ]
        systems = [
            with_assumptions(system, [text]) if has or not any(having) else system
            for system, has in zip(systems, having, strict=True)
        ]
    return [system.cluster(args.units) for system in systems]


def _numbers(name: str, text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(field=name, value=text, expected="whole numbers, as 1,2,4") from None


def _one_of(kind: type[Word], field: str, value: str) -> Word:
    try:
        return kind(value)
    except ValueError:
        names = ", ".join(str(each) for each in kind)
        raise ConfigError(field=field, value=value, expected=f"one of {names}") from None


def _prices(args: argparse.Namespace) -> Prices | None:
    from emulator.power.token_cost import Prices

    given = {
        f"{name}_dollars": getattr(args, f"{name}_dollars")
        for name in ("chip_hour", "system_hour", "kwh")
    }
    return Prices(**given) if any(value is not None for value in given.values()) else None


def _check_outputs(args: argparse.Namespace) -> None:
    """Refuse what could not be written before a minute's work, not after it."""
    if args.rows < 2:
        raise ConfigError(field="rows", value=args.rows, expected="at least 2")
    if args.processes is not None and args.processes < 1:
        raise ConfigError(field="processes", value=args.processes, expected="at least 1")
    for name, suffix in _PICTURE_SUFFIXES.items():
        path = getattr(args, name)
        if path is not None and path.suffix.lower() != suffix:
            raise ConfigError(field=name, value=path, expected=f"a path that ends in {suffix}")
    for name in ("json", "png", "html"):
        path = getattr(args, name)
        if path is not None and str(path) != "-" and not Path(path).absolute().parent.is_dir():
            raise ConfigError(field=name, value=path, expected="a path in a folder that exists")


def _write_json(found: Pareto, where: str, prices: Prices | None) -> None:
    import msgspec

    from serving.analysis.pareto.pareto_report import as_data

    text = msgspec.json.encode(as_data(found, prices)).decode()  # a line: it has every point
    if where == "-":
        print(text)
        return
    try:
        Path(where).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        expected = f"a path to write to ({error.strerror})"
        raise ConfigError(field="json", value=where, expected=expected) from error

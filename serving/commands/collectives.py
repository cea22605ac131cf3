"""`ultraserve collectives`: how long collectives take on the fabrics of one or more systems.

By size: time, fastest algorithm, and bus bandwidth as nccom-test and nccl-tests print it; further
systems' speed-up over the first, and the vendor's claim. Starts nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from emulator.errors import ConfigError
from emulator.fabric.collectives import CollectiveModel, Operation
from emulator.fabric.traffic_classes import TrafficClass
from emulator.specs.assumptions import machine_named
from emulator.specs.system import SystemSpec
from emulator.specs.systems import system_by_name
from reporting.data_forms import json_text
from reporting.document import Column, table_of
from reporting.plain_text import table_lines
from serving.commands.collective_claims import UNITS, claim_of, claim_text, hop_text, size_text
from serving.commands.shared_traffic import shared_lines, shared_text, traffic_name
from serving.settings import AssumptionOptions
from startup.typed_options import add_options

_SIZES_MAX = 64
_OTHERS = [traffic for traffic in TrafficClass if traffic is not TrafficClass.COLLECTIVE]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A collective of a size on a system; `times_as_long` is its speed-up over the first system."""

    system: str
    operation: str
    ranks: int
    size_bytes: int
    duration_ns: float
    algorithm: str
    bus_bytes_per_s: float
    times_as_long: float


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the `collectives` command."""
    what = "time collectives on the fabrics of systems, by size"
    parser = subparsers.add_parser("collectives", help=what, description=f"{what.capitalize()}.")
    parser.add_argument(
        "--system",
        default="trn2-ultraserver,trn3-nl72x2",
        metavar="A,B[:NAME=VALUE]",
        help="systems of the catalog, perhaps under other assumptions or with other figures, as "
        "`describe` lists them; all are held against the first (default: %(default)s)",
    )
    add_options(parser, AssumptionOptions)
    parser.add_argument(
        "--op",
        default="all-gather,all-reduce",
        metavar="OP,...",
        help=f"of {', '.join(Operation)} (default: %(default)s)",
    )
    parser.add_argument(
        "--sizes",
        default="1KiB..1GiB",
        metavar="SIZES",
        help="A..B for every fourth power of two between them, or A,B,... (default: %(default)s)",
    )
    parser.add_argument(
        "--chips", type=int, metavar="N", help="first chips of each system (default: of the least)"
    )
    parser.add_argument(
        "--ranks", type=int, metavar="N", help="ranks, divided over the chips (default: one each)"
    )
    parser.add_argument(
        "--beside",
        metavar="TRAFFIC=SIZE,...",
        help="instead, time all-to-alls while every chip also sends so much of "
        f"{', '.join(map(traffic_name, _OTHERS))}",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, in base units")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the table; raises ConfigError for unusable arguments."""
    systems = [_system(text, args.assumptions) for text in _names("system", args.system)]
    operations = [_operation(name) for name in _names("op", args.op)]
    sizes = parse_sizes(args.sizes)
    chips = min(system.chips.count for system in systems) if args.chips is None else args.chips
    ranks = chips if args.ranks is None else args.ranks
    _check_ranks(systems, chips=chips, ranks=ranks)
    if args.beside is not None:
        beside = parse_beside(args.beside)
        shared = [
            line
            for system in systems
            for line in shared_lines(
                system, sizes, beside, chips=chips, ranks_per_chip=ranks // chips
            )
        ]
        print(json_text(shared) if args.json else "\n".join(shared_text(shared)))
        return 0
    lines = [
        line
        for operation in operations
        for line in collective_lines(systems, operation, sizes, chips=chips, ranks=ranks)
    ]
    if args.json:
        print(json_text(lines))
    else:
        print("\n".join(_text(lines, systems, sizes, chips=chips, ranks=ranks)))
    return 0


def collective_lines(
    systems: list[SystemSpec], operation: Operation, sizes: list[int], *, chips: int, ranks: int
) -> list[Line]:
    """Sizes in order, systems within; on the first `chips` chips, over which `ranks` divide."""
    size = np.array(sizes, dtype=np.float64)[:, None]  # [sizes, 1 group]
    group = np.arange(chips)[None]
    found: list[list[Line]] = [[] for _ in sizes]
    first_ns: np.ndarray | None = None
    for system in systems:
        model = CollectiveModel(system, group, ranks_per_chip=ranks // chips)
        time = model.time(operation, size)
        first_ns = time.duration_ns if first_ns is None else first_ns
        bus = model.bus_bytes_per_s(operation, size, time.duration_ns)
        for row, size_bytes in enumerate(sizes):
            duration_ns = float(time.duration_ns[row, 0])
            found[row].append(
                Line(
                    system=system.name,
                    operation=operation.value,
                    ranks=ranks,
                    size_bytes=size_bytes,
                    duration_ns=duration_ns,
                    algorithm=time.algorithm(row, 0).value,
                    bus_bytes_per_s=float(bus[row, 0]),
                    times_as_long=float(first_ns[row, 0]) / duration_ns,
                )
            )
    return [line for lines in found for line in lines]


def _check_ranks(systems: list[SystemSpec], *, chips: int, ranks: int) -> None:
    """Raises ConfigError for missing chips, or ranks that do not divide."""
    least = min(systems, key=lambda system: system.chips.count)
    if not 1 <= chips <= least.chips.count:
        raise ConfigError("chips", chips, f"1 to {least.chips.count}, the chips of {least.name}")
    if ranks < 2 or ranks % chips:
        raise ConfigError("ranks", ranks, f"at least 2 ranks, a multiple of the {chips} chips")


def parse_beside(text: str) -> dict[TrafficClass, int]:
    """Bytes by class of "kv-transfer=64MiB,checkpoint=1GiB"; raises ConfigError otherwise."""
    by_name = {traffic_name(traffic): traffic for traffic in _OTHERS}
    beside: dict[TrafficClass, int] = {}
    for part in _names("beside", text):
        name, equals, size = part.partition("=")
        if not equals or name not in by_name:
            raise ConfigError("beside", part, f"TRAFFIC=SIZE, traffic one of {', '.join(by_name)}")
        if by_name[name] in beside:
            raise ConfigError("beside", name, "each traffic once")
        beside[by_name[name]] = _bytes(size)
    return beside


def parse_sizes(text: str) -> list[int]:
    """Bytes of "1KiB..1GiB", each four times the one before, or of "1KiB,64KB"; ascending.

    Raises ConfigError for malformed, descending or too many sizes.
    """
    first, dots, last = text.partition("..")
    if not dots:
        return sorted({_bytes(part) for part in text.split(",")})
    size, end = _bytes(first), _bytes(last)
    sizes: list[int] = []
    while size <= end and len(sizes) < _SIZES_MAX:
        sizes.append(size)
        size *= 4
    if not sizes:
        raise ConfigError("sizes", text, "from a size to a larger one")
    return sizes


def _bytes(text: str) -> int:
    digits = text.strip().rstrip("bBgGiIkKmM")
    unit = text.strip()[len(digits) :].upper() or "B"
    sizes = {name.upper(): size for name, size in UNITS.items()}
    if not digits.isdecimal() or unit not in sizes or int(digits) < 1:
        raise ConfigError("sizes", text, "sizes such as 64KiB or 1MB")
    return int(digits) * sizes[unit]


def _names(field: str, text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ConfigError(field, text, "at least one name")
    return names


def _system(text: str, shared: Sequence[str]) -> SystemSpec:
    """The system of "NAME:SWITCH=ASSUMPTION:...", whose name then is that text; `shared` are of
    all systems.
    """
    name, *own = text.split(":")
    return machine_named(system_by_name(name), shared, own)


def _operation(name: str) -> Operation:
    if name not in list(Operation):
        raise ConfigError("op", name, f"one of {', '.join(Operation)}")
    return Operation(name)


def _text(
    lines: list[Line], systems: list[SystemSpec], sizes: list[int], *, chips: int, ranks: int
) -> Iterator[str]:
    """A title, a table and the vendor's claims per operation; then the assumptions of the times."""
    count = len(systems)
    by_operation: dict[str, list[Line]] = {}
    for line in lines:
        by_operation.setdefault(line.operation, []).append(line)
    for number, (operation, own) in enumerate(by_operation.items()):
        if number:
            yield ""
        names = [line.system for line in own[:count]]
        yield f"{operation}, {own[0].ranks} ranks: {' | '.join(names)}"
        rows = [tuple(own[at : at + count]) for at in range(0, len(own), count)]
        yield from table_lines(table_of(_columns(count), rows))
        for index, system in enumerate(systems):
            claim = claim_of(Operation(operation), systems[0], system)
            if claim is not None:
                times = [line.times_as_long for line in own[index::count]]
                yield f"{system.name}, vendor's {claim_text(claim, sizes, times)}"

                def most_times(other: SystemSpec, operation: str = operation) -> float:
                    pair = [systems[0], other]
                    timed = collective_lines(
                        pair, Operation(operation), sizes, chips=chips, ranks=ranks
                    )
                    return max(line.times_as_long for line in timed[1::2])

                yield hop_text(claim, system, most_times)
    yield ""
    yield from map(_latency_text, systems)
    for system in systems:
        yield from system.turned_in_words()
    yield "* assumed, `ultraserve describe` says why"
    yield "links and HBM at their full rates; nothing is added up inside switches"


def _columns(count: int) -> Iterator[Column[tuple[Line, ...]]]:
    """Columns of a row: one size on each of `count` systems."""
    yield Column("size", lambda row: size_text(row[0].size_bytes))
    for index in range(count):

        def of(name: str, index: int = index) -> Callable[[tuple[Line, ...]], object]:
            return lambda row: getattr(row[index], name)

        yield Column("us", of("duration_ns"), ",.1f", scale=1e3)
        yield Column("algorithm", of("algorithm"), align="left")
        yield Column("bus", of("bus_bytes_per_s"), ",.1f", unit="GB/s", scale=1e9)
        if index:
            yield Column("x faster", of("times_as_long"), ".2f")


def _latency_text(system: SystemSpec) -> str:
    """A step's time beside its bytes, marked where unpublished."""
    parts = ((system.chip.dma_start_ns, "a transfer's start"), (system.hop_ns, "a hop"))
    said = (
        f"{figure.value:,.0f} ns{'*' if figure.assumed else ''} {what}" for figure, what in parts
    )
    return f"{system.name}: {', '.join(said)}"

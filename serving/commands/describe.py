"""`ultraserve describe`: a chip, a system or a model, each figure with its unit and its source.

It prints what the catalog holds and starts nothing. JSON carries base units as the cost model uses
them; the table scales them for reading.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from emulator.model import (
    CHIPS,
    MODELS,
    SYSTEMS,
    ConfigError,
    CoreMap,
    Figure,
    NamedFigures,
    core_map,
)
from emulator.units import GIB

_SCALED_UNITS = ("bytes", "bytes/s", "FLOP/s", "op/s")
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One entry of the catalog, to be printed."""

    kind: str
    name: str
    figures: NamedFigures
    core_maps: tuple[CoreMap, ...] = ()


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the `describe` command and its arguments."""
    parser = subparsers.add_parser(
        "describe",
        help="print a chip, a system or a model, with the source of each figure",
        description="Print a chip, a system or a model, with the source of each figure.",
    )
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="what to print (default: every chip and system)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, in base units")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the named entry, or the chips and systems; 2 and one line on stderr if unknown."""
    try:
        sections = sections_for(args.name)
    except ConfigError as error:
        print(f"ultraserve describe: {error}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps([_as_json(section) for section in sections], indent=2))
    else:
        print("\n\n".join("\n".join(_lines(section)) for section in sections))
    return 0


def sections_for(name: str | None) -> tuple[Section, ...]:
    """The catalog's entry of that name, or every chip and system for None; raises ConfigError."""
    catalog = tuple(_catalog())
    if name is None:
        return tuple(section for section in catalog if section.kind != "model")
    found = tuple(section for section in catalog if section.name == name)
    if not found:
        names = ", ".join(section.name for section in catalog)
        raise ConfigError(field="name", value=name, expected=f"one of {names}")
    return found


def _catalog() -> Iterator[Section]:
    for chip in CHIPS.values():
        core_maps = tuple(core_map(chip, lnc) for lnc in chip.lnc_sizes)
        yield Section(kind="chip", name=chip.name, figures=chip.figures(), core_maps=core_maps)
    for system in SYSTEMS.values():
        yield Section(kind="system", name=system.name, figures=system.figures())
    for model in MODELS.values():
        yield Section(kind="model", name=model.name, figures=model.figures())


def _as_json(section: Section) -> dict[str, object]:
    figures = {
        label: {
            "value": figure.value,
            "unit": figure.unit,
            "source": figure.source,
            "assumed": figure.assumed,
        }
        for label, figure in section.figures
    }
    entry: dict[str, object] = {"kind": section.kind, "name": section.name, "figures": figures}
    if section.core_maps:
        entry["logical_cores"] = [_core_map_json(core_map) for core_map in section.core_maps]
    return entry


def _core_map_json(core_map: CoreMap) -> dict[str, object]:
    cores = [
        {
            "core": core.core,
            "physical_cores": core.physical_cores,
            "hbm_stacks": core.stacks,
            "hbm_bytes": len(core.stacks) * core_map.stack_bytes,
            "shared_with_cores": core.shares_with,
        }
        for core in core_map.cores
    ]
    return {"lnc": core_map.lnc, "released": core_map.released, "cores": cores}


def _lines(section: Section) -> Iterator[str]:
    """A title, then a table whose columns are as wide as their widest cell; sources run on."""
    rows = [("figure", "value", "unit", "source")]
    rows += [(label, *_readable(figure), figure.source) for label, figure in section.figures]
    label_width, value_width, unit_width = (max(len(row[i]) for row in rows) for i in range(3))
    yield f"{section.kind} {section.name}"
    for label, value, unit, source in rows:
        yield f"  {label:<{label_width}}  {value:>{value_width}}  {unit:<{unit_width}}  {source}"
    for mapped in section.core_maps:
        yield ""
        yield from _core_map_lines(mapped)


def _core_map_lines(mapped: CoreMap) -> Iterator[str]:
    """One logical core a line: its physical cores and the HBM that it sees."""
    status = "" if mapped.released else " (announced by the vendor, not released)"
    yield f"  LNC={mapped.lnc}: {len(mapped.cores)} logical cores{status}"
    for core in mapped.cores:
        physical, stacks = (
            f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else str(numbers[0])
            for numbers in (core.physical_cores, core.stacks)
        )
        shared = ", ".join(f"NC {other}" for other in core.shares_with)
        seen_gib = len(core.stacks) * mapped.stack_bytes / GIB
        yield (
            f"    NC {core.core}: physical {physical}, HBM stack {stacks}, {seen_gib:.0f} GiB"
            + (f", shared with {shared}" if shared else "")
        )


def _readable(figure: Figure) -> tuple[str, str]:
    """Value and unit for a reader: large byte and operation counts in M, G or T (powers of ten)."""
    value, unit = figure.value, figure.unit
    if unit in _SCALED_UNITS:
        for factor, prefix in _PREFIXES:
            if value >= factor:
                short = {"bytes": "B", "bytes/s": "B/s"}.get(unit, unit)
                value, unit = value / factor, prefix + short
                break
    digits = 0 if value == int(value) else 2
    return f"{value:,.{digits}f}", unit

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

from emulator.model import CHIPS, MODELS, SYSTEMS, ConfigError, Figure, NamedFigures

_SCALED_UNITS = ("bytes", "bytes/s", "FLOP/s", "op/s")
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One entry of the catalog, to be printed."""

    kind: str
    name: str
    figures: NamedFigures


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
        yield Section(kind="chip", name=chip.name, figures=chip.figures())
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
    return {"kind": section.kind, "name": section.name, "figures": figures}


def _lines(section: Section) -> Iterator[str]:
    """A title, then a table whose columns are as wide as their widest cell; sources run on."""
    rows = [("figure", "value", "unit", "source")]
    rows += [(label, *_readable(figure), figure.source) for label, figure in section.figures]
    label_width, value_width, unit_width = (max(len(row[i]) for row in rows) for i in range(3))
    yield f"{section.kind} {section.name}"
    for label, value, unit, source in rows:
        yield f"  {label:<{label_width}}  {value:>{value_width}}  {unit:<{unit_width}}  {source}"


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

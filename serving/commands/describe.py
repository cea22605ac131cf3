"""`ultraserve describe`: a chip, a system or a model, each figure with its unit and its source.

Where sources disagree it lists the assumptions, and applies the chosen one. JSON has the cost
model's base units; tables scale them.
"""

from __future__ import annotations

import argparse

from emulator.errors import ConfigError
from emulator.memory.lnc import CoreMap
from emulator.specs.figure import Figure
from reporting.data_forms import json_text
from serving.commands.analysis_options import JsonOptions
from serving.commands.catalog_section import (
    CatalogEntry,
    ShownSwitch,
    catalog_sections,
    sections_of,
)
from serving.commands.catalog_text import overview_lines, section_lines
from serving.settings import AssumptionOptions
from startup.typed_options import add_options


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `describe` command."""
    parser = subparsers.add_parser(
        "describe",
        help="print a chip, a system or a model, with the source of each figure",
        description="Print a chip, a system or a model, with the source of each figure.",
    )
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="what to print (default: all chips and systems, a line each)",
    )
    for kind in (AssumptionOptions, JsonOptions):
        add_options(parser, kind)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the entry, or the chips and systems; returns 0. Raises ConfigError."""
    if args.name is None and args.assumptions:
        raise ConfigError("assumption", args.assumptions[0], "the NAME of a chip or a system")
    sections = sections_of(args.name, args.assumptions) if args.name else catalog_sections()
    if args.json:
        print(json_text([_as_json(section) for section in sections]))
    elif args.name is None:
        print("\n".join(overview_lines()))
    else:
        print("\n\n".join("\n".join(section_lines(section)) for section in sections))
    return 0


def _as_json(section: CatalogEntry) -> dict[str, object]:
    entry: dict[str, object] = {
        "kind": section.kind,
        "name": section.name,
        "about": section.about,
        "announced": section.announced,
        "figures": {label: _figure_json(figure) for label, figure in section.figures},
        "unknown": list(section.unknown),
        "switches": [_switch_json(shown) for shown in section.switches],
    }
    if section.core_maps:
        entry["logical_cores"] = [_core_map_json(core_map) for core_map in section.core_maps]
    return entry


def _figure_json(figure: Figure) -> dict[str, object]:
    return {
        "value": figure.value,
        "unit": figure.unit,
        "source": figure.source,
        "assumed": figure.assumed,
        **({"set": figure.set_to} if figure.is_set else {}),
    }


def _switch_json(shown: ShownSwitch) -> dict[str, object]:
    switch, on = shown
    assumptions = [
        {
            "name": assumption.name,
            "why": assumption.why,
            "sets": {
                label: _figure_json(value) if isinstance(value, Figure) else value
                for label, value in assumption.figures.items()
            },
        }
        for assumption in switch.assumptions
    ]
    name = None if on is None else on.name
    return {"name": switch.name, "on": name, "assumptions": assumptions}


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

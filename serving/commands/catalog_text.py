"""An entry of the catalog as text: a table of its figures, then its switches and core maps."""

from collections.abc import Iterator
from typing import Final

from emulator.memory.lnc import CoreMap
from emulator.specs.figure import Figure
from emulator.units import GIB
from reporting.document import Column, table_of
from reporting.numbers import with_prefix
from reporting.plain_text import table_lines
from serving.commands.catalog_section import CatalogEntry, ShownSwitch

_SOURCED: Final[tuple[Column[tuple[str, ...]], ...]] = (
    Column("figure", align="left"),
    Column("value"),
    Column("unit", align="left"),
    Column("source", align="left"),
)
_UNTITLED: Final[tuple[Column[tuple[str, ...]], ...]] = (
    Column("", align="left"),
    Column(""),
    Column("", align="left"),
)


def section_lines(section: CatalogEntry) -> Iterator[str]:
    """A title, then a table whose columns are as wide as their widest cell; sources run on."""
    yield f"{section.kind} {section.name}"
    if section.about:
        yield f"  {section.about}"
    if section.status:
        yield f"  {section.status}"
    rows = [
        (label, *with_prefix(figure.value, figure.unit), figure.source)
        for label, figure in section.figures
    ]
    rows += [(label, "unknown", "", "unpublished") for label in section.unknown]
    yield from table_lines(table_of(_SOURCED, rows), indent=2)
    for shown in section.switches:
        yield ""
        yield from _switch_lines(shown)
    for mapped in section.core_maps:
        yield ""
        yield from _core_map_lines(mapped)


def _switch_lines(shown: ShownSwitch) -> Iterator[str]:
    """A switch: each assumption set, its reason, and its figures."""
    switch, on = shown
    yield f"  switch {switch.name}"
    for assumption in switch.assumptions:
        mark = " (on)" if assumption is on else ""
        yield f"    {switch.name}={assumption.name}{mark}: {assumption.why}"
        rows = [
            (label, *with_prefix(value.value, value.unit))
            if isinstance(value, Figure)
            else (label, value, "")
            for label, value in assumption.figures.items()
        ]
        yield from table_lines(table_of(_UNTITLED, rows), indent=6)


def _core_map_lines(mapped: CoreMap) -> Iterator[str]:
    """One logical core a line: its physical cores and the HBM that it sees."""
    status = "" if mapped.released else " (announced by the vendor, not released)"
    cores = "1 logical core" if len(mapped.cores) == 1 else f"{len(mapped.cores)} logical cores"
    yield f"  LNC={mapped.lnc}: {cores}{status}"
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

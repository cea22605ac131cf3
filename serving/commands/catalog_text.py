"""An entry of the catalog as text: a table of its figures, then what belongs to it alone."""

from collections.abc import Iterator

from emulator.memory.lnc import CoreMap
from emulator.specs.figure import Figure
from emulator.units import GIB
from serving.commands.catalog_section import Section, SwitchShown
from serving.commands.text_table import table_lines

_SCALED_UNITS = ("bytes", "bytes/s", "FLOP/s", "op/s")
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"))
_VALUE_COLUMN = 1


def section_lines(section: Section) -> Iterator[str]:
    """A title, then a table whose columns are as wide as their widest cell; sources run on."""
    yield f"{section.kind} {section.name}"
    if section.about:
        yield f"  {section.about}"
    if section.status:
        yield f"  {section.status}"
    rows = [("figure", "value", "unit", "source")]
    rows += [(label, *readable(figure), figure.source) for label, figure in section.figures]
    rows += [(label, "unknown", "", "unpublished") for label in section.unknown]
    yield from _indented(2, table_lines(rows, right=frozenset({_VALUE_COLUMN})))
    for shown in section.switches:
        yield ""
        yield from _switch_lines(shown)
    for mapped in section.core_maps:
        yield ""
        yield from _core_map_lines(mapped)


def _switch_lines(shown: SwitchShown) -> Iterator[str]:
    """A switch: each assumption, why, and what it sets."""
    yield f"  switch {shown.switch.name}"
    for assumption in shown.switch.assumptions:
        mark = " (on)" if assumption is shown.on else ""
        yield f"    {shown.switch.name}={assumption.name}{mark}: {assumption.why}"
        rows = [
            (label, *readable(value)) if isinstance(value, Figure) else (label, value, "")
            for label, value in assumption.figures.items()
        ]
        yield from _indented(6, table_lines(rows, right=frozenset({_VALUE_COLUMN})))


def _indented(blanks: int, lines: list[str]) -> Iterator[str]:
    return (" " * blanks + line for line in lines)


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


def readable(figure: Figure) -> tuple[str, str]:
    """Value and unit for a reader: large byte and operation counts in M, G or T (powers of ten)."""
    value, unit = figure.value, figure.unit
    if unit in _SCALED_UNITS:
        for factor, prefix in _PREFIXES:
            if value >= factor:
                short = {"bytes": "B", "bytes/s": "B/s"}.get(unit, unit)
                value, unit = value / factor, prefix + short
                break
    digits = 0 if value == int(value) else 2 if value >= 1 else 3
    return f"{value:,.{digits}f}", unit

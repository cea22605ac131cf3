"""The HBM usage table, laid out and worded as the Neuron runtime's when memory runs out.

Unused columns stay, at zero. Rows are per owner instead of per NEFF. Sizes are binary (1 GB = 2^30
bytes), as in the runtime's.

Source: AWS Neuron SDK docs, neuron-runtime/explore/device-memory.rst, out-of-memory errors.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from emulator.memory.lnc import CoreMap, LogicalCore
from emulator.specs.hbm_usage import HbmOwner, HbmUse, HeldBytes, StackUsage
from emulator.units import gib_text

_COLUMNS: Final = (
    ("", "TOTAL"),
    ("Model", "Code"),
    ("Model", "Constants"),
    ("", "Tensors"),
    ("Shared", "Scratchpad"),
    ("", "Scratchpad"),
    ("", "Runtime"),
    ("DMA Rings", "IO"),
    ("DMA Rings", "Spill"),
    ("DMA Rings", "Collectives"),
    ("DMA Rings", "Runtime"),
    ("", "Collectives"),
    ("", "XT CC"),
    ("Profiler", "Buffers"),
)
_COLUMN_OF_USE: Final = {
    HbmUse.MICROCODE: "Code",
    HbmUse.WEIGHTS: "Tensors",
    HbmUse.KV: "Tensors",
    HbmUse.ACTIVATIONS: "Shared Scratchpad",
    HbmUse.COLLECTIVES: "Collectives",
    HbmUse.TRAINING: "Tensors",
}
_WIDTH_LEAST: Final = 10
_NAME_WIDTH_LEAST: Final = 14
_RUNTIME_USAGE: Final = {
    HbmUse.MICROCODE: "model code",
    HbmUse.WEIGHTS: "tensors",
    HbmUse.KV: "tensors",
    HbmUse.ACTIVATIONS: "shared scratchpad",
    HbmUse.COLLECTIVES: "collectives",
    HbmUse.TRAINING: "tensors",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAllocation:
    """A failed allocation on a logical core of a device."""

    device: int
    core: int
    owner: HbmOwner
    wanted_bytes: int


def readable_bytes(count: int) -> str:
    """A size as the runtime writes it: "4.000GB", "96.065MB", "0.000B"."""
    for unit, size in (("GB", 2**30), ("MB", 2**20), ("KB", 2**10)):
        if count >= size:
            return f"{count / size:.3f}{unit}"
    return f"{count:.3f}B"


def usage_table(
    held: Sequence[Sequence[HeldBytes]], cores: CoreMap, *, device: int, core: int
) -> str:
    """The table of the stacks that `core` sees, from all stacks' `held`.

    Rows: the stacks together, then each core that allocates there, then its owners.
    """
    shown = cores.cores[core]
    seen = [each for stack in shown.stacks for each in held[stack]]
    rows = [(f"ND {device} Overall", _row(seen))]
    for member in sorted((core, *shown.shares_with)):
        of_core = [each for each in seen if each.core == member]
        rows.append((f"\\_NC {member}", _row(of_core)))
        for owner in sorted({each.owner for each in of_core}):
            rows.append((f"  \\_{owner}", _row(each for each in of_core if each.owner == owner)))
    name_width = max(_NAME_WIDTH_LEAST, *(len(name) + 1 for name, _ in rows))
    widths = [max(_WIDTH_LEAST, len(top), len(bottom)) for top, bottom in _COLUMNS]
    header = [[top for top, _ in _COLUMNS], [bottom for _, bottom in _COLUMNS]]
    lines = [("", cells) for cells in header] + rows
    return "\n".join(
        name.ljust(name_width)
        + "|"
        + "".join(f"{_centre(cell, width)}|" for cell, width in zip(cells, widths, strict=True))
        for name, cells in lines
    )


def failure_report(
    failed: FailedAllocation,
    usage: Sequence[StackUsage],
    held: Sequence[Sequence[HeldBytes]],
    cores: CoreMap,
) -> str:
    """The runtime's log of a failed allocation: the sharing cores, the failure, the table.

    The last line is ours: the runtime does not report the free bytes.
    """
    core = cores.cores[failed.core]
    free_bytes = sum(usage[stack].free_bytes for stack in core.stacks)
    capacity_bytes = sum(usage[stack].capacity_bytes for stack in core.stacks)
    lines = (
        ("print_lnc_hbm_details", f"LNC size is {cores.lnc}. {_cores_using(core)}"),
        (
            "log_dev_mem",
            f"Failed to allocate {readable_bytes(failed.wanted_bytes)} (alignment: none, usage: "
            f"{_RUNTIME_USAGE[failed.owner.use]}) on ND {failed.device}:NC {failed.core}",
        ),
        ("log_dev_mem_usage_table", "Displaying Current Memory Utilization:"),
    )
    stacks = " and ".join(map(str, core.stacks))
    return "\n".join(
        (
            *(f"ERROR  TDRV:{function:<37} {text}" for function, text in lines),
            usage_table(held, cores, device=failed.device, core=failed.core),
            f"HBM {stacks} of ND {failed.device}: {gib_text(free_bytes, 3)} free of "
            f"{gib_text(capacity_bytes, 3)} (GB above are the runtime's word for GiB)",
        )
    )


def _cores_using(core: LogicalCore) -> str:
    names = " and ".join(f"NC {each}" for each in sorted((core.core, *core.shares_with)))
    return f"Neuron Cores using this HBM: {names}"


def _row(held: Iterable[HeldBytes]) -> list[str]:
    totals = dict.fromkeys(("TOTAL", *_COLUMN_OF_USE.values()), 0)
    for each in held:
        totals["TOTAL"] += each.held_bytes
        totals[_COLUMN_OF_USE[each.owner.use]] += each.held_bytes
    return [readable_bytes(totals.get(_column_key(column), 0)) for column in _COLUMNS]


def _column_key(column: tuple[str, str]) -> str:
    top, bottom = column
    return " ".join(column) if top in ("Shared", "DMA Rings") else bottom


def _centre(text: str, width: int) -> str:
    """The runtime's centring: the odd blank goes to the right."""
    left = (width - len(text)) // 2
    return (" " * left + text).ljust(width)

import pytest

from emulator.errors import HbmExhausted
from emulator.memory.hbm_allocator import HbmAllocator
from emulator.memory.lnc import core_map
from emulator.memory.usage_table import readable_bytes, usage_table
from emulator.specs.catalog.trainium3 import TRAINIUM3
from emulator.specs.hbm_usage import HbmOwner, HbmUse
from emulator.units import GIB, MIB

MICROCODE = HbmOwner(use=HbmUse.MICROCODE)
ATTENTION = HbmOwner(use=HbmUse.WEIGHTS, name="attention")

# The vendor's own sample, without its rows of compiled programs.
HEADER = """\
              |          |  Model   |  Model   |          |  Shared  |          |          |\
DMA Rings |DMA Rings | DMA Rings |DMA Rings |           |          | Profiler |
              |  TOTAL   |   Code   |Constants | Tensors  |Scratchpad|Scratchpad| Runtime  |\
    IO    |  Spill   |Collectives| Runtime  |Collectives|  XT CC   | Buffers  |"""
ROW_OF_CORE_5 = """\
\\_NC 5        | 96.000MB | 96.000MB |  0.000B  |  0.000B  |  0.000B  |  0.000B  |  0.000B  |\
  0.000B  |  0.000B  |  0.000B   |  0.000B  |  0.000B   |  0.000B  |  0.000B  |"""


def chip_of_the_sample() -> HbmAllocator:
    """Cores 4 and 5 share a stack; one of them holds 20 GB of tensors."""
    chip = HbmAllocator(core_map(TRAINIUM3, 1))
    for core in (4, 5):
        chip.allocate(MICROCODE, core=core, wanted_bytes=96 * MIB)
    chip.allocate(HbmOwner(use=HbmUse.WEIGHTS), core=4, wanted_bytes=20 * GIB)
    return chip


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0.000B"),
        (1_023, "1023.000B"),
        (1_024 * 350 + 128, "350.125KB"),
        (96 * MIB + 64 * 1_024, "96.062MB"),
        (4 * GIB, "4.000GB"),
    ],
)
def test_sizes_read_as_the_runtime_writes_them(count: int, text: str) -> None:
    assert readable_bytes(count) == text


def test_header_and_rows_are_laid_out_as_in_the_vendors_sample() -> None:
    chip = chip_of_the_sample()
    lines = usage_table(chip.held(), chip.cores, device=0, core=4).splitlines()

    assert "\n".join(lines[:2]) == HEADER
    assert lines[2].startswith("ND 0 Overall  | 20.188GB |192.000MB |  0.000B  | 20.000GB |")
    assert [line.split("|")[0].rstrip() for line in lines[2:]] == [
        "ND 0 Overall",
        "\\_NC 4",
        "  \\_microcode",
        "  \\_weights",
        "\\_NC 5",
        "  \\_microcode",
    ]
    (core_5,) = [line for line in lines if line.startswith("\\_NC 5")]
    assert core_5 == ROW_OF_CORE_5
    assert len({len(line) for line in lines}) == 1


@pytest.mark.parametrize(
    ("use", "column"),
    [
        (HbmUse.MICROCODE, 2),
        (HbmUse.WEIGHTS, 4),
        (HbmUse.KV, 4),
        (HbmUse.ACTIVATIONS, 5),
        (HbmUse.COLLECTIVES, 12),
    ],
)
def test_each_use_has_its_column_and_counts_in_the_total(use: HbmUse, column: int) -> None:
    chip = HbmAllocator(core_map(TRAINIUM3, 2))
    chip.allocate(HbmOwner(use=use), core=0, wanted_bytes=GIB)
    row = usage_table(chip.held(), chip.cores, device=0, core=0).splitlines()[2].split("|")

    filled = [index for index, cell in enumerate(row) if "1.000GB" in cell]
    assert filled == [1, column]


def test_a_failure_is_reported_in_the_runtimes_words() -> None:
    chip = chip_of_the_sample()
    with pytest.raises(HbmExhausted) as caught:
        chip.allocate(ATTENTION, core=4, wanted_bytes=24 * GIB)

    lines = caught.value.table.splitlines()
    assert lines[0].endswith("LNC size is 1. Neuron Cores using this HBM: NC 4 and NC 5")
    assert lines[1].endswith(
        "Failed to allocate 24.000GB (alignment: none, usage: tensors) on ND 0:NC 4"
    )
    assert lines[2].endswith("Displaying Current Memory Utilization:")
    assert [line.split()[1] for line in lines[:3]] == [
        "TDRV:print_lnc_hbm_details",
        "TDRV:log_dev_mem",
        "TDRV:log_dev_mem_usage_table",
    ]
    assert lines[-1] == (
        "HBM 2 of ND 0: 15.812 GiB free of 36.000 GiB (GB above are the runtime's word for GiB)"
    )


def test_lnc_8_shows_four_stacks_as_one() -> None:
    chip = HbmAllocator(core_map(TRAINIUM3, 8), device=7)
    chip.allocate(ATTENTION, core=0, wanted_bytes=100 * GIB)
    with pytest.raises(HbmExhausted) as caught:
        chip.allocate(HbmOwner(use=HbmUse.ACTIVATIONS), core=0, wanted_bytes=45 * GIB)

    lines = caught.value.table.splitlines()
    assert lines[0].endswith("LNC size is 8. Neuron Cores using this HBM: NC 0")
    assert lines[1].endswith("usage: shared scratchpad) on ND 7:NC 0")
    assert "100.000GB" in lines[5]
    assert lines[-1].startswith("HBM 0 and 1 and 2 and 3 of ND 7: 44.000 GiB free of 144.000 GiB")

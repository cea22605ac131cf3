"""The catalog's chips, by name: those that can be timed, and data sheets of others."""

from typing import Final

from emulator.errors import ConfigError
from emulator.specs.catalog.ada import L40S
from emulator.specs.catalog.ampere import A100
from emulator.specs.catalog.blackwell import B200, B300, GB200, GB300
from emulator.specs.catalog.cdna import MI300X, MI325X, MI355X
from emulator.specs.catalog.data_sheets import INFERENTIA1, MI455X, TPU_V7, TRAINIUM4
from emulator.specs.catalog.hopper import H100, H200, H800
from emulator.specs.catalog.trainium1 import INFERENTIA2, TRAINIUM1
from emulator.specs.catalog.trainium2 import TRAINIUM2
from emulator.specs.catalog.trainium3 import TRAINIUM3
from emulator.specs.chip import ChipSpec
from emulator.specs.data_sheet import DataSheet

CHIPS: Final[dict[str, ChipSpec]] = {
    chip.name: chip
    for chip in (
        INFERENTIA2,
        TRAINIUM1,
        TRAINIUM2,
        TRAINIUM3,
        A100,
        L40S,
        H100,
        H800,
        H200,
        B200,
        GB200,
        B300,
        GB300,
        MI300X,
        MI325X,
        MI355X,
    )
}
DATA_SHEETS: Final[dict[str, DataSheet]] = {
    sheet.name: sheet for sheet in (INFERENTIA1, TRAINIUM4, MI455X, TPU_V7)
}


def chip_by_name(name: str) -> ChipSpec:
    """The chip of that name, in any case.

    Raises ConfigError that lists the names, or a data sheet's unpublished figures.
    """
    for sheet in DATA_SHEETS.values():
        if name.lower() in (sheet.name, *sheet.aliases):
            raise ConfigError(
                "chip", name, f"a chip that can be timed; {sheet.name} is {sheet.status}"
            )
    if name.lower() not in CHIPS:
        raise ConfigError("chip", name, f"one of {', '.join(CHIPS)}")
    return CHIPS[name.lower()]

"""The chips that the catalog knows, by name."""

from typing import Final

from emulator.errors import ConfigError
from emulator.specs.chip import ChipSpec
from emulator.specs.trainium3 import TRAINIUM3

CHIPS: Final[dict[str, ChipSpec]] = {TRAINIUM3.name: TRAINIUM3}


def chip_by_name(name: str) -> ChipSpec:
    """The chip of that name; raises ConfigError that lists the names."""
    if name not in CHIPS:
        raise ConfigError(field="chip", value=name, expected=f"one of {', '.join(CHIPS)}")
    return CHIPS[name]

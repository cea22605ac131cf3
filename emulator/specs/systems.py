"""The systems that the catalog knows, by name."""

from typing import Final

from emulator.errors import ConfigError
from emulator.specs.system import SystemSpec
from emulator.specs.trn3_nl72x2 import TRN3_NL72X2

SYSTEMS: Final[dict[str, SystemSpec]] = {TRN3_NL72X2.name: TRN3_NL72X2}


def system_by_name(name: str) -> SystemSpec:
    """The system of that name; raises ConfigError that lists the names."""
    if name not in SYSTEMS:
        raise ConfigError(field="system", value=name, expected=f"one of {', '.join(SYSTEMS)}")
    return SYSTEMS[name]

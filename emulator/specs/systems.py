"""The catalog's systems, by name."""

from typing import Final

from emulator.errors import ConfigError
from emulator.specs.catalog.gpu_boxes import (
    DGX_B200,
    DGX_B300,
    DGX_H100,
    DGX_H200,
    DGX_H800,
    MI300X_8,
    MI325X_8,
    MI355X_8,
)
from emulator.specs.catalog.neuron_instances import (
    INF2_48XLARGE,
    TRN1_32XLARGE,
    TRN2_48XLARGE,
    TRN2_ULTRASERVER,
)
from emulator.specs.catalog.nvl72 import GB200_NVL72, GB300_NVL72
from emulator.specs.catalog.trn3_nl32x2 import TRN3_NL32X2
from emulator.specs.catalog.trn3_nl72x2 import TRN3_NL72X2
from emulator.specs.system import SystemSpec

SYSTEMS: Final[dict[str, SystemSpec]] = {
    system.name: system
    for system in (
        INF2_48XLARGE,
        TRN1_32XLARGE,
        TRN2_48XLARGE,
        TRN2_ULTRASERVER,
        TRN3_NL32X2,
        TRN3_NL72X2,
        DGX_H100,
        DGX_H800,
        DGX_H200,
        DGX_B200,
        DGX_B300,
        GB200_NVL72,
        GB300_NVL72,
        MI300X_8,
        MI325X_8,
        MI355X_8,
    )
}


def system_by_name(name: str) -> SystemSpec:
    """The system of that name, in any case; raises ConfigError that lists the names."""
    if name.lower() not in SYSTEMS:
        raise ConfigError("system", name, f"one of {', '.join(SYSTEMS)}")
    return SYSTEMS[name.lower()]

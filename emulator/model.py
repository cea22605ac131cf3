"""The door to specs and cost: everything that plans, describes or times, without starting a chip.

It starts no process and imports no Ray, so commands that only compute never pay for it.
"""

from emulator.compute.checkpoint import check_weights
from emulator.errors import ConfigError, HbmExhausted
from emulator.power.energy_meter import EnergyMeter
from emulator.specs.batch import StepBatch
from emulator.specs.chip import ChipSpec
from emulator.specs.chips import CHIPS, chip_by_name
from emulator.specs.figure import Figure, NamedFigures
from emulator.specs.model import ModelSpec
from emulator.specs.models import MODELS, model_by_name
from emulator.specs.partition import Partition, check_partition
from emulator.specs.system import SystemSpec
from emulator.specs.systems import SYSTEMS, system_by_name
from emulator.ultraserver.step_cost import (
    ACTIVATION_RESERVE_BYTES,
    StepCost,
    StepCostModel,
)

__all__ = [
    "ACTIVATION_RESERVE_BYTES",
    "CHIPS",
    "MODELS",
    "SYSTEMS",
    "ChipSpec",
    "ConfigError",
    "EnergyMeter",
    "Figure",
    "HbmExhausted",
    "ModelSpec",
    "NamedFigures",
    "Partition",
    "StepBatch",
    "StepCost",
    "StepCostModel",
    "SystemSpec",
    "check_partition",
    "check_weights",
    "chip_by_name",
    "model_by_name",
    "system_by_name",
]

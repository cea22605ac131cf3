"""The door to specs and cost: everything that plans, describes or times, without starting a chip.

It starts no process and imports no Ray, so commands that only compute never pay for it.
"""

from emulator.compute.checkpoint import check_weights
from emulator.errors import ConfigError, HbmExhausted
from emulator.fabric.tiers import rack_of, tray_of
from emulator.faults.recovery_time import RecoveryRates
from emulator.faults.reloads import plan_reloads
from emulator.faults.survival import Recovery
from emulator.memory.chip_contents import HbmTerms
from emulator.memory.core_claims import CoreClaim, claims_directory
from emulator.memory.core_request import CoreRequest, compiled_lnc
from emulator.memory.core_request import resolve as resolve_cores
from emulator.memory.lnc import CoreMap, core_map
from emulator.memory.neuron_environment import NeuronEnvironment
from emulator.power.energy_meter import EnergyMeter
from emulator.specs.batch import StepBatch
from emulator.specs.chip import ChipSpec
from emulator.specs.chips import CHIPS, chip_by_name
from emulator.specs.expert_loads import ExpertLoads
from emulator.specs.figure import Figure, NamedFigures
from emulator.specs.health import Health
from emulator.specs.model import ModelSpec
from emulator.specs.models import MODELS, model_by_name
from emulator.specs.partition import Partition, check_partition
from emulator.specs.placement import ExpertPlacement, ExpertTransfer
from emulator.specs.system import SystemSpec
from emulator.specs.systems import SYSTEMS, system_by_name
from emulator.timing.expert_distribution import ExpertDistribution
from emulator.ultraserver.machine import Machine, Settlement, StepCosting
from emulator.ultraserver.step_cost import StepCost, StepCostModel

__all__ = [
    "CHIPS",
    "MODELS",
    "SYSTEMS",
    "ChipSpec",
    "ConfigError",
    "CoreClaim",
    "CoreMap",
    "CoreRequest",
    "EnergyMeter",
    "ExpertDistribution",
    "ExpertLoads",
    "ExpertPlacement",
    "ExpertTransfer",
    "Figure",
    "HbmExhausted",
    "HbmTerms",
    "Health",
    "Machine",
    "ModelSpec",
    "NamedFigures",
    "NeuronEnvironment",
    "Partition",
    "Recovery",
    "RecoveryRates",
    "Settlement",
    "StepBatch",
    "StepCost",
    "StepCostModel",
    "StepCosting",
    "SystemSpec",
    "check_partition",
    "check_weights",
    "chip_by_name",
    "claims_directory",
    "compiled_lnc",
    "core_map",
    "model_by_name",
    "plan_reloads",
    "rack_of",
    "resolve_cores",
    "system_by_name",
    "tray_of",
]

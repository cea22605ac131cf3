"""The door to specs and cost: everything that plans, describes or times, without starting a chip.

It starts no process and imports no Ray, so commands that only compute never pay for it.
"""

from emulator.compute.checkpoint import check_weights
from emulator.errors import ConfigError, HbmExhausted
from emulator.fabric.collectives import CollectiveModel, CollectiveTime, Operation
from emulator.fabric.connected_chips import connected_chips
from emulator.fabric.kv_transfer import kv_transfer_ns
from emulator.fabric.shared_links import SharedLinks
from emulator.fabric.tiers import rack_of, tray_of
from emulator.fabric.traffic_classes import TrafficClass, traffic_classes
from emulator.faults.recovery_time import RecoveryRates
from emulator.faults.reloads import plan_reloads
from emulator.faults.survival import Recovery
from emulator.memory.chip_contents import HbmTerms
from emulator.memory.core_claims import (
    CoreClaim,
    check_private_directory,
    claims_directory,
    is_still_at,
    make_private_directory,
)
from emulator.memory.core_request import CoreRequest, compiled_lnc
from emulator.memory.core_request import resolve as resolve_cores
from emulator.memory.kv_room import kv_room_tokens
from emulator.memory.lnc import CoreMap, core_map
from emulator.memory.neuron_environment import NeuronEnvironment
from emulator.memory.training_memory import (
    TrainingMemory,
    check_training_fits,
    smallest_training_chips,
    training_memory,
)
from emulator.power.draw import chip_watts, throttle_factor, wanted_watts
from emulator.power.energy_meter import EnergyMeter
from emulator.power.power_state import NAMED_STATES, PowerState, power_state
from emulator.power.system_power import FacilityWatts, SystemPower
from emulator.power.token_cost import Prices, TokenCost, token_cost
from emulator.power.yardstick import PowerBasis, TokenRates, TokensPerMegawatt, tokens_per_megawatt
from emulator.specs.batch import StepBatch
from emulator.specs.calibration import ROOFLINE, Calibration
from emulator.specs.chip import ChipSpec
from emulator.specs.chips import CHIPS, DATA_SHEETS, chip_by_name
from emulator.specs.data_sheet import DataSheet
from emulator.specs.expert_loads import ExpertLoads
from emulator.specs.figure import Figure, NamedFigures
from emulator.specs.health import Health
from emulator.specs.model import ModelSpec
from emulator.specs.models import MODELS, model_by_name, unknown_model
from emulator.specs.name_suggestions import did_you_mean
from emulator.specs.overlap import Overlap
from emulator.specs.partition import Partition, check_partition
from emulator.specs.placement import ExpertPlacement, ExpertTransfer
from emulator.specs.rack_power import Cooling, RackPower, Season
from emulator.specs.readings import Reading, Switch, with_readings
from emulator.specs.shipped_fits import (
    CALIBRATIONS,
    FITTED,
    ShippedFits,
    calibration_for,
    calibration_name,
    shipped_fits,
)
from emulator.specs.sparsity import Sparsity
from emulator.specs.stack_factors import FrameworkFactors, MachineFactors, StackFactors
from emulator.specs.system import SystemSpec, Topology
from emulator.specs.systems import SYSTEMS, system_by_name
from emulator.specs.training_recipe import Recompute, Sharding, TrainingRecipe
from emulator.specs.work_energy import WorkEnergy, work_energy_of
from emulator.timing.expert_distribution import ExpertDistribution
from emulator.timing.model_flops import (
    forward_flops,
    served_flops,
    training_flops_per_token,
)
from emulator.timing.speculation import expected_accepted
from emulator.ultraserver.busiest_experts import BusiestExperts
from emulator.ultraserver.ceilings import Ceilings, ceilings_of
from emulator.ultraserver.handover_cost import (
    HandoverCost,
    checkpoint_write,
    experts_moved,
    transfer_bytes,
    weights_read,
)
from emulator.ultraserver.machine import Machine, Settlement, StepCosting
from emulator.ultraserver.relief import SPEEDLESS, relieved_ns
from emulator.ultraserver.sleeping_hbm import SLEEP_TAGS, SleepingHbm
from emulator.ultraserver.step_columns import StepColumns
from emulator.ultraserver.step_cost import ENGINE_NAMES, THROTTLE, StepCost, StepCostModel
from emulator.ultraserver.step_rows import CalibrationValues
from emulator.ultraserver.step_terms import StepTerms
from emulator.ultraserver.step_time import StepTime, combine
from emulator.ultraserver.training_check import TrainingCheck, training_checks
from emulator.ultraserver.training_cost import TrainingCost, TrainingStepCost

__all__ = [
    "CALIBRATIONS",
    "CHIPS",
    "DATA_SHEETS",
    "ENGINE_NAMES",
    "FITTED",
    "MODELS",
    "NAMED_STATES",
    "ROOFLINE",
    "SLEEP_TAGS",
    "SPEEDLESS",
    "SYSTEMS",
    "THROTTLE",
    "BusiestExperts",
    "Calibration",
    "CalibrationValues",
    "Ceilings",
    "ChipSpec",
    "CollectiveModel",
    "CollectiveTime",
    "ConfigError",
    "Cooling",
    "CoreClaim",
    "CoreMap",
    "CoreRequest",
    "DataSheet",
    "EnergyMeter",
    "ExpertDistribution",
    "ExpertLoads",
    "ExpertPlacement",
    "ExpertTransfer",
    "FacilityWatts",
    "Figure",
    "FrameworkFactors",
    "HandoverCost",
    "HbmExhausted",
    "HbmTerms",
    "Health",
    "Machine",
    "MachineFactors",
    "ModelSpec",
    "NamedFigures",
    "NeuronEnvironment",
    "Operation",
    "Overlap",
    "Partition",
    "PowerBasis",
    "PowerState",
    "Prices",
    "RackPower",
    "Reading",
    "Recompute",
    "Recovery",
    "RecoveryRates",
    "Season",
    "Settlement",
    "Sharding",
    "SharedLinks",
    "ShippedFits",
    "SleepingHbm",
    "Sparsity",
    "StackFactors",
    "StepBatch",
    "StepColumns",
    "StepCost",
    "StepCostModel",
    "StepCosting",
    "StepTerms",
    "StepTime",
    "Switch",
    "SystemPower",
    "SystemSpec",
    "TokenCost",
    "TokenRates",
    "TokensPerMegawatt",
    "Topology",
    "TrafficClass",
    "TrainingCheck",
    "TrainingCost",
    "TrainingMemory",
    "TrainingRecipe",
    "TrainingStepCost",
    "WorkEnergy",
    "calibration_for",
    "calibration_name",
    "ceilings_of",
    "check_partition",
    "check_private_directory",
    "check_training_fits",
    "check_weights",
    "checkpoint_write",
    "chip_by_name",
    "chip_watts",
    "claims_directory",
    "combine",
    "compiled_lnc",
    "connected_chips",
    "core_map",
    "did_you_mean",
    "expected_accepted",
    "experts_moved",
    "forward_flops",
    "is_still_at",
    "kv_room_tokens",
    "kv_transfer_ns",
    "make_private_directory",
    "model_by_name",
    "plan_reloads",
    "power_state",
    "rack_of",
    "relieved_ns",
    "resolve_cores",
    "served_flops",
    "shipped_fits",
    "smallest_training_chips",
    "system_by_name",
    "throttle_factor",
    "token_cost",
    "tokens_per_megawatt",
    "traffic_classes",
    "training_checks",
    "training_flops_per_token",
    "training_memory",
    "transfer_bytes",
    "tray_of",
    "unknown_model",
    "wanted_watts",
    "weights_read",
    "with_readings",
    "work_energy_of",
]

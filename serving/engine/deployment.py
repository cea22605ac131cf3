"""The emulated deployment: settings and weights directory, resolved and checked.

Reads only config.json; made in the API process to refuse early, and in the engine.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from emulator.compute.checkpoint import check_weights
from emulator.compute.host_memory import HostNeed, host_need
from emulator.compute.model_spec import check_stored, model_spec
from emulator.data import weights_name
from emulator.errors import ConfigError
from emulator.fabric.tiers import rack_of, tray_of
from emulator.faults.recovery_time import RecoveryRates
from emulator.formats.model_formats import FP32_MODEL, ModelFormats
from emulator.formats.product_formats import product_format
from emulator.memory.chip_contents import HbmTerms
from emulator.specs.assumptions import with_assumptions
from emulator.specs.calibration import Calibration
from emulator.specs.figure import Figure
from emulator.specs.model import ModelSpec
from emulator.specs.models import model_by_name
from emulator.specs.overlap import Overlap
from emulator.specs.partition import Partition, check_partition
from emulator.specs.placement import ExpertPlacement
from emulator.specs.precisions import AUTO, STORED, model_at, mx_precisions_of, with_kv_dtype
from emulator.specs.shipped_fits import calibration_for
from emulator.specs.system import SystemSpec
from emulator.specs.systems import system_by_name
from emulator.specs.weight_format import WeightFormat
from emulator.timing.expert_distribution import ExpertDistribution
from emulator.ultraserver.machine import Machine
from emulator.units import NS_PER_S
from serving.engine.drafting import Drafting, draft_method, resolve_drafting
from serving.errors import UnsupportedFlag
from serving.policy.placement.balance import rebalance
from serving.policy.placement.eplb_settings import EplbSettings
from serving.policy.prefill_throttle import parse_prefill_policy
from serving.settings import Settings

_FP32_BYTES = 4  # the chips keep the weights' KV in the dtype they compute in

COMPUTED = "computed"
NO_WEIGHTS = "none (made up)"
ROUTING_SEED = 0
"""Seed of the experts' popularity under `zipf`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A partition of a system, the model that is timed on it, the weights that compute tokens.

    `weights` is `time_model` when they set time too; `distribution` is None when the timed model's
    routers are computed, `eplb` when experts stay where they are, `drafting` without drafts.
    """

    settings: Settings
    system: SystemSpec
    partition: Partition
    time_model: ModelSpec
    weights: ModelSpec
    weights_dir: Path
    weights_kv_bytes_per_token: int
    distribution: ExpertDistribution | None
    eplb: EplbSettings | None
    drafting: Drafting | None = None

    @property
    def chip_drafts(self) -> int:
        """Guesses that chips make after each text."""
        return self.drafting.tokens if self.drafting is not None and self.drafting.by_chips else 0

    @property
    def draft_dir(self) -> Path | None:
        """The drafting model's checkpoint; None where none drafts."""
        return None if self.drafting is None else self.drafting.model_dir

    @property
    def _drafts_by_layer(self) -> bool:
        return self.drafting is not None and self.drafting.by_layer

    @property
    def host_kv_bytes_per_token(self) -> int:
        """Host memory of a token's keys and values, also of what drafts."""
        layer_bytes = self.weights_kv_bytes_per_token // self.weights.layers
        drafter = None if self.drafting is None else self.drafting.model
        return (
            self.weights_kv_bytes_per_token
            + layer_bytes * self._drafts_by_layer
            + (0 if drafter is None else _host_kv_bytes(drafter))
        )

    @property
    def formats(self) -> ModelFormats:
        """The formats that tokens are computed in: float32, unless others are asked for."""
        if self.settings.quantization is not None:
            return ModelFormats.of_model(self.weights)
        if self.settings.kv_cache_dtype == AUTO:
            return FP32_MODEL
        return replace(FP32_MODEL, kv_bytes_per_element=self.weights.kv_bytes_per_element)

    @property
    def same_model(self) -> bool:
        """Whether the weights that compute tokens are also the timed model's."""
        return self.distribution is None

    @property
    def tray_of_chip(self) -> NDArray[np.int64]:
        """Tray of each chip of the partition, counted over the racks, int64[chips]."""
        return tray_of(self.system, self._system_chips)

    @property
    def rack_of_chip(self) -> NDArray[np.int64]:
        """Rack of each chip of the partition, int64[chips]."""
        return rack_of(self.system, self._system_chips)

    @property
    def _system_chips(self) -> NDArray[np.int64]:
        return self.partition.first_chip + np.arange(self.partition.chips)

    @property
    def routing(self) -> str:
        """The timed model's routing, in words."""
        return routing_words(self.time_model, self.distribution)

    @property
    def weights_name(self) -> str:
        """The source of the tokens."""
        return self.weights.name if self.settings.computes else NO_WEIGHTS

    def info(self) -> dict[str, str]:
        """Labels of the deployment."""
        partition = self.partition
        return {
            "system": self.system.name,
            "ultraserver": self.settings.ultraserver,
            "chips": str(partition.chips),
            "tp": str(partition.tp),
            "dp": str(partition.ranks),
            "ep": str(partition.ep),
            "lnc": str(partition.lnc),
            "attention_split": partition.attention_split.value,
            "time_model": self.time_model.name,
            "weights": self.weights_name,
            "routing": self.routing,
            "clock": self.settings.clock,
            "calibration": self.settings.calibration,
            "overlap": self.settings.overlap,
        }

    @property
    def calibration(self) -> Calibration:
        """The fit that is added to the roofline."""
        return calibration_for(self.system.chip.name, name=self.settings.calibration)

    def placement_of(self, model: ModelSpec) -> ExpertPlacement:
        """Initial placement of the experts of `model`: even, redundant copies too."""
        partition = self.partition
        even = ExpertPlacement.even(
            layers=model.moe_layers, experts=model.experts, chips=partition.chips, ep=partition.ep
        )
        if self.eplb is None or not model.experts:
            return even
        # The experts that `eplb` is about divide evenly; those of a stand-in beside them need not,
        # and further copies fill its last slots.
        slots = -(-(model.experts + self.eplb.num_redundant_experts) // partition.ep)
        return rebalance(
            np.ones((model.moe_layers, model.experts)),
            slots=slots,
            ep=partition.ep,
            tray_of_chip=self.tray_of_chip,
            rack_of_chip=self.rack_of_chip,
        )

    @property
    def host_need(self) -> HostNeed:
        """Host memory of the chips that compute the weights, were all on one host."""
        return host_need(
            self.weights_dir,
            chips=self.partition.chips,
            tp=self.partition.tp,
            slots=self.placement_of(self.weights).slots,
            formats=self.formats,
            drafts=self._drafts_by_layer,
            draft_dir=self.draft_dir,
        )

    def machine(self, utilization: float) -> Machine:
        """The machine, with `utilization` of its HBM for the engine; raises HbmExhausted."""
        return Machine(
            self.system,
            self.time_model,
            self.partition,
            self.placement_of(self.time_model),
            distribution=self.distribution,
            calibration=self.calibration,
            overlap=Overlap(self.settings.overlap),
            draft_tokens=0 if self.drafting is None else self.drafting.tokens,
            draft_module=self._drafts_by_layer,
            draft_model=None if self.drafting is None else self.drafting.model,
            terms=HbmTerms(utilization=utilization),
            rates=RecoveryRates(
                hang_ns=Figure(
                    value=self.settings.hang_timeout_s * NS_PER_S,
                    unit="ns",
                    source="--hang-timeout; the Neuron runtime's NEURON_RT_EXEC_TIMEOUT is 30 s",
                )
            ),
        )


def _host_kv_bytes(model: ModelSpec) -> int:
    return _FP32_BYTES * model.kv_bytes_per_token // model.kv_bytes_per_element


def with_drafts(deployment: Deployment, method: str, tokens: int, model: str | None) -> Deployment:
    """The deployment with drafts by vLLM's `method`.

    Raises UnsupportedFlag without weights, ConfigError for what cannot draft for these.
    """
    if not deployment.settings.computes:
        raise UnsupportedFlag(
            flag="--speculative-config",
            reason="made-up tokens follow no n-gram, and no model guesses them: serve with weights",
        )
    drafting = resolve_drafting(
        draft_method(method),
        tokens,
        model,
        weights_dir=deployment.weights_dir,
        time_model=deployment.time_model,
    )
    return replace(deployment, drafting=drafting)


def routing_words(model: ModelSpec, distribution: ExpertDistribution | None) -> str:
    """Where a timed model's tokens go; `distribution` None is its own routers."""
    if not model.experts:
        return "none (dense)"
    return COMPUTED if distribution is None else f"{distribution.name} (expected)"


def resolve_deployment(settings: Settings, weights_dir: Path) -> Deployment:
    """Resolve names and check the rules that tie chips, ranks, heads and experts.

    Raises:
        ConfigError: an unknown name, or a partition that the machine or a model does not allow.
        CheckpointError: no checkpoint in `weights_dir` that the chips can compute.
    """
    system = _system(settings)
    weights = model_spec(weights_name(weights_dir), weights_dir)
    if settings.computes:
        check_weights(weights_dir)
        if settings.quantization == STORED:
            check_stored(weights_dir)
    weights = _in_formats(weights, settings, system)
    time_model = (
        _in_formats(model_by_name(settings.model), settings, system) if settings.model else weights
    )
    partition = replace(
        settings.partition(system), first_chip=settings.first_chip, spares=settings.spares
    )
    # A timed model's key and value heads are repeated where tp exceeds them, and a stand-in's head
    # groups lie on as many chips of a rank as they divide over; weights that are both are divided.
    own_routers = settings.computes and time_model is weights
    groups = time_model.kv_heads if own_routers else time_model.heads
    check_partition(partition, system, {time_model.name: (time_model.heads, groups)})
    parse_prefill_policy(settings.prefill_policy)  # the scheduler makes it; refused here already
    if own_routers and settings.routing is not None:
        raise ConfigError(
            "routing",
            settings.routing,
            "a catalog model or no weights with it: these weights compute their routers",
        )
    return Deployment(
        settings=settings,
        system=system,
        partition=partition,
        time_model=time_model,
        weights=weights,
        weights_dir=weights_dir,
        weights_kv_bytes_per_token=_host_kv_bytes(weights),
        distribution=None
        if own_routers
        else ExpertDistribution.parse(settings.routing or "uniform", time_model, seed=ROUTING_SEED),
        eplb=_eplb(settings, partition, time_model, weights),
    )


def _in_formats(model: ModelSpec, settings: Settings, system: SystemSpec) -> ModelSpec:
    """`model` with the formats that are asked for; raises ConfigError where the chip lacks one."""
    chip, name = system.chip, settings.quantization
    model = with_kv_dtype(settings.kv_cache_dtype, model, chip)
    if name is None:
        return model
    if name == WeightFormat.NVFP4:
        product_format(WeightFormat.NVFP4)  # raises, with the reason
    if settings.computes and not mx_precisions_of(chip):
        raise ConfigError(
            "quantization",
            name,
            f"a machine of Trainium3, or no weights: {chip.name}'s products are not computed",
        )
    try:
        return model_at(name, model, chip)
    except ConfigError as error:
        raise ConfigError("quantization", name, error.expected) from error


def _eplb(
    settings: Settings, partition: Partition, time_model: ModelSpec, weights: ModelSpec
) -> EplbSettings | None:
    """Balancing settings; redundant copies fill the chips up unless their number is given."""
    if settings.eplb is None:
        return None
    given = dict(settings.eplb)
    model = time_model if time_model.experts else weights
    given.setdefault("num_redundant_experts", -model.experts % partition.ep)
    eplb = EplbSettings.from_mapping(given)
    eplb.slots_per_chip(experts=model.experts, ep=partition.ep)  # refuses what does not divide
    return eplb


def _system(settings: Settings) -> SystemSpec:
    system = with_assumptions(system_by_name(settings.system), settings.assumptions)
    if settings.pue is None:
        return system
    return replace(system, pue=replace(system.pue, value=settings.pue, source="given by the user"))

"""HBM of a training job on each of its chips, by owner, and the fewest chips that hold it.

A parameter costs its weight in the products' precision, an FP32 gradient, and, divided over the
chips that share it, an FP32 master copy and two FP32 moments (AdamW). Sizes are of the fullest
chip: with most experts, and so most tokens when tokens pick experts evenly.
"""

from dataclasses import dataclass, replace
from typing import Final, Self

from emulator.errors import HbmExhausted
from emulator.memory.chip_contents import HbmTerms
from emulator.memory.hbm_allocator import HbmAllocator
from emulator.memory.lnc import CoreMap, core_map
from emulator.specs.hbm_usage import HbmOwner, HbmUse
from emulator.specs.model import ModelSpec
from emulator.specs.saved_activations import FP32_BYTES, KEPT_BYTES, SavedActivations
from emulator.specs.system import SystemSpec
from emulator.specs.tensor_group import TensorSplit
from emulator.specs.training_recipe import Recompute, Sharding, TrainingRecipe

GRADIENT_BYTES: Final = 4  # FP32, as DeepSeek-V3 adds them up (arXiv 2412.19437, 3.3.3)
MASTER_BYTES: Final = 4
MOMENTS_BYTES: Final = 8
LOGIT_ROWS: Final = 1_024
"""Assumed: logits and their gradients are computed for so many tokens at a time, as in HbmTerms."""
BUFFERS: Final = 2  # one is filled while the other is used

Owners = tuple[tuple[HbmOwner, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingMemory:
    """Bytes of the fullest chip by owner; none of them is 0."""

    owners: Owners

    @property
    def chip_bytes(self) -> int:
        """The sum over all owners."""
        return sum(count for _, count in self.owners)

    def on_cores(self, cores: int) -> Owners:
        """The same on each of a chip's `cores` logical cores, rounded up."""
        return tuple((owner, -(-count // cores)) for owner, count in self.owners)

    def check_fits(self, cores: CoreMap, *, hint: str = "") -> None:
        """Raise HbmExhausted, with the usage table of an otherwise empty chip, unless it fits."""
        allocator = HbmAllocator(cores)
        try:
            for owner, on_core in self.on_cores(len(cores.cores)):
                allocator.allocate_on_cores(owner, [on_core] * len(cores.cores))
        except HbmExhausted as error:
            raise HbmExhausted(
                owner=error.owner,
                wanted_bytes=error.wanted_bytes,
                free_bytes=error.free_bytes,
                table=error.table,
                hint=hint,
            ) from None

    def fits(self, cores: CoreMap) -> bool:
        """Whether `check_fits` would pass."""
        on_core = sum(count for _, count in self.on_cores(len(cores.cores)))
        return cores.cores_per_region * on_core <= cores.region_bytes


def training_memory(
    system: SystemSpec, model: ModelSpec, chips: int, recipe: TrainingRecipe
) -> TrainingMemory:
    """Content of each of `chips` chips; raises ConfigError for a group that does not divide them.

    `model` is the catalog's, in any storage format.
    """
    return _TrainingJobMemory.of(system, model, recipe).memory(chips)


@dataclass(frozen=True, slots=True, kw_only=True)
class _TrainingJobMemory:
    """The part of a job's memory that does not depend on its chips, for searches.

    `*_layer_bytes` are of a micro-batch's tokens on one chip, without expert pairs.
    """

    recipe: TrainingRecipe
    layers: int
    dense_layers: int
    moe_layers: int
    experts: int
    dense_parameters: int
    dense_bytes: int
    expert_parameters: int
    expert_bytes: int
    microcode_bytes: int
    layer_input_bytes: int
    dense_layer_bytes: int
    routed_layer_bytes: int
    picked: int
    pair_bytes: int
    logit_bytes: int
    collective_bytes: int

    @classmethod
    def of(cls, system: SystemSpec, model: ModelSpec, recipe: TrainingRecipe) -> Self:
        """Count `model` as it is trained."""
        trained = trained_model(model, recipe)
        saved, tokens = SavedActivations.of(trained), recipe.micro_batch_tokens_per_chip
        return cls(
            recipe=recipe,
            layers=trained.layers,
            dense_layers=trained.dense_layers,
            moe_layers=trained.moe_layers,
            experts=trained.experts,
            dense_parameters=trained.replica_parameters(),
            dense_bytes=sum(
                each.copy_bytes
                for each in trained.tensor_groups()
                if each.split is not TensorSplit.EXPERT
            ),
            expert_parameters=trained.expert_parameters,
            expert_bytes=trained.expert_bytes,
            microcode_bytes=system.chip.cores.count * system.chip.microcode_bytes_per_core.count,
            layer_input_bytes=tokens * saved.layer_input,
            dense_layer_bytes=tokens * (saved.attention + saved.dense),
            routed_layer_bytes=tokens * (saved.attention + saved.router),
            picked=tokens * trained.experts_per_token,
            pair_bytes=saved.expert_pair,
            logit_bytes=BUFFERS * FP32_BYTES * min(LOGIT_ROWS, tokens) * trained.vocab,
            collective_bytes=_collective_bytes(trained, recipe),
        )

    def memory(self, chips: int) -> TrainingMemory:
        """Content of each of `chips` chips; raises ConfigError for an uneven group."""
        sharding, group = self.recipe.sharding, self.recipe.expert_group(chips)
        slots = self.moe_layers * -(-self.experts // group)  # experts of the fullest chip
        dense, own, copies = self.dense_parameters, slots * self.expert_parameters, chips // group
        weights, gradients = self.dense_bytes, GRADIENT_BYTES * (dense + own)
        shared = _part(dense, chips) + _part(own, copies)
        if sharding >= Sharding.GRADIENTS:
            gradients = GRADIENT_BYTES * (shared + BUFFERS * _part(dense, self.layers))
        if sharding >= Sharding.WEIGHTS:
            weights = _part(weights, chips) + BUFFERS * _part(weights, self.layers)
        named = {
            "weights": weights + slots * self.expert_bytes,
            "gradients": gradients,
            "master": MASTER_BYTES * shared,
            "moments": MOMENTS_BYTES * shared,
            "activations": self._activation_bytes(group),
            "collectives": self.collective_bytes,
        }
        owners = [(HbmOwner(use=HbmUse.MICROCODE), self.microcode_bytes)]
        owners += [(HbmOwner(use=HbmUse.TRAINING, name=name), size) for name, size in named.items()]
        return TrainingMemory(owners=tuple((owner, size) for owner, size in owners if size))

    def _activation_bytes(self, group: int) -> int:
        """Kept activations of a micro-batch, one layer's gradients in work, logits of some rows."""
        routed_layer = self.routed_layer_bytes
        if self.experts:  # pairs of the fullest chip, when tokens pick experts evenly
            fullest = -(-self.experts // group) * group
            routed_layer += _part(self.picked * fullest, self.experts) * self.pair_bytes
        widest = max(
            self.dense_layer_bytes if self.dense_layers else 0,
            routed_layer if self.moe_layers else 0,
        )
        if self.recipe.recompute is Recompute.LAYERS:
            kept = self.layers * self.layer_input_bytes + widest
        else:
            kept = self.dense_layers * self.dense_layer_bytes + self.moe_layers * routed_layer
        return kept + widest + self.logit_bytes


def trained_model(model: ModelSpec, recipe: TrainingRecipe) -> ModelSpec:
    """The model with its training products: keys and values in BF16, at any serving precision."""
    return model.at_precision(recipe.precision, kv_bytes_per_element=KEPT_BYTES)


def training_cores(system: SystemSpec, recipe: TrainingRecipe) -> CoreMap:
    """The logical cores of a chip of the job."""
    return core_map(system.chip, recipe.lnc or system.chip.default_lnc.count)


def smallest_training_chips(
    system: SystemSpec, model: ModelSpec, recipe: TrainingRecipe
) -> int | None:
    """The fewest chips of `system` whose HBM holds the job, or None."""
    cores, job = training_cores(system, recipe), _TrainingJobMemory.of(system, model, recipe)
    every = recipe.ep or 1
    sizes = range(every, system.chips.count + 1, every)
    return next((chips for chips in sizes if job.memory(chips).fits(cores)), None)


def check_training_fits(
    system: SystemSpec, model: ModelSpec, chips: int, recipe: TrainingRecipe
) -> TrainingMemory:
    """The memory of a job that fits; raises HbmExhausted, with a sufficient number of chips."""
    memory = training_memory(system, model, chips, recipe)
    cores = training_cores(system, recipe)
    if not memory.fits(cores):
        wants = f"each of {chips} chips would hold {memory.chip_bytes:,} bytes to train "
        capacity = f"{model.name}, and has {system.chip.hbm_bytes:,}; "
        advice = _advice(system, model, recipe)
        memory.check_fits(cores, hint=wants + capacity + advice)
    return memory


def _advice(system: SystemSpec, model: ModelSpec, recipe: TrainingRecipe) -> str:
    thrifty = replace(recipe, recompute=Recompute.LAYERS)
    found = [smallest_training_chips(system, model, each) for each in (recipe, thrifty)]
    words = [f"{fewest} chips" if fewest else "no number of its chips" for fewest in found]
    again = "" if found[0] == found[1] else f", or {words[1]} with recompute=layers"
    return f"smallest of {system.name} that fits: {words[0]}{again}"


def _collective_bytes(model: ModelSpec, recipe: TrainingRecipe) -> int:
    """Dispatch and combine of a micro-batch, two buffers each; at least serving's reserve."""
    rows = recipe.micro_batch_tokens_per_chip * model.hidden * KEPT_BYTES
    both_ways = 2 * BUFFERS * rows if model.experts else 0
    return max(HbmTerms().collective_bytes, both_ways)


def _part(count: int, parts: int) -> int:
    return -(-count // parts)

"""HBM of a training job on each of its chips, by owner, and the fewest chips that hold it.

A parameter costs its weight in the products' precision, an FP32 gradient, and, divided over the
chips that share it, an FP32 master copy and two FP32 moments (AdamW). Sizes are of the fullest
chip: with most experts, and so most tokens when tokens pick experts evenly.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import gcd
from typing import Any, Final

import numpy as np

from emulator.arrays import Bools, Float64s, Int64s
from emulator.errors import HbmExhausted
from emulator.memory.chip_contents import HbmTerms
from emulator.memory.hbm_allocator import HbmAllocator
from emulator.memory.lnc import CoreMap, core_map
from emulator.specs.hbm_usage import HbmOwner, HbmUse
from emulator.specs.model import ModelSpec
from emulator.specs.model_tensors import (
    bytes_of,
    dense_tensors,
    embedding_tensors,
    final_norm_tensors,
    kv_tensors,
    latent_tensors,
    lm_head_tensors,
    norm_tensors,
    parameters_of,
    query_tensors,
    router_tensors,
    shared_tensors,
)
from emulator.specs.pipeline_stages import PipelineStages, tensor_share
from emulator.specs.recipe_columns import RECOMPUTES, RecipeColumns
from emulator.specs.saved_activations import FP32_BYTES, KEPT_BYTES, SavedActivations
from emulator.specs.system import SystemSpec
from emulator.specs.training_recipe import (
    PipelineSchedule,
    Recompute,
    Sharding,
    TrainingRecipe,
)

GRADIENT_BYTES: Final = 4  # FP32, as DeepSeek-V3 adds them up (arXiv 2412.19437, 3.3.3)
MASTER_BYTES: Final = 4
MOMENTS_BYTES: Final = 8
CHECKPOINT_BYTES: Final = KEPT_BYTES + MASTER_BYTES + MOMENTS_BYTES
"""Of a parameter: its BF16 weight and the optimizer's state."""
LOGIT_ROWS: Final = 1_024
"""Assumed: logits and their gradients are computed for so many tokens at a time, as in HbmTerms."""
BUFFERS: Final = 2  # one is filled while the other is used

Owners = tuple[tuple[HbmOwner, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingMemory:
    """Bytes of the fullest chip by owner; none of them is 0."""

    owners: Owners

    @property
    def training(self) -> dict[HbmOwner, int]:
        """Without the runtime's microcode, which is there whatever the chips do."""
        return {owner: count for owner, count in self.owners if owner.use is HbmUse.TRAINING}

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
    """Content of the fullest of `chips` chips; raises ConfigError for parts that do not divide.

    `model` is the catalog's, in any storage format.
    """
    held = training_bytes(system, trained_model(model, recipe), RecipeColumns.of(recipe, chips))
    stage = int(np.sum(list(held.values()), axis=0)[0].argmax())
    return TrainingMemory(
        owners=tuple((owner, int(sizes[0, stage])) for owner, sizes in held.items() if sizes.any())
    )


def training_bytes(
    system: SystemSpec, trained: ModelSpec, columns: RecipeColumns
) -> dict[HbmOwner, Int64s]:
    """Bytes of the fullest chip of every stage by owner, int64[recipes, stages] each.

    Raises ConfigError for stages without a layer, or heads that do not divide.
    """
    job = _JobBytes(trained, columns)
    named = {
        "weights": job.weights,
        "gradients": job.gradients,
        "master": MASTER_BYTES * job.sharded_parameters,
        "moments": MOMENTS_BYTES * job.sharded_parameters,
        "activations": job.activations,
        "collectives": job.collectives,
    }
    microcode = system.chip.cores.count * system.chip.microcode_bytes_per_core.count
    owners = {HbmOwner(use=HbmUse.MICROCODE): np.full_like(job.weights, microcode)}
    return owners | {
        HbmOwner(use=HbmUse.TRAINING, name=name): np.broadcast_to(size, job.weights.shape)
        for name, size in named.items()
    }


def stage_parameters(share: ModelSpec, stages: PipelineStages) -> tuple[Int64s, Int64s]:
    """Parameters of each stage but routed experts, and their bytes as stored: int64[stages].

    `share`: one chip's of a rank, as `tensor_share`. Tied ends are both in a pipeline.
    """
    pipelined = len(stages.first) > 1
    ends = embedding_tensors(share) if pipelined and share.tied_embeddings else ()
    tensors = (
        (stages.layers, (query_tensors, kv_tensors, latent_tensors, norm_tensors)),
        (stages.dense_layers, (dense_tensors,)),
        (stages.moe_layers, (router_tensors, shared_tensors)),
        (stages.first, (embedding_tensors,)),
        (stages.last, (lm_head_tensors, final_norm_tensors, lambda _: ends)),
    )
    totals = [
        sum(count * sum(size_of(part(share)) for part in parts) for count, parts in tensors)
        for size_of in (parameters_of, bytes_of)
    ]
    return np.asarray(totals[0]), np.asarray(totals[1])


def sharded_parameters(trained: ModelSpec, columns: RecipeColumns) -> Int64s:
    """Parameters of which a chip has the optimizer's state: int64[recipes, stages]."""
    return _JobBytes(trained, columns).sharded_parameters


def checkpoint_bytes(trained: ModelSpec, columns: RecipeColumns) -> Float64s:
    """Bytes of a checkpoint on each chip of a job of one recipe, at most: [chips]."""
    own = sharded_parameters(trained, columns)[0]
    return CHECKPOINT_BYTES * np.repeat(own, columns.stage_chips).astype(np.float64)


class _JobBytes:
    """Parts of a chip's HBM, [recipes, stages] each."""

    def __init__(self, trained: ModelSpec, columns: RecipeColumns) -> None:
        base = columns.base
        self._columns = columns
        self._stages = PipelineStages.of(trained, pp=base.pp, virtual_stages=base.virtual_stages)
        self._share = tensor_share(trained, base.tp)
        self._ep = columns.ep[:, None]
        self._sharding = columns.sharding[:, None]
        dense, dense_bytes = stage_parameters(self._share, self._stages)
        held = [dense, dense_bytes, self._stages.layers, self._stages.moe_layers]
        if base.schedule is PipelineSchedule.DUALPIPE:  # also the stage that is as far from its end
            held = [each + each[::-1] for each in held]
        self._dense, self._dense_bytes, self._layers, moe_layers = held
        self._slots = moe_layers * self._own_experts  # experts of the fullest chip
        self._own = self._slots * self._share.expert_parameters

    @property
    def _own_experts(self) -> Int64s:
        own: Int64s = _part(self._share.experts, self._ep)
        return own

    @property
    def sharded_parameters(self) -> Int64s:
        """Those whose optimizer state is a chip's own."""
        columns = self._columns
        copies = 2 if columns.base.schedule is PipelineSchedule.DUALPIPE else 1
        dense = _part(self._dense, copies * columns.replicas)
        own: Int64s = dense + _part(self._own, copies * (columns.stage_chips // self._ep))
        return own

    @property
    def weights(self) -> Int64s:
        """In the products' precision."""
        dense = self._dense_bytes
        sharded = _part(dense, self._columns.replicas) + BUFFERS * _part(dense, self._layers)
        own = np.where(self._sharding >= Sharding.WEIGHTS, sharded, dense)
        total: Int64s = own + self._slots * self._share.expert_bytes
        return total

    @property
    def gradients(self) -> Int64s:
        """In FP32."""
        sharded = self.sharded_parameters + BUFFERS * _part(self._dense, self._layers)
        whole = self._dense + self._own
        held = np.where(self._sharding >= Sharding.GRADIENTS, sharded, whole)
        total: Int64s = GRADIENT_BYTES * held
        return total

    @property
    def activations(self) -> Int64s:
        """Kept ones of all micro-batches on their way, a layer's in work, logits of some rows.

        In work are a layer's gradients, and what is recomputed of it.
        """
        columns, stages = self._columns, self._stages
        tokens = columns.rank_tokens[:, None]
        dense_layer, routed_layer = self._layer_bytes(columns.recompute)
        whole_dense, whole_routed = self._layer_bytes(np.zeros_like(columns.recompute))
        widest = np.maximum(
            np.where(stages.dense_layers > 0, whole_dense, 0),
            np.where(stages.moe_layers > 0, whole_routed, 0),
        )
        kept = stages.dense_layers * dense_layer + stages.moe_layers * routed_layer
        parts = columns.base.virtual_stages
        on_their_way = np.minimum(
            parts_in_flight(columns.base), parts * columns.micro_batches[:, None]
        )
        recomputed = columns.recompute[:, None] != RECOMPUTES.index(Recompute.NONE)
        rows = np.minimum(LOGIT_ROWS, tokens)
        logits = stages.last * (BUFFERS * FP32_BYTES * rows * self._share.vocab)
        total: Int64s = _part(kept * on_their_way, parts) + widest * (1 + recomputed) + logits
        return total

    def _layer_bytes(self, recompute: Int64s) -> tuple[Int64s, Int64s]:
        """Kept of a micro-batch in a dense and in a routed layer, [recipes, 1] each."""
        columns, share = self._columns, self._share
        tokens = columns.rank_tokens[:, None]
        own_tokens = _part(tokens, columns.base.tp)
        saved = [SavedActivations.of(share, each, tp=columns.base.tp) for each in RECOMPUTES]

        def kept(name: str) -> Int64s:
            return np.array([getattr(each, name) for each in saved])[recompute][:, None]

        routed = tokens * kept("attention") + own_tokens * kept("router")
        if share.experts:  # pairs of the fullest chip, when tokens pick experts evenly
            picked = own_tokens * share.experts_per_token
            pairs = _part(picked * self._own_experts * self._ep, share.experts)
            routed = routed + pairs * kept("expert_pair")
        return tokens * (kept("attention") + kept("dense")), routed

    @property
    def collectives(self) -> Int64s:
        """Dispatch and combine of a micro-batch, two buffers each; at least serving's reserve."""
        tokens = _part(self._columns.rank_tokens[:, None], self._columns.base.tp)
        both_ways = 2 * BUFFERS * tokens * self._share.hidden * KEPT_BYTES
        rows: Int64s = both_ways if self._share.experts else 0 * both_ways
        return np.maximum(HbmTerms().collective_bytes, rows)


def parts_in_flight(recipe: TrainingRecipe) -> Int64s:
    """Virtual stages' micro-batches whose activations each stage keeps at most: int64[stages]."""
    pp, parts = recipe.pp, recipe.virtual_stages
    after = pp - 1 - np.arange(pp)
    if recipe.schedule is PipelineSchedule.DUALPIPE:
        return np.full(pp, pp + 1)
    return after + 1 if parts == 1 else 2 * after + (parts - 1) * pp + 1


def fits_bytes(cores: CoreMap, held: Mapping[HbmOwner, Int64s]) -> Bools:
    """Whether chips with `held` bytes [...] fit, as `TrainingMemory.fits`: [...]."""
    on_core = sum(_part(count, len(cores.cores)) for count in held.values())
    fits: Bools = cores.cores_per_region * np.asarray(on_core) <= cores.region_bytes
    return fits


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
    cores = training_cores(system, recipe)
    every = recipe.pp * recipe.tp
    every = every * (recipe.ep or 1) // gcd(recipe.tp, recipe.ep or 1)
    sizes = range(every, system.chips.count + 1, every)
    return next(
        (chips for chips in sizes if training_memory(system, model, chips, recipe).fits(cores)),
        None,
    )


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
    thrifty = replace(recipe, recompute=Recompute.FULL)
    found = [smallest_training_chips(system, model, each) for each in (recipe, thrifty)]
    words = [f"{fewest} chips" if fewest else "no number of its chips" for fewest in found]
    again = "" if found[0] == found[1] else f", or {words[1]} with recompute=full"
    return f"smallest of {system.name} that fits: {words[0]}{again}"


def _part(count: Any, parts: Any) -> Any:
    """Rounded up; ints, or arrays that broadcast."""
    return -(-count // parts)

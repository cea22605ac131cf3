"""A chip's content of a model before any KV: shared by fitting and searching.

Per logical core; all cores of a chip run the same program, so hold as much as the fullest. Query
heads are divided over a rank's chips, then over their cores, padded; a core also holds their
key/value heads, repeated when there are more cores. Multi-head latent attention has one key/value
head, on every core. A cache divided by batch or sequence lies once on the chip, evenly over its
cores (assumed).
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from emulator.errors import ConfigError
from emulator.memory.lnc import CoreMap, core_map
from emulator.memory.model_memory import ModelMemory
from emulator.specs.attention_split import AttentionSplit
from emulator.specs.hbm_usage import HbmOwner, HbmUse
from emulator.specs.model import ModelSpec
from emulator.specs.partition import Partition
from emulator.specs.system import SystemSpec
from emulator.specs.tensor_group import TensorGroup, TensorSplit
from emulator.units import GB


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadsOnCore:
    """Heads of the model on each logical core of a rank, padding included."""

    query_heads: int
    kv_heads: int


def heads_on_core(*, heads: int, kv_heads: int, tp: int, cores: int) -> HeadsOnCore:
    """Divide `heads` query heads and their `kv_heads` over `tp` chips of `cores` logical cores.

    Query head h attends to key/value head h // (heads / kv_heads), a whole number. The fullest core
    sets both counts.
    """
    assert heads % kv_heads == 0, (heads, kv_heads)
    queries_per_kv = heads // kv_heads
    chip_heads = -(-heads // tp)
    core_heads = -(-chip_heads // cores)
    chip_first = np.arange(tp)[:, None] * chip_heads  # [tp, 1]
    first = chip_first + np.arange(cores) * core_heads  # [tp, cores]
    chip_end = np.minimum(chip_first + chip_heads, heads)
    end = np.minimum(first + core_heads, chip_end)
    met = (end - 1) // queries_per_kv - first // queries_per_kv + 1  # [tp, cores]
    return HeadsOnCore(query_heads=core_heads, kv_heads=int(met[first < end].max()))


def kv_bytes_on_core(
    *, copy_bytes: int, heads: int, kv_heads: int, tp: int, cores: int, split: AttentionSplit
) -> int:
    """Bytes per logical core of a cache whose one copy, all `kv_heads`, takes `copy_bytes`."""
    apart = 1 if split is AttentionSplit.HEADS else cores
    on_part = heads_on_core(heads=heads, kv_heads=kv_heads, tp=tp, cores=cores // apart)
    return -(-on_part.kv_heads * -(-copy_bytes // kv_heads) // apart)


def group_bytes_on_core(
    group: TensorGroup, *, heads: int, kv_heads: int, tp: int, cores: int, slots: int
) -> int:
    """Bytes of `group` on each logical core of a chip with `slots` experts in each layer.

    HEADS: by `heads_on_core`. COLUMNS: over all cores of the rank. EXPERT: on one chip, columns
    over its cores. WHOLE: rows (of a vocabulary, of a router) evenly over the cores of each chip.
    Rounded up to whole bytes, not to whole columns.
    """
    match group.split:
        case TensorSplit.HEADS:
            on_core = heads_on_core(heads=heads, kv_heads=kv_heads, tp=tp, cores=cores)
            query_bytes = -(-(group.copy_bytes - group.kv_bytes) // heads)
            kv_bytes = -(-group.kv_bytes // kv_heads)
            return on_core.query_heads * query_bytes + on_core.kv_heads * kv_bytes
        case TensorSplit.COLUMNS:
            return -(-group.copy_bytes // (tp * cores))
        case TensorSplit.EXPERT:
            return slots * group.layers * -(-group.copy_bytes // cores)
        case TensorSplit.WHOLE:
            return -(-group.copy_bytes // cores)


KV_OWNER: Final = HbmOwner(use=HbmUse.KV)


@dataclass(frozen=True, slots=True, kw_only=True)
class HbmTerms:
    """The use of HBM: reserves of each chip, the engine's share, the least pool.

    Assumed reserves, 4 GB together, spread evenly over a chip's cores. Activations: 8,192 batched
    tokens' widest (0.1 GB), logits of 1,024 rows (0.6 GB), and scratchpads of the programs, rounded
    up. Collectives: dispatch and combine of 8,192 tokens x 7,168 x 2 bytes, each with two buffers,
    are 0.5 GB; with descriptor rings, rounded up.

    `utilization`: usable share of HBM, everything included (vLLM's --gpu-memory-utilization), the
    rest is head-room; ConfigError outside (0, 1]. `least_kv_tokens`: a rank's least pool.
    """

    activation_bytes: int = 3 * GB
    collective_bytes: int = 1 * GB
    utilization: float = 1.0
    least_kv_tokens: int = 1

    def __post_init__(self) -> None:
        if not 0.0 < self.utilization <= 1.0:
            raise ConfigError("gpu_memory_utilization", self.utilization, "above 0, at most 1")
        least = min(self.activation_bytes, self.collective_bytes, self.least_kv_tokens)
        assert least >= 0, self


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreNeeds:
    """A logical core's needs beside the KV pool, by owner, and those of a token of the pool."""

    owners: tuple[tuple[HbmOwner, int], ...]
    kv_token_bytes: int

    @property
    def fixed_bytes(self) -> int:
        """Bytes of everything but the KV pool."""
        return sum(count for _, count in self.owners)


def core_needs(
    memory: ModelMemory,
    cores: CoreMap,
    *,
    tp: int,
    slots: int,
    terms: HbmTerms,
    split: AttentionSplit = AttentionSplit.HEADS,
) -> CoreNeeds:
    """The needs of each logical core of a chip, one of `tp` of its rank, with `slots` experts.

    Order: microcode, activations, collectives, the groups as the model lists them; those of what
    drafts last.
    """
    count = len(cores.cores)
    owners = [
        (HbmOwner(use=HbmUse.MICROCODE), cores.lnc * cores.microcode_bytes_per_physical_core),
        (HbmOwner(use=HbmUse.ACTIVATIONS), -(-terms.activation_bytes // count)),
        (HbmOwner(use=HbmUse.COLLECTIVES), -(-terms.collective_bytes // count)),
    ]
    for group in memory.groups:
        on_core = group_bytes_on_core(
            group, heads=memory.heads, kv_heads=memory.kv_heads, tp=tp, cores=count, slots=slots
        )
        owners.append((weights_owner(group), on_core))
    kv_token_bytes = kv_bytes_on_core(
        copy_bytes=memory.kv_bytes_per_token,
        heads=memory.heads,
        kv_heads=memory.cached_heads,
        tp=tp,
        cores=count,
        split=split,
    )
    if memory.drafter is not None:
        needs = core_needs(
            memory.drafter, cores, tp=tp, slots=memory.drafter_slots, terms=terms, split=split
        )
        of_drafts = [
            (replace(owner, name=f"draft model's {owner.name}"), on_core)
            for owner, on_core in needs.owners
            if owner.use is HbmUse.WEIGHTS
        ]
        owners, kv_token_bytes = owners + of_drafts, kv_token_bytes + needs.kv_token_bytes
    return CoreNeeds(
        owners=tuple((owner, on_core) for owner, on_core in owners if on_core),
        kv_token_bytes=kv_token_bytes,
    )


def weights_owner(group: TensorGroup) -> HbmOwner:
    """The owner of a tensor group's bytes."""
    return HbmOwner(use=HbmUse.WEIGHTS, name=group.name)


def kv_region_bytes(needs: CoreNeeds, cores: CoreMap, terms: HbmTerms) -> int:
    """Bytes of a region left to KV; below 0 when its other needs exceed the engine's share."""
    budget_bytes = int(cores.region_bytes * terms.utilization)
    return budget_bytes - cores.cores_per_region * needs.fixed_bytes


def kv_tokens_that_fit(needs: CoreNeeds, cores: CoreMap, terms: HbmTerms) -> int:
    """Tokens whose KV fits on a chip; below 0 when the rest does not fit either."""
    token_bytes = cores.cores_per_region * needs.kv_token_bytes
    return kv_region_bytes(needs, cores, terms) // token_bytes


def kv_capacity_tokens(
    model: ModelSpec,
    system: SystemSpec,
    partition: Partition,
    *,
    terms: HbmTerms | None = None,
    drafts_by_layer: bool = False,
    drafter: ModelSpec | None = None,
) -> int:
    """Tokens in the KV pool of each rank, experts spread evenly; 0 or less: none fit.

    `hbm_layout`'s result as arithmetic alone, for searches with thousands of partitions: the
    fullest chip's. Key and value heads are repeated where tp exceeds them. What drafts lies beside
    the model, as in `ModelMemory.with_drafts`. Raises NeuronError for an LNC that the chip lacks.
    """
    memory = ModelMemory.with_drafts(
        model, by_layer=drafts_by_layer, drafter=drafter, ep=partition.ep
    )
    cores = core_map(system.chip, partition.lnc)
    terms = terms or HbmTerms()
    slots = -(-model.experts // partition.ep)
    needs = core_needs(
        memory, cores, tp=partition.tp, slots=slots, terms=terms, split=partition.attention_split
    )
    return kv_tokens_that_fit(needs, cores, terms)

"""A model laid out in the HBM of a partition's chips: owners, and the space left to KV.

Before KV, chips differ only by their expert slots. A token's KV is spread over the cores of its
rank's chips as their attention is split; the fullest stack sets the pool.

A refusal's advice is the smallest partition that a model fits. Only a partition's fullest chip
matters, which depends on (LNC, tp, slots); each is computed once.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache

from emulator.errors import HbmExhausted
from emulator.memory.chip_contents import (
    KV_OWNER,
    CoreNeeds,
    HbmTerms,
    core_needs,
    kv_region_bytes,
    kv_tokens_that_fit,
    weights_owner,
)
from emulator.memory.hbm_allocator import HbmAllocator
from emulator.memory.lnc import ANNOUNCED_LNC, CoreMap, core_map
from emulator.memory.model_memory import ModelMemory
from emulator.specs.attention_split import AttentionSplit
from emulator.specs.hbm_usage import HbmOwner, HbmUse, StackUsage
from emulator.specs.partition import Partition, divisors
from emulator.specs.system import SystemSpec

Holdings = tuple[tuple[HbmOwner, int, int], ...]
"""(owner, core, bytes) of one chip."""

_LENDABLE = frozenset(HbmUse) - {HbmUse.MICROCODE}


@dataclass(frozen=True, slots=True, kw_only=True)
class HbmLayout:
    """The chips of a partition with everything allocated but the KV pool (`take_kv`).

    `kv_tokens_per_rank`, [ranks], fits beside the weights; a pool may take less.
    """

    memory: ModelMemory
    partition: Partition
    cores: CoreMap
    kv_token_bytes_on_core: int
    kv_tokens_per_rank: tuple[int, ...]
    allocators: tuple[HbmAllocator, ...]  # [chips]

    def take_kv(self, tokens_per_rank: Sequence[int]) -> None:
        """Set the KV tokens of ranks, [ranks]; raises HbmExhausted with nothing changed."""
        assert len(tokens_per_rank) == self.partition.ranks, tokens_per_rank
        with ExitStack() as undo:
            for chip, allocator in enumerate(self.allocators):
                undo.enter_context(allocator.whole_or_nothing())
                tokens = tokens_per_rank[self.partition.rank_of_chip(chip)]
                on_core = tokens * self.kv_token_bytes_on_core
                allocator.resize_on_cores(KV_OWNER, [on_core] * len(self.cores.cores))

    def hold_expert_copies(self, chip: int, copies: int) -> None:
        """Set the experts on `chip`, over all layers; raises HbmExhausted with nothing changed."""
        allocator, count = self.allocators[chip], len(self.cores.cores)
        with allocator.whole_or_nothing():
            for group in self.memory.expert_groups:
                on_core = copies * -(-group.copy_bytes // count)
                allocator.resize_on_cores(weights_owner(group), [on_core] * count)

    def lend_out(self, chip: int, training: Mapping[HbmOwner, int]) -> Holdings:
        """Replace serving's content of `chip`, except microcode, by a training state, bytes by
        owner.

        Returns the content, for `take_back`. Raises HbmExhausted with nothing changed.
        """
        allocator = self.allocators[chip]
        with allocator.whole_or_nothing():
            held = release(allocator, _LENDABLE)
            for owner, wanted_bytes in training.items():
                on_core = -(-wanted_bytes // len(self.cores.cores))
                allocator.allocate_on_cores(owner, [on_core] * len(self.cores.cores))
        return held

    def check_lending(self, chip: int, training: Mapping[HbmOwner, int]) -> int:
        """Bytes left on `chip` beside a training state; raises HbmExhausted."""
        allocator = self.allocators[chip].copy(device=self.allocators[chip].device)
        copied = replace(self, allocators=(*self.allocators[:chip], allocator))
        copied.lend_out(chip, training)
        return allocator.free_bytes

    def take_back(self, chip: int, held: Holdings) -> None:
        """Restore on `chip` the result of `lend_out`, in place of the training state."""
        release(self.allocators[chip], _LENDABLE)
        for owner, core, held_bytes in held:
            self.allocators[chip].allocate(owner, core=core, wanted_bytes=held_bytes)

    def spare_expert_copies(self, chip: int) -> int:
        """Experts, each of one layer, that still fit on `chip`; 0 for a model without experts."""
        copy_bytes = self.cores.cores_per_region * self.memory.expert_copy_bytes_on_core(self.cores)
        if not copy_bytes:
            return 0
        free = self.allocators[chip].region_free_bytes
        return min(free(core.core) for core in self.cores.cores) // copy_bytes

    def spare_slots(self, chip: int) -> int:
        """Experts of every layer that still fit on `chip`."""
        layers = self.memory.expert_layers
        return self.spare_expert_copies(chip) // layers if layers else 0

    def usage(self) -> tuple[tuple[StackUsage, ...], ...]:
        """Owners and their bytes: [chips][stacks]."""
        return tuple(allocator.usage() for allocator in self.allocators)

    def check(self) -> None:
        """Assert that every chip's bytes are conserved."""
        for allocator in self.allocators:
            allocator.check()


def release(allocator: HbmAllocator, uses: Collection[HbmUse]) -> Holdings:
    """Free all bytes of `uses`; returns their holdings."""
    held: dict[tuple[HbmOwner, int], int] = {}
    for each in (each for stack in allocator.held() for each in stack):
        if each.owner.use in uses:
            key = (each.owner, each.core)
            held[key] = held.get(key, 0) + each.held_bytes
    for owner in {owner for owner, _ in held}:
        allocator.free(owner)
    return tuple((owner, core, count) for (owner, core), count in held.items())


def lay_out(
    memory: ModelMemory,
    system: SystemSpec,
    partition: Partition,
    *,
    slots: int | Sequence[int],
    terms: HbmTerms | None = None,
) -> HbmLayout:
    """Lay `memory` out on the chips of `partition`, numbered in the system from its first one on.

    `slots`: experts of each layer per chip, for all chips or [chips]. `terms`: by default the
    assumed ones. Raises ConfigError for an LNC that the chip lacks; HbmExhausted, with the usage
    table and the smallest fitting partition.
    """
    terms = terms or HbmTerms()
    cores = core_map(system.chip, partition.lnc)
    by_chip = [slots] * partition.chips if isinstance(slots, int) else list(slots)
    assert len(by_chip) == partition.chips, by_chip
    needs = {
        count: core_needs(
            memory,
            cores,
            tp=partition.tp,
            slots=count,
            terms=terms,
            split=partition.attention_split,
        )
        for count in sorted(set(by_chip), reverse=True)
    }
    filled: dict[int, HbmAllocator] = {}
    try:
        for count, on_core in needs.items():  # the fullest chip first
            device = partition.first_chip + by_chip.index(count)
            filled[count] = _filled(on_core, cores, terms, device=device)
    except HbmExhausted as error:
        redundant = max(by_chip) - -(-memory.experts // partition.ep)
        fitting = smallest_partition(
            memory, system, partition, redundant_slots=max(0, redundant), terms=terms
        )
        raise _refusal(error, memory, system, fitting) from None
    tokens = [kv_tokens_that_fit(needs[count], cores, terms) for count in by_chip]  # [chips]
    return HbmLayout(
        memory=memory,
        partition=partition,
        cores=cores,
        kv_token_bytes_on_core=needs[by_chip[0]].kv_token_bytes,
        kv_tokens_per_rank=tuple(
            min(tokens[chip] for chip in partition.chips_of_rank(rank))
            for rank in range(partition.ranks)
        ),
        allocators=tuple(
            filled[count].copy(device=partition.first_chip + chip)
            for chip, count in enumerate(by_chip)
        ),
    )


def _filled(needs: CoreNeeds, cores: CoreMap, terms: HbmTerms, *, device: int) -> HbmAllocator:
    """A chip with everything but KV; raises HbmExhausted, also for too little KV."""
    allocator = HbmAllocator(cores, device=device)
    for owner, on_core in needs.owners:
        allocator.allocate_on_cores(owner, [on_core] * len(cores.cores))
    if kv_tokens_that_fit(needs, cores, terms) < terms.least_kv_tokens:
        left_bytes = max(0, kv_region_bytes(needs, cores, terms))
        raise allocator.exhausted(
            KV_OWNER,
            core=0,
            wanted_bytes=terms.least_kv_tokens * needs.kv_token_bytes,
            free_bytes=left_bytes // cores.cores_per_region,
        )
    return allocator


def _refusal(
    error: HbmExhausted, memory: ModelMemory, system: SystemSpec, fitting: Partition | None
) -> HbmExhausted:
    """The same error for the model as a whole, with a fitting partition."""
    if fitting is None:
        hint = f"no partition of the {system.chips.count} chips of {system.name} would fit"
    else:
        hint = f"smallest that fits: {as_flags(fitting)}"
    return HbmExhausted(
        owner=f"{error.owner} of {memory.name}",
        wanted_bytes=error.wanted_bytes,
        free_bytes=error.free_bytes,
        table=error.table,
        hint=hint,
    )


def smallest_partition(
    memory: ModelMemory,
    system: SystemSpec,
    asked: Partition,
    *,
    redundant_slots: int,
    terms: HbmTerms,
) -> Partition | None:
    """The partition with the fewest chips on which the model fits, or None.

    It has the first chip, the spares and the attention split of `asked`. Among equally many chips:
    the requested LNC first, then other released ones, the smallest tp (most ranks), and the largest
    ep (fewest experts on a chip, most space for KV). `redundant_slots` are added per layer and
    chip.
    """
    others = [lnc for lnc in system.chip.lnc_sizes if lnc not in (asked.lnc, *ANNOUNCED_LNC)]
    core_maps = {lnc: core_map(system.chip, lnc) for lnc in (asked.lnc, *others)}

    @cache
    def fits(lnc: int, tp: int, slots: int) -> bool:
        cores = core_maps[lnc]
        needs = core_needs(
            memory, cores, tp=tp, slots=slots, terms=terms, split=asked.attention_split
        )
        return kv_tokens_that_fit(needs, cores, terms) >= terms.least_kv_tokens

    available = system.chips.count - asked.first_chip - asked.spares
    for chips in range(1, available + 1):
        sizes = divisors(chips)
        tps = [tp for tp in sizes if memory.head_groups % tp == 0]
        eps = [ep for ep in reversed(sizes) if ep <= max(1, memory.experts)]
        for lnc in core_maps:
            for tp in tps:
                for ep in eps:
                    slots = -(-memory.experts // ep) + redundant_slots
                    if fits(lnc, tp, slots):
                        return Partition(
                            chips=chips,
                            tp=tp,
                            ep=ep,
                            lnc=lnc,
                            first_chip=asked.first_chip,
                            spares=asked.spares,
                            attention_split=asked.attention_split,
                        )
    return None


def as_flags(partition: Partition) -> str:
    """The partition as flags: "--chips 12 --tp 1 --ep 12 --lnc 2"."""
    sizes = f"--chips {partition.chips} --tp {partition.tp} --ep {partition.ep}"
    split = partition.attention_split
    others = "" if split is AttentionSplit.HEADS else f" --attention-split {split}"
    return f"{sizes} --lnc {partition.lnc}{others}"

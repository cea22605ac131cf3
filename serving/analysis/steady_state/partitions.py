"""A replica's partitions that a machine and a model allow, each once.

A replica is one engine. Ranks without a common expert group do not wait for each other, so a
candidate has one block (the fewest chips that are whole ranks and whole expert groups), and
replicas fill the machine. Experts lie whole on a chip: under expected loads, dividing them is never
faster.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import lcm

import numpy as np

from emulator.errors import ConfigError
from emulator.fabric.tiers import rack_of, tray_of
from emulator.memory.chip_contents import HbmTerms, kv_capacity_tokens
from emulator.memory.lnc import core_map
from emulator.specs.attention_split import AttentionSplit
from emulator.specs.chip import ChipSpec
from emulator.specs.model import ModelSpec
from emulator.specs.partition import Partition, check_partition
from emulator.specs.system import SystemSpec
from emulator.timing.core_attention import EXCHANGES, CoreAttention
from emulator.units import NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCandidate:
    """`replicas` engines of `partition`, contiguous from the machine's first chip.

    `first_chip` begins the replica on the most racks, then trays: the slowest. `kv_capacity_tokens`
    is of each rank.
    """

    partition: Partition
    replicas: int
    first_chip: int
    kv_capacity_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFilter:
    """Allowed values of a partition; empty allows all.

    `announced_lnc` adds LNCs announced but not released, as naming one does. With `across_units` a
    replica may span units of a cluster, over network cards.
    """

    chips: tuple[int, ...] = ()
    tp: tuple[int, ...] = ()
    ep: tuple[int, ...] = ()
    lnc: tuple[int, ...] = ()
    attention_split: tuple[AttentionSplit, ...] = ()
    announced_lnc: bool = False
    across_units: bool = False

    def __post_init__(self) -> None:
        for name in ("chips", "tp", "ep", "lnc"):
            for value in getattr(self, name):
                if value < 1:
                    raise ConfigError(name, value, "at least 1")


def candidate_partitions(
    system: SystemSpec,
    model: ModelSpec,
    *,
    asked: PartitionFilter | None = None,
    terms: HbmTerms | None = None,
    least_kv_tokens: int = 1,
    context_tokens: int = 0,
) -> tuple[PartitionCandidate, ...]:
    """Every partition with room for the weights and `least_kv_tokens` a rank, smallest first.

    Heads divide over a rank's chips; an expert group has at most as many chips as experts.
    `context_tokens` of a decoding request: see `_splits`. Raises
    ConfigError for an LNC that the chip lacks, values that do not divide, a model that does not
    fit.
    """
    asked = asked or PartitionFilter()
    domains = 1 if asked.across_units else system.units
    domain_chips = system.chips.count // domains
    shapes = list(_shapes(system, model, asked, domain_chips, context_tokens))
    if not shapes:
        raise ConfigError(
            "partition",
            _in_words(asked),
            f"tp that divides the {model.heads} heads of {model.name}, ep up to its "
            f"{max(1, model.experts)} experts, together at most {domain_chips} chips of "
            f"{system.name}",
        )
    fitting = []
    for partition in shapes:
        room = kv_capacity_tokens(model, system, partition, terms=terms)
        if room >= least_kv_tokens:
            fitting.append(
                PartitionCandidate(
                    partition=partition,
                    replicas=domains * (domain_chips // partition.chips),
                    first_chip=_farthest_apart(system, partition.chips, domain_chips),
                    kv_capacity_tokens=room,
                )
            )
    if not fitting:
        raise ConfigError(
            "partition",
            _in_words(asked),
            f"one with room for {model.name} and {least_kv_tokens:,} tokens of KV on each "
            f"rank; none of {len(shapes)} on {system.name} has it",
        )
    return tuple(fitting)


def declared_candidate(
    system: SystemSpec,
    model: ModelSpec,
    partition: Partition,
    *,
    terms: HbmTerms | None = None,
    across_units: bool = False,
    drafts_by_layer: bool = False,
    drafter: ModelSpec | None = None,
) -> PartitionCandidate:
    """A declared partition as `candidate_partitions` has it, whether it has room for KV or not.

    What drafts lies in the HBM beside the model, as in `kv_capacity_tokens`.

    Raises ConfigError for one that does not fit the machine or the model's heads.
    """
    domains = 1 if across_units else system.units
    domain_chips = system.chips.count // domains
    if partition.chips > domain_chips:
        raise ConfigError("chips", partition.chips, f"at most the {domain_chips} chips of a unit")
    check_partition(partition, system, {model.name: (model.heads, model.heads)})
    return PartitionCandidate(
        partition=partition,
        replicas=domains * (domain_chips // partition.chips),
        first_chip=_farthest_apart(system, partition.chips, domain_chips),
        kv_capacity_tokens=kv_capacity_tokens(
            model,
            system,
            partition,
            terms=terms,
            drafts_by_layer=drafts_by_layer,
            drafter=drafter,
        ),
    )


def _in_words(asked: PartitionFilter) -> str:
    named = (
        (name, getattr(asked, name))
        for name in ("chips", "tp", "ep", "lnc", "attention_split")
        if getattr(asked, name)
    )
    return " ".join(f"{name}={','.join(map(str, values))}" for name, values in named) or "any"


def _splits(
    chip: ChipSpec, model: ModelSpec, *, tp: int, lnc: int, context_tokens: int
) -> Sequence[AttentionSplit]:
    """Splits of attention that may be worth it: by heads, and all if one request gains by sequence.

    By heads all cores read a whole latent. Other keys repeat on none where a rank has few chips,
    and that serves more users; ranks of many chips are for few, whose batches hide no exchange.
    """
    cores = chip.logical_cores(lnc)

    def attention(split: AttentionSplit) -> CoreAttention:
        return CoreAttention.of(model, chip, tp=tp, cores=cores, split=split)

    by_heads, by_keys = attention(AttentionSplit.HEADS), attention(AttentionSplit.SEQUENCE)
    spared = (by_heads.cache_share - by_keys.cache_share) * model.kv_bytes_per_token_layer
    spared_ns = spared * context_tokens / chip.memory_bytes_per_s * NS_PER_S
    gains = spared > 0 if model.latent else spared_ns > EXCHANGES * chip.dma_start_ns.value
    return tuple(AttentionSplit) if gains else (AttentionSplit.HEADS,)


def _shapes(
    system: SystemSpec,
    model: ModelSpec,
    asked: PartitionFilter,
    available: int,
    context_tokens: int,
) -> Iterator[Partition]:
    tps = [tp for tp in range(1, available + 1) if model.heads % tp == 0]
    tps = [tp for tp in tps if not asked.tp or tp in asked.tp]
    lncs = _logical_core_sizes(system, asked)
    blocks = {
        (lcm(tp, ep), tp, ep) for tp in tps for ep in _group_sizes(model, tp, asked, available)
    }
    for chips, tp, ep in sorted(blocks):
        if asked.chips and chips not in asked.chips:
            continue
        for lnc in lncs:
            asked_splits = asked.attention_split or _splits(
                system.chip, model, tp=tp, lnc=lnc, context_tokens=context_tokens
            )
            whole = system.chip.logical_cores(lnc) == 1  # nothing to split
            for split in (AttentionSplit.HEADS,) if whole else asked_splits:
                yield Partition(chips=chips, tp=tp, ep=ep, lnc=lnc, attention_split=split)


def _logical_core_sizes(system: SystemSpec, asked: PartitionFilter) -> list[int]:
    """Raises ConfigError for one that the chip lacks."""
    if asked.lnc:
        return [lnc for lnc in asked.lnc if system.chip.logical_cores(lnc)]
    sizes = system.chip.lnc_sizes
    return [lnc for lnc in sizes if asked.announced_lnc or core_map(system.chip, lnc).released]


def _group_sizes(
    model: ModelSpec, tp: int, asked: PartitionFilter, available: int
) -> Iterator[int]:
    """Sizes of an expert group beside ranks of `tp`, whose block fits the available chips.

    A larger group with as many experts on its fullest chip loads that chip more; it is tried only
    where its replicas use more of the machine's chips.
    """
    used_at: dict[int, int] = {}  # by experts of the fullest chip, most chips that were used
    for ep in range(1, min(max(1, model.experts), available) + 1):
        block = lcm(tp, ep)
        if block > available:
            continue
        if asked.ep:
            if ep in asked.ep:
                yield ep
            continue
        slots, used = -(-model.experts // ep), available // block * block
        if asked.chips or used > used_at.get(slots, 0):
            used_at[slots] = max(used, used_at.get(slots, 0))
            yield ep


def _farthest_apart(system: SystemSpec, chips: int, domain_chips: int) -> int:
    """First chip of the replica on the most racks (those of two units differ), then trays."""
    first = np.arange(0, domain_chips - chips + 1, chips)  # [replicas]
    last = first + chips - 1
    racks = rack_of(system, last) - rack_of(system, first)
    trays = tray_of(system, last) - tray_of(system, first)
    return int(first[np.lexsort((-trays, -racks))[0]])

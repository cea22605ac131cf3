"""The smallest partition that a model fits: a refusal's advice.

Only a partition's fullest chip matters, which depends on (LNC, tp, slots); each is computed once.
"""

from functools import cache

from emulator.memory.chip_contents import HbmTerms, core_needs, kv_tokens_that_fit
from emulator.memory.lnc import ANNOUNCED_LNC, core_map
from emulator.memory.model_memory import ModelMemory
from emulator.specs.attention_split import AttentionSplit
from emulator.specs.partition import Partition
from emulator.specs.system import SystemSpec


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
        divisors = [size for size in range(1, chips + 1) if chips % size == 0]
        tps = [tp for tp in divisors if memory.head_groups % tp == 0]
        eps = [ep for ep in reversed(divisors) if ep <= max(1, memory.experts)]
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

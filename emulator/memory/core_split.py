"""Division of a rank's heads and columns over its chips and their logical cores, in bytes.

Every core runs the same program, so all hold as much as the fullest one. Query heads are divided
over a rank's chips, then over their cores, padded; a core also holds their key/value heads,
repeated when there are more cores. Multi-head latent attention has one key/value head, on every
core. A cache divided by batch or sequence lies once on the chip, evenly over its cores (assumed).
"""

from dataclasses import dataclass

import numpy as np

from emulator.specs.attention_split import AttentionSplit
from emulator.specs.tensor_group import TensorGroup, TensorSplit


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

"""A chip's attention as its logical cores divide it.

Projections are divided by heads whatever the split. Where requests that decode are divided by batch
or by sequence, the cores exchange queries before their attention, and outputs after it.
"""

from dataclasses import dataclass
from typing import Final, Self

from emulator.specs.attention_split import AttentionSplit
from emulator.specs.chip import ChipSpec
from emulator.specs.model import ModelSpec
from emulator.timing.dma_time import PAGE_TOKENS, lost_share
from emulator.timing.head_split import heads_per_part

DECODED_TOKENS_MAX: Final = 17
"""New tokens of a request with a context that decodes: one, and the most drafts to verify."""
EXCHANGES: Final = 2  # of cores that divide requests or keys: queries, then outputs
_ROW_BYTES: Final = 2  # assumed: queries, keys and outputs travel in BF16, whatever the dtype
_SUM_BYTES: Final = 4  # the log of a head's sum of exponentials, FP32
_JOIN_FLOPS: Final = 2  # per element of a partial output: times its weight, and added


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreAttention:
    """Attention on the cores of one of a rank's chips.

    Attributes:
        by_batch: cores that requests are divided over; 1 unless by batch.
        by_keys: cores that a request's keys are divided over; 1 unless by sequence.
        group: query heads that share keys on a core.
        cache_share: keys and values that the chip reads, over one copy of all heads; above 1 when
            cores repeat them.
        read_lost, write_lost: bytes' time lost per byte of a page of the cache, and of one new
            token's keys.
        exchanged_bytes: into each core for a token, before and after attention together.
        join_flops: of a token, to add up partial outputs.
    """

    by_batch: int
    by_keys: int
    group: int
    cache_share: float
    read_lost: float
    write_lost: float
    exchanged_bytes: float
    join_flops: float

    @property
    def is_apart(self) -> bool:
        """Whether cores divide requests or keys, not heads."""
        return self.by_batch * self.by_keys > 1

    @classmethod
    def of(
        cls, model: ModelSpec, chip: ChipSpec, *, tp: int, cores: int, split: AttentionSplit
    ) -> Self:
        """On one of `tp` chips with `cores` logical cores each."""
        by_heads = split is AttentionSplit.HEADS or cores == 1
        parts, copies = (tp * cores, cores) if by_heads else (tp, 1)
        heads = heads_per_part(model.heads, parts)
        kv_heads = heads_per_part(model.kv_heads, parts)
        latent = model.latent
        keys = kv_heads * model.head_dim if latent is None else latent.cached_width
        exchanged = joined = 0.0
        if not by_heads:
            # A latent's up-projections stay with their heads.
            output = model.head_dim if latent is None else latent.kv_rank
            query = model.head_dim if latent is None else latent.cached_width
            new = _ROW_BYTES * (2 * keys if latent is None else keys)
            rows = _ROW_BYTES * heads * (query + output)
            if split is AttentionSplit.BATCH:
                exchanged = (rows + new) / cores
            else:  # every core takes all queries, and sends its part of all outputs
                exchanged = rows + _SUM_BYTES * heads + new / cores
                joined = float(_JOIN_FLOPS * cores * heads * output)
        key_bytes = model.kv_bytes_per_element * keys
        return cls(
            by_batch=1 if by_heads or split is AttentionSplit.SEQUENCE else cores,
            by_keys=1 if by_heads or split is AttentionSplit.BATCH else cores,
            group=max(1, heads if latent else heads // kv_heads),
            cache_share=float(copies) if latent else copies * kv_heads / model.kv_heads,
            read_lost=lost_share(chip, PAGE_TOKENS * key_bytes),
            write_lost=lost_share(chip, key_bytes),
            exchanged_bytes=exchanged * (cores - 1) / cores,
            join_flops=joined,
        )

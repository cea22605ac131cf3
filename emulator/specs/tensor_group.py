"""A group of a model's weights that is divided over chips and cores in one way."""

from dataclasses import dataclass
from enum import StrEnum


class TensorSplit(StrEnum):
    """Division of a group over the chips of a rank, and over the logical cores of a chip.

    HEADS: query heads, with their key/value heads, repeated where fewer than parts. COLUMNS:
    intermediate columns of a feed-forward network. EXPERT: whole experts over the expert-parallel
    group, columns of each over a chip's cores. WHOLE: on every chip, divided evenly over its cores.
    """

    HEADS = "heads"
    COLUMNS = "columns"
    EXPERT = "expert"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorGroup:
    """One replica of the group takes `copy_bytes`; of an EXPERT group, one expert in one layer.

    `kv_bytes`: the key and value heads' part of a HEADS group; `layers`: of an EXPERT group, 1 for
    others, whose bytes are of all layers.
    """

    name: str
    split: TensorSplit
    copy_bytes: int
    kv_bytes: int = 0
    layers: int = 1

    def __post_init__(self) -> None:
        assert 0 <= self.kv_bytes <= self.copy_bytes, self
        assert self.layers >= 0, self

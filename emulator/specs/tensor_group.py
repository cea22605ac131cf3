"""A group of a model's weights that is divided over chips and cores in one way."""

from dataclasses import dataclass
from enum import StrEnum


class TensorSplit(StrEnum):
    """Division of a group over the chips of a rank, and over the logical cores of a chip.

    HEADS: query heads, key/value heads with them, which are repeated where fewer than parts.
    COLUMNS: the intermediate columns of a feed-forward network. EXPERT: whole experts over the
    chips of the expert-parallel group, columns of each over a chip's cores. WHOLE: on every chip,
    divided evenly over its cores.
    """

    HEADS = "heads"
    COLUMNS = "columns"
    EXPERT = "expert"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorGroup:
    """One replica of the group takes `copy_bytes`; of an EXPERT group, one expert in one layer.

    `kv_bytes` is the key and value heads' part of a HEADS group. `layers` counts the layers of an
    EXPERT group; the bytes of other groups are of all layers together.
    """

    name: str
    split: TensorSplit
    copy_bytes: int
    kv_bytes: int = 0
    layers: int = 1

    def __post_init__(self) -> None:
        assert 0 <= self.kv_bytes <= self.copy_bytes, self
        assert self.layers >= 0, self

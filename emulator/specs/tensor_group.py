"""A group of a model's weights that is divided over chips and cores in one way."""

from dataclasses import dataclass
from enum import StrEnum


class TensorSplit(StrEnum):
    """How a group is divided over the chips of a rank, and over the logical cores of a chip.

    HEADS: query heads are divided, key/value heads with them; where there are fewer key/value heads
    than parts, they are repeated. COLUMNS: the intermediate columns of a feed-forward network are
    divided. EXPERT: whole experts go to the chips of the expert-parallel group, the columns of each
    are divided over a chip's cores. WHOLE: every chip has all of it, divided evenly over its cores.
    """

    HEADS = "heads"
    COLUMNS = "columns"
    EXPERT = "expert"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorGroup:
    """One replica of the group takes `copy_bytes`; of an EXPERT group, one expert in one layer.

    `kv_bytes` is the part of a HEADS group that belongs to key and value heads. `layers` says in
    how many layers an EXPERT group lies; the bytes of other groups are of all layers together.
    """

    name: str
    split: TensorSplit
    copy_bytes: int
    kv_bytes: int = 0
    layers: int = 1

    def __post_init__(self) -> None:
        assert 0 <= self.kv_bytes <= self.copy_bytes, self
        assert self.layers >= 0, self

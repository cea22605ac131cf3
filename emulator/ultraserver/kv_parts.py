"""Keys and values of a rank, divided among the chips of one that has more chips or fewer."""

from collections.abc import Sequence

import numpy as np

from emulator.specs.kv_blocks import KvBlocks

_HEADS = 2  # the axis in keys and values (`PagedKv.read_blocks`)


def divided_kv(kv: Sequence[KvBlocks], chips: int, *, shared: bool) -> tuple[KvBlocks, ...]:
    """The part of each of `chips`, which divide the heads evenly, in order.

    `shared`: each chip has all of it, a latent. Raises ValueError for heads that do not divide.
    """
    if shared:
        return (kv[0],) * chips
    keys = np.split(np.concatenate([each.keys for each in kv], axis=_HEADS), chips, axis=_HEADS)
    values = np.split(np.concatenate([each.values for each in kv], axis=_HEADS), chips, axis=_HEADS)
    return tuple(KvBlocks(keys=k, values=v) for k, v in zip(keys, values, strict=True))

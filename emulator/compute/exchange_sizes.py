"""The memory in which chips of one host exchange rows: its areas, and what of them a step uses."""

import math
import mmap
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import DTypeLike

from emulator.compute.architecture import Architecture

_PAGE_BYTES: Final = mmap.PAGESIZE

WORD_STRIDE: Final = 32
"""Words that processes wait at are 128 bytes apart: no two share a cache line, nor a pair."""

STEP_NUMBERS: Final = 7
"""Of an attempt: `exchange_segment` names them."""

SUMS: Final = "sums"
OF_TOKENS: Final = ("hidden", "places", "answers", SUMS)
"""Areas whose first tokens alone a step uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeSizes:
    """Chips of the partition; layers with experts; experts of each, `experts_per_token` chosen, and
    slots of a chip; elements of a row; head groups whose sums are exchanged, 0 where no rank has
    several chips; tokens of a step at most.
    """

    chips: int
    layers: int
    experts: int
    experts_per_token: int
    slots: int
    hidden: int
    groups: int
    tokens: int

    @classmethod
    def of(cls, arch: Architecture, *, chips: int, tp: int, slots: int, tokens: int) -> Self:
        """Those of a partition of `tp` chips a rank, with so many slots of a chip in a layer."""
        return cls(
            chips=chips,
            layers=len(arch.expert_layers),
            experts=arch.experts,
            experts_per_token=arch.experts_per_token,
            slots=slots,
            hidden=arch.hidden,
            groups=arch.groups if arch.attending_chips(tp) > 1 else 0,
            tokens=tokens,
        )

    def shapes(self) -> dict[str, tuple[DTypeLike, tuple[int, ...]]]:
        """Each of the segment's `Areas`, in their order."""
        chips, layers, tokens = self.chips, self.layers, self.tokens
        return {
            "words": (np.uint32, ((2 + chips) * WORD_STRIDE,)),
            "waiting": (np.int32, (chips,)),
            "step": (np.int64, (STEP_NUMBERS,)),
            "first_token": (np.int64, (chips + 1,)),
            "place": (np.int32, (layers, chips, self.experts)),
            "hidden": (np.float32, (tokens, self.hidden)),
            "places": (np.int32, (tokens, self.experts_per_token)),
            "answers": (np.float32, (tokens * self.experts_per_token, self.hidden)),
            "sums": (np.float32, (2, tokens * self.groups * self.hidden)),
            "counts": (np.int32, (layers, chips, self.slots)),
            "sent": (np.int32, (layers, chips, chips)),
        }

    def bytes_by_area(self) -> dict[str, int]:
        """Whole pages of each area."""
        return {name: _pages_bytes(shape, dtype) for name, (dtype, shape) in self.shapes().items()}

    def used_bytes(self) -> int:
        """Memory of a step with all `tokens`: without layers with experts, no rows go to any."""
        found = self.bytes_by_area()
        if not self.layers:
            found |= dict.fromkeys(set(OF_TOKENS) - {SUMS}, 0)
        return sum(found.values())


def _pages_bytes(shape: tuple[int, ...], dtype: Any) -> int:
    used: int = math.prod(shape) * np.dtype(dtype).itemsize
    return -(-used // _PAGE_BYTES) * _PAGE_BYTES

"""The law of a collective over the chips of one node."""

from dataclasses import dataclass

import numpy as np

from emulator.arrays import Float64s
from emulator.timing.laws.silicon import Constant, Silicon


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CollectiveShape:
    """Collectives [kernels] of `payload_bytes`, the whole of a chip's result or input.

    `reduces_all`: an all-reduce; else an all-gather, a reduce-scatter or an all-to-all, which all
    move (n - 1) / n of the payload.
    """

    chips: Float64s
    payload_bytes: Float64s
    reduces_all: Float64s

    @property
    def moved_bytes(self) -> Float64s:
        """Through each chip's links and direction, at least."""
        part = (self.chips - 1) / self.chips * self.payload_bytes
        return np.where(self.reduces_all > 0, 2 * part, part)

    def least_ns(self, silicon: Silicon) -> Float64s:
        """At the links' peak rate, reduced at the ends: no kernel is faster."""
        return np.asarray(self.moved_bytes / silicon.link_bytes)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CollectiveLaw:
    """Constants of collectives.

    Attributes:
        start_ns: launch and first flag.
        doubling_ns: for every doubling of the chips.
        flag_share: of the links' rate, when data carry their flags and one step does all (an
            all-reduce then sends its whole payload to every other chip).
        link_share: of the links' rate, when data move in bulk.
        synchronise_ns: of bulk moves, before and after.
    """

    start_ns: Constant
    doubling_ns: Constant
    flag_share: Constant
    link_share: Constant
    synchronise_ns: Constant

    def duration_ns(
        self, shape: CollectiveShape, silicon: Silicon, *, in_loop: bool = False
    ) -> Float64s:
        """[kernels], by the faster of both ways; the same `in_loop`."""
        del in_loop
        once = np.where(
            shape.reduces_all > 0, (shape.chips - 1) * shape.payload_bytes, shape.moved_bytes
        )
        flagged_ns = once / (silicon.link_bytes * self.flag_share)
        bulk_ns = self.synchronise_ns + shape.moved_bytes / (silicon.link_bytes * self.link_share)
        total: Float64s = (
            self.start_ns
            + self.doubling_ns * np.log2(shape.chips)
            + np.minimum(flagged_ns, bulk_ns)
        )
        return total

"""Expert loads of one step: pairs by chip, and tokens from chip to chip.

Counted from the routers' real decisions, or expected under a stated distribution.
"""

from dataclasses import dataclass

from emulator.arrays import Float64s, Int64s

Numbers = Int64s | Float64s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExpertLoads:
    """One step's loads, for the layers with experts.

    Attributes:
        pairs: [layers, chips] (token, expert) pairs that each chip computes.
        distinct: [layers, chips] experts of each chip with at least one pair.
        sent: [layers, chips, chips] tokens from chip to chip, once for any number of experts; free
            to its own.

    Raises ValueError for inconsistent shapes, negative numbers, or more distinct experts than
    pairs.
    """

    pairs: Numbers
    distinct: Numbers
    sent: Numbers

    def __post_init__(self) -> None:
        shape = self.pairs.shape
        if len(shape) != 2 or self.distinct.shape != shape or self.sent.shape != (*shape, shape[1]):
            raise ValueError(
                "loads are pairs and distinct [layers, chips], sent [layers, chips, chips], not "
                f"{self.pairs.shape}, {self.distinct.shape}, {self.sent.shape}"
            )
        for name in ("pairs", "distinct", "sent"):
            array = getattr(self, name)
            if array.size and array.min() < 0:
                raise ValueError(f"{name} is not negative")
        if (self.distinct > self.pairs).any():
            raise ValueError("a chip's pairs hit at most as many experts as they are")

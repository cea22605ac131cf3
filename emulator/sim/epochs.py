"""Emulated time as a function of the wall: piecewise linear, continuous, never falling.

An *epoch* is a stretch of wall time with one dilation. A map holds the newest epochs; earlier
instants are read by the first one's rate. The maker chooses the wall clock.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from emulator.errors import ConfigError
from emulator.units import NS_PER_S

EPOCHS_KEPT: Final = 64
"""Older ones are dropped. Assumed: at 2 wall seconds or more each, the last 2 minutes are exact; a
longer request is stretched by the oldest known rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """From `from_wall_ns`, at `from_ns`, an emulated second takes `dilation` wall ones.

    Raises ConfigError for a dilation that is not a number above 0.
    """

    index: int
    from_ns: int
    from_wall_ns: int
    dilation: float

    def __post_init__(self) -> None:
        if not 0.0 < self.dilation < float("inf"):
            raise ConfigError("dilation", self.dilation, "a number above 0")


@dataclass(frozen=True, slots=True)
class EpochMap:
    """Epochs in order of their indices, at least one; each begins where the last one ends."""

    epochs: tuple[Epoch, ...]

    @classmethod
    def at(cls, *, now_ns: int, wall_ns: int, dilation: float) -> Self:
        """One epoch: it is `now_ns` at `wall_ns`."""
        first = Epoch(index=0, from_ns=now_ns, from_wall_ns=wall_ns, dilation=dilation)
        return cls((first,))

    @property
    def last(self) -> Epoch:
        """The newest."""
        return self.epochs[-1]

    def emulated_ns(self, wall_ns: int) -> int:
        """Emulated time at an instant of the wall."""
        epoch = self.last
        if wall_ns < epoch.from_wall_ns:
            epoch = self._epoch([each.from_wall_ns for each in self.epochs], wall_ns)
        return epoch.from_ns + math.floor((wall_ns - epoch.from_wall_ns) / epoch.dilation)

    def wall_ns(self, emulated_ns: int) -> int:
        """The wall instant of `emulated_ns`."""
        epoch = self.last
        if emulated_ns < epoch.from_ns:
            epoch = self._epoch([each.from_ns for each in self.epochs], emulated_ns)
        return epoch.from_wall_ns + math.ceil((emulated_ns - epoch.from_ns) * epoch.dilation)

    def emulated_s(self, wall_s: float) -> float:
        """`emulated_ns` in seconds."""
        return self.emulated_ns(round(wall_s * 1e9)) / 1e9

    def emulated_duration_s(self, begin_wall_s: float, end_wall_s: float) -> float:
        """Emulated seconds between two instants of the wall, each by its own epoch; at least 0."""
        begin_ns, end_ns = (
            self.emulated_ns(round(s * NS_PER_S)) for s in (begin_wall_s, end_wall_s)
        )
        return max(0, end_ns - begin_ns) / NS_PER_S

    def changed(self, dilation: float, *, wall_ns: int) -> Self:
        """A copy with another dilation from `wall_ns` on; may drop the oldest epoch.

        Raises ConfigError for a dilation that is not a number above 0.
        """
        assert wall_ns >= self.last.from_wall_ns, "epochs begin one after another"
        following = Epoch(
            index=self.last.index + 1,
            from_ns=self.emulated_ns(wall_ns),
            from_wall_ns=wall_ns,
            dilation=dilation,
        )
        return self.followed_by(following)

    def followed_by(self, epoch: Epoch) -> Self:
        """A copy with a later epoch from elsewhere; may drop the oldest."""
        return type(self)((*self.epochs, epoch)[-EPOCHS_KEPT:])

    def _epoch(self, begins: Sequence[int], at: int) -> Epoch:
        return self.epochs[max(0, bisect_right(begins, at) - 1)]

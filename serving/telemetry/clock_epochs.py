"""The epochs of the engine's clock as the API's process has seen them, by Unix time."""

from emulator.sim.epochs import Epoch, EpochMap
from emulator.units import NS_PER_S
from serving.wire.snapshot import Snapshot


class ClockEpochs:
    """Gathers epochs from snapshots, which come with each step; the oldest are forgotten."""

    def __init__(self) -> None:
        self._map: EpochMap | None = None

    @property
    def map(self) -> EpochMap | None:
        """Emulated time since the engine's start, by Unix time; None before the first snapshot."""
        return self._map

    def take(self, snapshot: Snapshot) -> None:
        """Note the epoch of `snapshot`; one of an earlier epoch, or of virtual time, says nothing.

        An epoch that none of the snapshots was of is missing.
        """
        known = self._map
        if not snapshot.dilation or (known and snapshot.clock_epoch <= known.last.index):
            return
        epoch = Epoch(
            index=snapshot.clock_epoch,
            from_ns=round(snapshot.epoch_emulated_s * NS_PER_S),
            from_wall_ns=round(snapshot.epoch_unix_s * NS_PER_S),
            dilation=snapshot.dilation,
        )
        self._map = EpochMap((epoch,)) if known is None else known.followed_by(epoch)


def emulated_duration_s(epochs: EpochMap, begin_unix_s: float, end_unix_s: float) -> float:
    """Emulated seconds between two instants of Unix time, each read by the epoch that it is in."""
    begin_ns, end_ns = (
        epochs.emulated_ns(round(unix_s * NS_PER_S)) for unix_s in (begin_unix_s, end_unix_s)
    )
    return max(0, end_ns - begin_ns) / NS_PER_S

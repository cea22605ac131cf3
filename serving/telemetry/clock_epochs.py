"""Wall durations in emulated seconds."""

from emulator.sim.epochs import EpochMap
from emulator.units import NS_PER_S


def emulated_duration_s(epochs: EpochMap, begin_unix_s: float, end_unix_s: float) -> float:
    """Emulated seconds between two instants of Unix time, each by its own epoch."""
    begin_ns, end_ns = (
        epochs.emulated_ns(round(unix_s * NS_PER_S)) for unix_s in (begin_unix_s, end_unix_s)
    )
    return max(0, end_ns - begin_ns) / NS_PER_S

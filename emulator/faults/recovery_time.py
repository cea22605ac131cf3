"""Emulated time of a recovery: detecting the fault, and reading weights.

The engine starts again when the last chip has read its weights. A tray's chips share its drives and
its host's link. Not counted, because unpublished: waking a standby chip, and loading its compiled
model.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np

from emulator.arrays import Float64s, Int64s
from emulator.errors import ConfigError
from emulator.faults.survival import SurvivalPlan
from emulator.specs.fault import FaultKind
from emulator.specs.figure import Figure
from emulator.specs.partition import Partition
from emulator.specs.seating import VACANT
from emulator.specs.system import SystemSpec
from emulator.units import GB, NS_PER_S

_HANG_TIMEOUT = Figure(
    30 * NS_PER_S,
    "ns",
    "AWS Neuron SDK docs, configuration-guide.rst: NEURON_RT_EXEC_TIMEOUT is 30 s",
)
_LINK_DOWN = Figure(
    1e6,
    "ns",
    "assumed: 1 ms, unpublished; hardware reports a link that is down or an uncorrectable "
    "memory error at once, the runtime and the engine must hear of it",
)
_DRIVES = Figure(
    2 * 14 * GB,
    "bytes/s per tray",
    "assumed: the checkpoint lies on both drives of a tray (SemiAnalysis: 2 x 8 TB NVMe a "
    "compute tray), which read 14 GB/s each, as drives on PCIe 5 x4 (16 GB/s) do; the model of the "
    "drives is not published",
)
_DRIVES_WRITE = Figure(
    2 * 7 * GB,
    "bytes/s per tray",
    "assumed: both drives of a tray take 7 GB/s each, half of what they are taken to read, "
    "as flash drives on PCIe 5 x4 do; the model of the drives is not published",
)
_HOST_LINK = Figure(
    128 * GB,
    "bytes/s per tray and direction",
    "assumed: PCIe 6 x16, as SemiAnalysis gives for two chips of the first generation "
    "(NL32x2); NL72x2's link between host and chips on a tray is not published",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryRates:
    """Figures of recovery time, above 0 or ConfigError; `hang_ns` is the runtime's timeout."""

    hang_ns: Figure = _HANG_TIMEOUT
    notice_ns: Figure = _LINK_DOWN
    drives_bytes_per_s: Figure = _DRIVES
    host_link_bytes_per_s: Figure = _HOST_LINK
    drives_write_bytes_per_s: Figure = _DRIVES_WRITE

    def __post_init__(self) -> None:
        for field in fields(self):
            figure: Figure = getattr(self, field.name)
            if figure.value <= 0:
                raise ConfigError(field.name, figure.value, "> 0")

    @property
    def read_bytes_per_s(self) -> float:
        """A tray's rate from its drives into HBM: the slower of drives and host link."""
        return min(self.drives_bytes_per_s.value, self.host_link_bytes_per_s.value)

    @property
    def write_bytes_per_s(self) -> float:
        """A tray's rate from HBM to its drives, likewise."""
        return min(self.drives_write_bytes_per_s.value, self.host_link_bytes_per_s.value)

    def detection_ns(self, kinds: Iterable[FaultKind]) -> int:
        """Time to detect all of these simultaneous faults; 0 for none, and for a slow chip."""
        notice = {FaultKind.HANG_CHIP: self.hang_ns.value, FaultKind.SLOW_CHIP: 0.0}
        times = [notice.get(kind, self.notice_ns.value) for kind in kinds]
        return math.ceil(max(times, default=0.0))


def reload_ns(
    recovery: SurvivalPlan, partition: Partition, system: SystemSpec, rates: RecoveryRates
) -> int:
    """Time until every chip has read its weights: the slowest tray's, by drives or by host link."""
    chips = recovery.seating.system_chips(partition)  # [positions]
    seated = chips != VACANT
    return slowest_tray_ns(
        system, chips[seated], recovery.reload_bytes[seated], rates.read_bytes_per_s
    )


def slowest_tray_ns(
    system: SystemSpec, chips: Int64s, chip_bytes: Int64s | Float64s, bytes_per_s: float
) -> int:
    """Time of the slowest tray to move chip_bytes [chips] of the system's `chips`."""
    tray_bytes = np.bincount(chips // system.chips_per_tray.count, weights=chip_bytes)
    return math.ceil(float(tray_bytes.max(initial=0.0)) / bytes_per_s * NS_PER_S)


def recovery_ns(
    recovery: SurvivalPlan,
    kinds: Iterable[FaultKind],
    partition: Partition,
    system: SystemSpec,
    rates: RecoveryRates,
    *,
    silence_ns: int = 0,
) -> int:
    """Emulated time from the faults `kinds` until the engine resumes, or knows that it cannot.

    Silent chips are given up after `silence_ns`, while the others are detected.
    """
    reading_ns = reload_ns(recovery, partition, system, rates) if recovery.survivable else 0
    return max(rates.detection_ns(kinds), silence_ns) + reading_ns

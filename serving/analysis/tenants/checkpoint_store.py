"""Where a training job saves its checkpoints, and how fast."""

from dataclasses import replace
from enum import StrEnum

from emulator.faults.recovery_time import RecoveryRates


class CheckpointStore(StrEnum):
    """Where a job saves."""

    DRIVES = "drives"  # of its trays
    NEIGHBOURS = "neighbours"  # host memory of other trays, which a loss of the machine takes too

    @property
    def rates(self) -> RecoveryRates:
        """Of saving and reading: a tray's drives, or its link to the hosts, the same both ways."""
        known = RecoveryRates()
        if self is CheckpointStore.DRIVES:
            return known
        link = known.host_link_bytes_per_s
        return replace(known, drives_bytes_per_s=link, drives_write_bytes_per_s=link)

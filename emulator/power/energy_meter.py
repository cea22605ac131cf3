"""Integrates watts to joules in emulated time, at the chips and at the facility."""

from collections.abc import Callable

from emulator.units import NS_PER_S


class EnergyMeter:
    """Totals since the meter was made.

    Args:
        facility_watts: watts at the facility when the chips together draw the given watts.

    Invariants: totals never fall; each interval is counted once.
    """

    def __init__(self, facility_watts: Callable[[float], float]) -> None:
        self._facility_watts = facility_watts
        self.chip_joules = 0.0
        self.facility_joules = 0.0

    def add(self, *, duration_ns: int, chip_watts: float) -> tuple[float, float]:
        """Count an interval in which all chips together drew `chip_watts`.

        Returns its joules, at the chips and at the facility.
        """
        assert duration_ns >= 0, duration_ns
        assert chip_watts >= 0.0, chip_watts
        seconds = duration_ns / NS_PER_S
        chip_joules = chip_watts * seconds
        facility_joules = self._facility_watts(chip_watts) * seconds
        self.chip_joules += chip_joules
        self.facility_joules += facility_joules
        return chip_joules, facility_joules

    def add_beyond(self, chip_joules: float) -> None:
        """Count what chips drew beyond the watts of intervals that are counted already.

        What the facility adds to each watt of chips comes with it; what it draws anyway does not.
        """
        assert chip_joules >= 0.0, chip_joules
        self.chip_joules += chip_joules
        # Spread over a long time, so that a system whose parts are not linear is near its idle.
        seconds = 1_000.0
        beyond = self._facility_watts(chip_joules / seconds) - self._facility_watts(0.0)
        self.facility_joules += beyond * seconds

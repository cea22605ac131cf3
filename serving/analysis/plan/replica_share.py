"""What one replica of a plan gets of the traffic, and which of it is judged."""

from dataclasses import dataclass

from emulator.arrays import Bools, Int64s
from loadgen.workloads.traffic import Traffic
from serving.simulator.session_pauses import pause_ns


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Share:
    """One replica's requests: a warm-up, the judged ones, and some after them.

    `begin_s` and `end_s` bound the judged arrivals, in the demand's time; `traffic` begins
    `warmup_s` before.
    """

    traffic: Traffic
    judged: Bools  # [requests]
    begin_s: float
    end_s: float
    warmup_s: float
    of_class: Int64s | None = None  # [requests]; None without classes

    def keeps_tokens(self, *, lost: bool) -> bool:
        """Whether its run has to: turns of sessions come without a pause, or chips are `lost`."""
        return self.traffic.sessions is not None and (lost or not pause_ns(self.traffic))

    @property
    def judged_s(self) -> tuple[float, float]:
        """Bounds of the judged arrivals, in the traffic's time."""
        return self.warmup_s, self.warmup_s + self.end_s - self.begin_s

"""The run's steady time: wall time as if the server's clock kept its first dilation.

A server on emulated hardware may change its dilation, and rates and think times are in its time. So
all is planned in *steady* ns, at the speed of its clock: one per wall ns until the first change,
then `steady_per_wall`. A change counts from when it is known.
"""

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field


@dataclass(slots=True)
class Pace:
    """Steady ns as a function of wall ns, both since the run's start: continuous, rising."""

    _wall_ns: list[int] = field(default_factory=lambda: [0])
    _steady_ns: list[int] = field(default_factory=lambda: [0])
    _steady_per_wall: list[float] = field(default_factory=lambda: [1.0])

    def change(self, steady_per_wall: float, *, at_wall_ns: int) -> None:
        """Set the speed from `at_wall_ns` on, which is not before the last change."""
        assert steady_per_wall > 0
        assert at_wall_ns >= self._wall_ns[-1]
        self._steady_ns.append(self.steady_ns(at_wall_ns))
        self._wall_ns.append(at_wall_ns)
        self._steady_per_wall.append(steady_per_wall)

    def steady_ns(self, wall_ns: int) -> int:
        """The steady time at a wall time, rounded down."""
        at = max(0, bisect_right(self._wall_ns, wall_ns) - 1)
        passed_ns = (wall_ns - self._wall_ns[at]) * self._steady_per_wall[at]
        return self._steady_ns[at] + math.floor(passed_ns)

    def wall_ns(self, steady_ns: int) -> int:
        """The first wall time with this steady time, rounded up."""
        at = max(0, bisect_left(self._steady_ns, steady_ns) - 1)
        passed_ns = (steady_ns - self._steady_ns[at]) / self._steady_per_wall[at]
        return self._wall_ns[at] + math.ceil(passed_ns)

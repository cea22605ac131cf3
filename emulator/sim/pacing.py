"""Lays engine steps out in emulated time, and counts lag of the host.

Steps of a busy engine follow each other without a gap: scheduling is hidden behind the step before,
as by an asynchronous scheduler. Only an engine that had run out of work starts at the clock's
present.
"""

from dataclasses import dataclass

from emulator.sim.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class PacedStep:
    """One step in emulated time. `lag_ns` is its lateness."""

    begin_ns: int
    end_ns: int
    lag_ns: int


class StepPacer:
    """Paces the steps of one engine by `clock`.

    Invariants: steps do not overlap; the sum of lags is `lag_ns_total`.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_end_ns = clock.now_ns()
        self.lag_ns_total = 0
        self.busy_ns_total = 0
        self.lagging_steps = 0

    def begin_ns(self, *, continues: bool) -> int:
        """Begin of the next step; `continues`: work was left at the last one's end."""
        return self._last_end_ns if continues else max(self._last_end_ns, self._clock.now_ns())

    def finish(self, begin_ns: int, duration_ns: int) -> PacedStep:
        """Hold a step from `begin_ns` for `duration_ns`; a late end delays the next step."""
        due_ns = begin_ns + duration_ns
        lag_ns = self._clock.wait_until_ns(due_ns)
        self._last_end_ns = due_ns + lag_ns
        self.lag_ns_total += lag_ns
        self.lagging_steps += lag_ns > 0
        self.busy_ns_total += duration_ns
        return PacedStep(begin_ns=begin_ns, end_ns=self._last_end_ns, lag_ns=lag_ns)

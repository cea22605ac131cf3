"""What a policy observes of its groups, and when its decision last changed: a controller's memory.

Time is passed in; a server's controller and a simulation's have one each.
"""

from collections.abc import Sequence
from typing import Final

from serving.policy.day_night.day_clock import DAY_S, DayClock
from serving.policy.day_night.demand_meter import DemandMeter
from serving.policy.day_night.handover import HandoverPhase
from serving.policy.day_night.handover_settings import HandoverSettings
from serving.policy.day_night.observation import Observation
from serving.policy.day_night.policy import Decision

_UNWEIGHED_PER_S: Final = 1e12
"""For an unknown rate: above any load, so that hours alone decide."""


class DecisionMemory:
    """Of one machine; its demand is in `meter`, which others read for it."""

    def __init__(self, settings: HandoverSettings, clock: DayClock, meter: DemandMeter) -> None:
        self._settings = settings
        self._clock = clock
        self._meter = meter
        self._decided: tuple[int, float] | None = None  # groups that are to serve, since when

    @property
    def changed_s(self) -> float | None:
        """Emulated time at which the number of serving groups last changed; None before a look."""
        return None if self._decided is None else self._clock.emulated_s(self._decided[1])

    def observed(
        self,
        emulated_s: float,
        *,
        phases: Sequence[HandoverPhase],
        queue: int,
        ttft_attainment: float | None,
        tpot_attainment: float | None,
        restore_s: float,
        job_chips_min: int,
    ) -> Observation:
        """The policy's input now; `phases` are the groups', `restore_s` emulated.

        Of a `queue` those count that come too late at the present rate: an engine between two steps
        always has some that wait.
        """
        settings, clock = self._settings, self._clock
        in_time = self._meter.load_per_s * (settings.slo.ttft_s or 0.0)
        day_s = clock.day_s(emulated_s)
        if self._decided is None:
            there = (HandoverPhase.SERVING, HandoverPhase.RESTORING)
            self._decided = (sum(phase in there for phase in phases), day_s - DAY_S)
        return Observation(
            now_s=day_s,
            history=self._meter.history,
            load_per_s=self._meter.load_per_s,
            groups=settings.groups,
            serving_groups=self._decided[0],
            since_change_s=max(day_s - self._decided[1], 0.0),
            capacity_per_group_per_s=settings.group_requests_per_s or _UNWEIGHED_PER_S,
            groups_min=settings.groups - settings.lend_groups,
            queue=max(0, queue - int(in_time)),
            ttft_attainment=ttft_attainment,
            tpot_attainment=tpot_attainment,
            drain_s=settings.grace_s * clock.day_s_per_emulated_s,
            restore_s=restore_s * clock.day_s_per_emulated_s,
            job_groups_min=-(-job_chips_min // settings.group_chips),
        )

    def note(self, decision: Decision, observed: Observation) -> None:
        """Remember what was decided on `observed`."""
        if self._decided is None or self._decided[0] != decision.serving_groups:
            self._decided = (decision.serving_groups, observed.now_s)

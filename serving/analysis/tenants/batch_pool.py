"""Groups of batch inference: each loads the weights and works by itself, until it is taken back.

Requests are counted as a flow, those that are due first before others. A group that goes loses what
its running requests had (assumed: half of them, in the mean).
"""

from typing import Final

from serving.analysis.tenants.allocation import DueWork
from serving.analysis.tenants.tenant import BatchInferenceTenant
from serving.analysis.tenants.tenant_pool import NEVER, TenantPool
from serving.policy.day_night.handover import HandoverPhase

_DONE_SHARE: Final = 0.5
"""Of a running request, when it is interrupted."""
_ROUNDING: Final = 1e-6  # of a request


class BatchPool(TenantPool):
    """Mutable; times ascend."""

    def __init__(
        self, tenant: BatchInferenceTenant, *, groups: int, group_idle_watts: float
    ) -> None:
        super().__init__(groups=groups, group_idle_watts=group_idle_watts, groups_least=groups + 1)
        self.tenant = tenant
        self.left = [each.requests for each in tenant.submissions]  # whether they arrived or not
        self.in_time = [0.0] * len(tenant.submissions)
        self.done_s: list[float | None] = [None] * len(tenant.submissions)
        self._loaded_s: dict[int, float] = {}  # by group

    def arrived(self, now_s: float) -> list[int]:
        """Submissions that have requests left, by deadline."""
        of = self.tenant.submissions
        return [n for n, left in enumerate(self.left) if left and of[n].at_s <= now_s]

    def waiting(self, now_s: float) -> float:
        """Requests that have arrived and are not served."""
        return sum(self.left[number] for number in self.arrived(now_s))

    def due(self, now_s: float) -> tuple[DueWork, ...]:
        """What is left of submissions that are not late yet."""
        of = self.tenant.submissions
        return tuple(
            DueWork(in_s=of[number].due_s - now_s, work=self.left[number])
            for number in self.arrived(now_s)
            if of[number].due_s > now_s
        )

    @property
    def is_done(self) -> bool:
        """Whether no request is left, of those to come neither."""
        return not any(self.left)

    def enter(self, group: int, phase: HandoverPhase, *, now_s: float) -> None:
        """It loads the weights as soon as its chips are here."""
        super().enter(group, phase, now_s=now_s)
        if phase is HandoverPhase.TRAINING:
            self.arrives(group, now_s=now_s)

    def arrives(self, group: int, *, now_s: float) -> None:
        """A group that was on its way is in the tenant's hands."""
        self._loaded_s[group] = now_s + self.tenant.load_s

    def leave(self, group: int, *, now_s: float) -> None:
        """What its running requests had is lost."""
        super().leave(group, now_s=now_s)
        if self._loaded_s.pop(group, NEVER) <= now_s:
            self._interrupt(now_s)

    def _interrupt(self, now_s: float) -> None:
        arrived = self.arrived(now_s)
        if not arrived:  # with an empty queue nothing runs
            return
        number = arrived[0]
        served = self.tenant.submissions[number].requests - self.left[number]
        undone = min(_DONE_SHARE * self.tenant.in_flight, served)
        self.left[number] += undone
        self.in_time[number] = max(0.0, self.in_time[number] - undone)
        self.totals.tokens_undone += undone * self.tenant.output_tokens

    def _working(self, now_s: float) -> list[int]:
        return [group for group, at_s in self._loaded_s.items() if at_s <= now_s]

    def _rate(self, now_s: float) -> float:
        """Requests per second, of the groups that may work."""
        return float(self.tenant.work_per_s[len(self._working(now_s))])

    def next_s(self, now_s: float) -> float:
        """When a group has its weights, requests arrive, are due, or are done."""
        times = [*self._loaded_s.values()]
        for each in self.tenant.submissions:
            times += (each.at_s, each.due_s)
        rate, arrived = self._rate(now_s), self.arrived(now_s)
        if rate and arrived:
            times.append(now_s + self.left[arrived[0]] / rate)
        return min((each for each in times if each > now_s), default=NEVER)

    def work(self, seconds: float, *, now_s: float) -> None:
        """Serve what is due first; groups without weights load them."""
        tenant = self.tenant
        ready, loading = len(self._working(now_s)), len(self.there) - len(self._working(now_s))
        watts = tenant.load_joules / tenant.load_s if tenant.load_s else 0.0
        self.count_pause(loading, seconds, loading * watts)
        rate, arrived = self._rate(now_s), self.arrived(now_s)
        if not (rate and arrived):
            self.count_idle(ready, seconds)
            return
        number = arrived[0]
        served = min(rate * seconds, self.left[number])
        if self.left[number] - served <= _ROUNDING:
            served = self.left[number]
        self.left[number] -= served
        end_s = now_s + seconds
        if end_s <= tenant.submissions[number].due_s:
            self.in_time[number] += served
        if not self.left[number]:
            self.done_s[number] = end_s
        self.times.training_s += ready * seconds
        self.times.tokens += served * tenant.output_tokens
        self.times.joules += float(tenant.watts[ready]) * seconds

"""When a plan's traffic outgrows its machines: its own setting at the grown rates.

Independent replicas share the traffic, so that n of them take n times what one takes: the highest
rate of the plan's margins, over its replicas. Fresh seeds then look for the fewest replicas that
surely keep the target in the last month, by halves down to what the plan's own size takes, and
check the sizes at which machines are added.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from typing import Final

from emulator.errors import ConfigError
from serving.analysis.plan.growth import Growth
from serving.analysis.plan.plan import Plan
from serving.analysis.plan.plan_check import check_sizes
from serving.analysis.plan.plan_margins import FINE
from serving.analysis.plan.plan_race import LAST_TIMES, Progress, Race
from serving.analysis.plan.size_check import Check
from serving.analysis.plan.timed_run import OutOfTime
from serving.simulator import SimulationWorkers

_ROUNDING: Final = 1e-9
STAND_FOR_ALL: Final = 8
"""Replicas among which one's part is drawn, for any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthSize:
    """The plan's setting at the rate of one month; machines without a spare.

    `check`: of this size, simulated; None where it follows from the rate of a replica.
    """

    month: int
    requests_per_s: float
    replicas: int
    machines: int
    check: Check | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineOrder:
    """Machines `first` to `last`, the first of which is needed at `needed_month` and has to be
    ordered by `order_month`, both from now on; below 0 is late.
    """

    first: int
    last: int
    needed_month: float
    order_month: float

    @property
    def is_late(self) -> bool:
        """Whether it should have been ordered before now."""
        return self.order_month < 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanGrowth:
    """Sizes of months 0 (now) to the last one asked for, and the orders that they need.

    `replica_requests_per_s`: the rate that one replica takes. `in_service_until` and
    `machines_until` are months from now, also beyond those asked for: until then the plan's
    replicas, and as many as its machines hold, keep the target. `why_not`: sizes at which machines
    are added were not simulated; empty where all were.
    """

    growth: Growth
    replica_requests_per_s: float
    in_service_until: float
    machines_until: float
    months: tuple[MonthSize, ...]
    orders: tuple[MachineOrder, ...]
    why_not: str

    def until(self, replicas: int) -> float:
        """Months from now until so many are too few."""
        now_per_s = self.months[0].requests_per_s
        return self.growth.months_until(replicas * self.replica_requests_per_s / now_per_s)


def replica_rate_per_s(plan: Plan) -> float:
    """Requests per second that one replica takes within the target: of the plan's margins, at least
    those of its own size.
    """
    most = 0.0 if plan.margins is None else plan.margins.most_requests_per_s
    return max(most, plan.question.demand.peak_rate_per_s) / plan.fleet.replicas


def replicas_for(requests_per_s: float, replica_requests_per_s: float) -> int:
    """The fewest that share so much traffic."""
    return ceil(requests_per_s / replica_requests_per_s - _ROUNDING)


def growth_of(
    plan: Plan,
    growth: Growth,
    *,
    workers: SimulationWorkers,
    progress: Progress = lambda _: None,
    ends_s: float = float("inf"),
) -> PlanGrowth:
    """Size the plan's setting for each month; simulate until `ends_s` of `time.monotonic`."""
    sizes = _GrownSizes(plan, growth, workers, progress, ends_s)
    why_not = ""
    for simulate in (sizes.bisect_last, sizes.check_additions):
        try:
            simulate()
        except OutOfTime:
            why_not = why_not or "the time was over (--budget)"
        except ConfigError as error:  # a trace that grows beyond what is simulated
            why_not = why_not or str(error)
    months = sizes.months()
    held = plan.machines * plan.replicas_per_machine
    return PlanGrowth(
        growth=growth,
        replica_requests_per_s=sizes.rate_per_s,
        in_service_until=sizes.until(plan.fleet.replicas),
        machines_until=sizes.until(held),
        months=tuple(months),
        orders=tuple(
            machine_orders(
                [each.machines for each in months],
                lambda held: sizes.until(held * plan.replicas_per_machine),
                lead_months=growth.lead_months,
            )
        ),
        why_not=why_not,
    )


class _GrownSizes:
    """The plan's setting at the rates of the months, by what one replica takes, and its checks.

    What the plan's own check keeps is the least that a replica takes.
    """

    def __init__(
        self,
        plan: Plan,
        growth: Growth,
        workers: SimulationWorkers,
        progress: Progress,
        ends_s: float,
    ) -> None:
        self.plan = plan
        self.growth = growth
        self.rate_per_s = replica_rate_per_s(plan)
        self._least_per_s = plan.question.demand.peak_rate_per_s / plan.fleet.replicas
        self._workers = workers
        self._progress = progress
        self._ends_s = ends_s
        self._checks: dict[tuple[int, int], Check] = {}  # of a month and its replicas

    def until(self, replicas: int) -> float:
        """Months until so many are too few."""
        peak_per_s = self.plan.question.demand.peak_rate_per_s
        return self.growth.months_until(replicas * self.rate_per_s / peak_per_s)

    def months(self) -> list[MonthSize]:
        """Of now to the last one, by what one replica takes."""
        return [self._size(month) for month in range(self.growth.months + 1)]

    def _size(self, month: int) -> MonthSize:
        peak_per_s = self.plan.question.demand.peak_rate_per_s
        requests_per_s = peak_per_s * self.growth.factor(month)
        replicas = replicas_for(requests_per_s, self.rate_per_s)
        replicas = max(self.plan.fleet.replicas, replicas)
        return MonthSize(
            month=month,
            requests_per_s=requests_per_s,
            replicas=replicas,
            machines=self.plan.machines_for(replicas),
            check=self._checks.get((month, replicas)),
        )

    def bisect_last(self) -> None:
        """Find the fewest replicas that surely keep the target in the last month."""
        size = self._size(self.growth.months)
        low = size.replicas
        if self._is_sure(size.month, low):
            return
        high = replicas_for(size.requests_per_s, self._least_per_s)
        self.rate_per_s = size.requests_per_s / high
        while high > FINE * low and high - low > 1:
            middle = round((low * high) ** 0.5)
            if self._is_sure(size.month, middle):
                high = middle
                self.rate_per_s = size.requests_per_s / high
            else:
                low = middle

    def check_additions(self) -> None:
        """Simulate the sizes at which machines are added; where one fails, a replica takes less."""
        while True:
            months = self.months()
            added = [now for before, now in pairwise(months) if now.machines > before.machines]
            failed = next(
                (each for each in added if not self._is_sure(each.month, each.replicas)), None
            )
            if failed is None or self.rate_per_s <= self._least_per_s:
                break
            self.rate_per_s = max(self.rate_per_s / FINE, self._least_per_s)

    def _is_sure(self, month: int, replicas: int) -> bool:
        """Simulate a size once; raises OutOfTime, and ConfigError for a trace that is too long."""
        key = (month, replicas)
        if key not in self._checks:
            self._checks[key] = self._simulated(month, replicas)
        return self._checks[key].surely_meets

    def _simulated(self, month: int, replicas: int) -> Check:
        if time.monotonic() > self._ends_s:
            raise OutOfTime
        question, factor = self.plan.question, self.growth.factor(month)
        # A replica's part of more traffic among more replicas: a large trace need not be made.
        few = min(replicas, STAND_FOR_ALL)
        part = factor * few / replicas
        grown = replace(question, demand=question.demand.multiplied(part, seed=question.check.seed))
        race = Race(grown, self._workers, self._progress, ends_s=self._ends_s)
        race.say(f"month {month}: {replicas:,} replicas for {factor:.3g} times the requests")
        setting = replace(self.plan.choice.setting, replicas=few)
        task = race.task(setting, judged=LAST_TIMES * question.check.judged, is_fresh=True)
        return replace(check_sizes([task], self._workers)[0], replicas=replicas)


def machine_orders(
    machines: Sequence[int], until: Callable[[int], float], *, lead_months: float
) -> Iterator[MachineOrder]:
    """Orders of what is added to the `machines` of each month, which never fall; so many do
    `until` a month.
    """
    for before, now in pairwise(machines):
        if now > before:
            needed = until(before)
            yield MachineOrder(
                first=before + 1,
                last=now,
                needed_month=needed,
                order_month=needed - lead_months,
            )

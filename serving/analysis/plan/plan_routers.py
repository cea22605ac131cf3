"""A plan's replicas together behind the routers that a server has.

A plan judges a replica by a share of the traffic that is dealt out at random, sessions and
conversations whole. A router sees what each replica holds: it may do better, or tear sessions
apart. So the answer's replicas are simulated together, each router on the same requests.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from serving.analysis.plan.plan_check import SizeTask, check_sizes
from serving.analysis.plan.plan_question import PlanQuestion
from serving.analysis.plan.plan_race import LAST_TIMES, Race, quality
from serving.analysis.plan.plan_setting import Setting
from serving.analysis.plan.size_check import Check
from serving.policy.routing import ROUTERS
from serving.simulator import SimulationWorkers

MORE: Final = 1.5
"""Times the replicas, up to which it is sought how many a router needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterRun:
    """What all replicas together show behind a router."""

    router: str
    check: Check


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterRace:
    """The runs of the plan's replicas, the best first.

    `enough`: the fewest replicas that surely keep the target behind the best router, by one such
    run, of the plan's own, fewer and more; None where none of those tried did. `of_prompts`: they
    are a unit's engines for prompts.
    """

    runs: tuple[RouterRun, ...]
    enough: Check | None
    of_prompts: bool = False

    @property
    def best(self) -> RouterRun:
        """The router to serve with."""
        return self.runs[0]


def is_routed(question: PlanQuestion, setting: Setting) -> bool:
    """Whether a router has a choice that matters: of several replicas, or of a unit's engines for
    prompts that share something. Without that these differ by little.
    """
    prefill = setting.option.point.prefill
    if prefill is None:
        return setting.replicas > 1
    return setting.replicas == 1 and prefill.replicas > 1 and question.demand.prefixes is not None


def routers_of(
    question: PlanQuestion, setting: Setting, race: Race, workers: SimulationWorkers
) -> RouterRace | None:
    """Simulate the answer behind each router; None where none has a choice that matters.

    Raises OutOfTime at the end of the race.
    """
    if not is_routed(question, setting):
        return None
    tasks = [_task(question, setting, race, router) for router in ROUTERS]
    checks = check_sizes(tasks, workers)
    runs = [RouterRun(router=name, check=of) for name, of in zip(ROUTERS, checks, strict=True)]
    runs.sort(key=lambda run: quality(run.check), reverse=True)
    best, of_prompts = runs[0], setting.option.is_pooled
    is_enough = best.check.surely_meets
    enough = best.check if is_enough else None
    if not of_prompts:
        for other in _other_sizes(setting, race, fewer=is_enough):
            (check,) = check_sizes([_task(question, other, race, best.router)], workers)
            if check.surely_meets:
                enough = check
            if check.surely_meets != is_enough:
                break
    return RouterRace(runs=tuple(runs), enough=enough, of_prompts=of_prompts)


def _other_sizes(setting: Setting, race: Race, *, fewer: bool) -> Iterator[Setting]:
    """Fewer replicas, one by one, or more."""
    count = setting.replicas
    least = ceil(race.rate_per_s / setting.option.most_requests_per_s)
    counts: Sequence[int] = range(count + 1, ceil(MORE * count) + 1)
    if fewer:
        counts = range(count - 1, max(1, least) - 1, -1)
    return (replace(setting, replicas=each) for each in counts)


def _task(question: PlanQuestion, setting: Setting, race: Race, router: str) -> SizeTask:
    """All replicas together, by one run of as many requests as judge a replica's last heat."""
    task = race.task(setting, judged=LAST_TIMES * question.check.judged, early_end=False)
    return replace(task, router=router)

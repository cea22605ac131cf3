"""A plan's replicas together behind the routers that a server has.

A plan judges a replica by a share of the traffic that is dealt out at random, sessions and
conversations whole. A router sees what each replica holds: it may do better, or tear sessions
apart. So the answer's replicas are simulated together, each router on the same requests.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from serving.analysis.plan.plan_check import SizeTask, check_sizes
from serving.analysis.plan.plan_question import PlanQuestion
from serving.analysis.plan.plan_race import LAST_TIMES, Race
from serving.analysis.plan.plan_search import first_that_holds
from serving.analysis.plan.plan_setting import Setting
from serving.analysis.plan.plan_task import size_task
from serving.analysis.plan.size_check import Check, TermCheck, quality
from serving.analysis.plan.timed_run import OutOfTime
from serving.policy.routing import DEFAULT_ROUTER, ROUTERS
from serving.simulator import SimulationWorkers

MORE: Final = 1.5
"""Times the replicas, up to which it is sought how many a router needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterRun:
    """What all replicas together show behind a router."""

    router: str
    check: Check

    def differs_from(self, other: "RouterRun") -> bool:
        """Whether any limit is kept by clearly more or fewer requests, or what is reached lies
        beyond what one more run would show.
        """
        terms = zip(self.check.terms, other.check.terms, strict=True)
        return any(_shares_differ(*each) or _times_differ(*each) for each in terms)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterRace:
    """The runs of the plan's replicas, the one to serve with first, then the best first.

    `enough`: the fewest replicas that seem to keep the target behind that router, by one such run
    of each size tried: the plan's own and, by halves, fewer or more; None where none of those tried
    did, and where it is not `is_whole`: the time was over before. `of_prompts`: they are a unit's
    engines for prompts.
    """

    runs: tuple[RouterRun, ...]
    enough: Check | None
    of_prompts: bool = False
    is_whole: bool = True

    @property
    def chosen(self) -> RouterRun:
        """Of the router to serve with: the best, or a server's default where that is not worse by
        more than the runs' own intervals.
        """
        return self.runs[0]

    @property
    def makes_difference(self) -> bool:
        """Whether any router does."""
        return any(each.differs_from(self.chosen) for each in self.runs[1:])

    @property
    def is_best(self) -> bool:
        """Whether no other run was any better than that of the router to serve with."""
        return all(quality(self.chosen.check) >= quality(each.check) for each in self.runs)


def is_routed(question: PlanQuestion, setting: Setting) -> bool:
    """Whether routers are tried: of several replicas, or of a unit's engines for prompts that share
    something. Pools whose prompts share nothing were not measured, and are not tried.
    """
    prefill = setting.option.point.prefill
    if prefill is None:
        return setting.replicas > 1
    return setting.replicas == 1 and prefill.replicas > 1 and question.demand.prefixes is not None


def routers_of(
    question: PlanQuestion, setting: Setting, race: Race, workers: SimulationWorkers
) -> RouterRace | None:
    """Simulate the answer behind each router; None where none is tried.

    Raises OutOfTime where the race ends before each router is known.
    """
    if not is_routed(question, setting):
        return None
    race.say(f"behind {len(ROUTERS)} routers")
    begun_s = time.monotonic()
    tasks = [router_task(question, setting, race, router) for router in ROUTERS]
    checks = check_sizes(tasks, workers)
    least_s = (time.monotonic() - begun_s) / len(ROUTERS)  # of one run, however many at once
    runs = _chosen_first(
        [RouterRun(router=name, check=of) for name, of in zip(ROUTERS, checks, strict=True)]
    )
    if setting.option.is_pooled:
        return RouterRace(runs=runs, enough=None, of_prompts=True)
    try:
        enough = _enough(question, setting, race, runs[0], workers, run_least_s=least_s)
    except OutOfTime:
        return RouterRace(runs=runs, enough=None, is_whole=False)
    return RouterRace(runs=runs, enough=enough)


def _chosen_first(runs: Sequence[RouterRun]) -> tuple[RouterRun, ...]:
    ranked = sorted(runs, key=lambda run: quality(run.check), reverse=True)
    (default,) = (run for run in ranked if run.router == DEFAULT_ROUTER)
    chosen = ranked[0] if ranked[0].differs_from(default) else default
    return (chosen, *(run for run in ranked if run is not chosen))


def _enough(
    question: PlanQuestion,
    setting: Setting,
    race: Race,
    own: RouterRun,
    workers: SimulationWorkers,
    *,
    run_least_s: float,
) -> Check | None:
    """Of the fewest replicas that seem to be, by halves; raises OutOfTime."""
    count, is_enough = setting.replicas, own.check.surely_meets
    least = max(1, ceil(race.rate_per_s / setting.option.most_requests_per_s))
    counts = range(least, count) if is_enough else range(count + 1, ceil(MORE * count) + 1)
    race.say(f"how many replicas are enough behind {own.router}")
    checks: dict[int, Check] = {}

    def holds(place: int) -> bool:
        # Each run has about as many requests as those of the routers had.
        if time.monotonic() + run_least_s > race.ends_s:
            raise OutOfTime
        other = replace(setting, replicas=counts[place])
        task = router_task(question, other, race, own.router)
        (checks[place],) = check_sizes([task], workers)
        return checks[place].surely_meets

    first = first_that_holds(-1, len(counts), holds)
    if first < len(counts):
        return checks[first]
    return own.check if is_enough else None


def router_task(question: PlanQuestion, setting: Setting, race: Race, router: str) -> SizeTask:
    """All replicas together, by one run of as many requests as judge a replica's last heat, or as
    their whole rate asks for if that is more.
    """
    task = size_task(
        question,
        setting,
        judged=LAST_TIMES * question.check.judged,
        early_end=False,
        is_whole_rate=True,
        ends_s=race.ends_s,
    )
    return replace(task, router=router)


def _shares_differ(one: TermCheck, other: TermCheck) -> bool:
    """The interval of neither reaches that of the other."""
    ordered = sorted((one, other), key=lambda each: each.share)
    low, high = ordered[0].share_high, ordered[1].share_low
    return one.share != other.share if low is None or high is None else low < high


def _times_differ(one: TermCheck, other: TermCheck) -> bool:
    """Neither is within what one more run of the other would show."""
    if one.reached_s is None or other.reached_s is None:
        return one.reached_s is not other.reached_s
    if one.again is None or other.again is None:
        return False
    return not (
        one.again.least_s <= other.reached_s <= one.again.most_s
        or other.again.least_s <= one.reached_s <= other.again.most_s
    )

"""What comes after a plan: growth of its traffic, and cold starts of its replicas."""

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from reporting.document import Section
from serving.analysis.plan.growth import Growth
from serving.analysis.plan.plan import Plan
from serving.analysis.plan.plan_cold_start import ColdStartTerms, PlanColdStart, cold_starts_of
from serving.analysis.plan.plan_cold_start_report import cold_start_data, cold_start_section
from serving.analysis.plan.plan_growth import PlanGrowth, growth_of
from serving.analysis.plan.plan_growth_report import growth_data, growth_sections, growth_words
from serving.analysis.plan.plan_question import PlanQuestion
from serving.analysis.plan.plan_race import Progress
from serving.simulator import SimulationWorkers

if TYPE_CHECKING:
    from reporting.charts import TitledChart

PLAN_SHARE: Final = 0.75
"""Of the budget, for the plan itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlookTerms:
    """What is asked; None is not."""

    growth: Growth | None = None
    cold_start: ColdStartTerms | None = None

    def leaves_time(self, question: PlanQuestion) -> PlanQuestion:
        """The plan's question in its part of the budget."""
        if self.growth is None and self.cold_start is None:
            return question
        search = question.search
        return replace(question, search=replace(search, budget_s=PLAN_SHARE * search.budget_s))


NOTHING_ASKED: Final = OutlookTerms()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOutlook:
    """The answers; None where it was not asked for, or interrupted."""

    growth: PlanGrowth | None = None
    cold_start: PlanColdStart | None = None


NO_OUTLOOK: Final = PlanOutlook()


def outlook_of(
    plan: Plan,
    terms: OutlookTerms,
    *,
    workers: SimulationWorkers,
    progress: Progress,
    ends_s: float,
) -> PlanOutlook:
    """Find what is asked until `ends_s` of `time.monotonic`: each of both has half of what is left.

    An interrupt leaves out what comes after it.
    """
    found = NO_OUTLOOK
    now_s = time.monotonic()
    try:
        if terms.cold_start is not None:
            parts = 1 if terms.growth is None else 2
            cold_starts = cold_starts_of(
                plan,
                terms.cold_start,
                workers=workers,
                progress=progress,
                ends_s=now_s + (ends_s - now_s) / parts,
            )
            found = replace(found, cold_start=cold_starts)
        if terms.growth is not None:
            grown = growth_of(plan, terms.growth, workers=workers, progress=progress, ends_s=ends_s)
            found = replace(found, growth=grown)
    except KeyboardInterrupt:  # the plan itself is known
        workers.stop()
    return found


def outlook_sections(plan: Plan, found: PlanOutlook) -> tuple[Section, ...]:
    """For the plan's report."""
    sections: tuple[Section, ...] = ()
    if found.growth is not None:
        sections += growth_sections(plan, found.growth)
    if found.cold_start is not None:
        sections += (cold_start_section(plan, found.cold_start),)
    return sections


def outlook_charts(plan: Plan, found: PlanOutlook) -> "tuple[TitledChart, ...]":
    """For the plan's page."""
    from serving.analysis.plan.plan_growth_chart import growth_chart

    if (grown := found.growth) is None:
        return ()
    machines = [plan.machines, *(each.machines for each in grown.months[1:])]
    return (growth_chart(growth_words(grown.growth), machines, grown.orders),)


def outlook_data(plan: Plan, found: PlanOutlook) -> dict[str, Any]:
    """For JSON."""
    return {
        "growth": found.growth and growth_data(plan, found.growth),
        "cold_start": found.cold_start and cold_start_data(plan, found.cold_start),
    }

"""What figures that a user has set change in a plan: the same question of the catalog's machine.

Both are searched and simulated, by the same seeds, each in half of the budget.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from emulator.errors import ConfigError
from emulator.power.efficiency import WATTS_PER_MEGAWATT
from emulator.specs.system import SystemSpec
from reporting.document import Document, Lines, Section
from reporting.numbers import signed_percent
from serving.analysis.plan.plan import Plan, plan
from serving.analysis.plan.plan_outlook import (
    NO_OUTLOOK,
    NOTHING_ASKED,
    OutlookTerms,
    PlanOutlook,
    outlook_data,
    outlook_of,
    outlook_sections,
)
from serving.analysis.plan.plan_question import PlanQuestion
from serving.analysis.plan.plan_race import Progress
from serving.analysis.plan.plan_sensitivity import (
    PlanSensitivity,
    sensitivity_data,
    sensitivity_of,
    sensitivity_section,
)
from serving.simulator import THIS_PROCESS, SimulationWorkers


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDifference:
    """`changes` are the set figures; `before` is the plan of the catalog's machine, or None and
    `why_not`.
    """

    changes: tuple[str, ...]
    before: Plan | None
    why_not: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAnswer:
    """A plan and what is said beside it; None where it was not asked for, or interrupted."""

    plan: Plan
    difference: PlanDifference | None
    sensitivity: PlanSensitivity | None
    outlook: PlanOutlook = NO_OUTLOOK


def plan_answer(
    question: PlanQuestion,
    *,
    catalog: SystemSpec | None = None,
    outlook: OutlookTerms = NOTHING_ASKED,
    workers: SimulationWorkers = THIS_PROCESS,
    progress: Progress = lambda _: None,
    is_interrupted: Callable[[], bool] = lambda: False,
) -> PlanAnswer:
    """The plan, its sensitivity and outlook, and, where figures are set, its difference from the
    plan on the `catalog`'s machine.

    Raises ConfigError as `plan`; an interrupt leaves out what comes after it.
    """
    ends_s = time.monotonic() + question.search.budget_s
    question = outlook.leaves_time(question)
    if catalog is None:
        found, difference = plan(question, workers=workers, progress=progress), None
    else:
        search = replace(question.search, budget_s=question.search.budget_s / 2)
        question = replace(question, search=search)
        progress("with the figures that were set, in half of the time:")
        found = plan(question, workers=workers, progress=progress)
        before = replace(question, sweep=replace(question.sweep, system=catalog))
        changes = _changes(question.sweep.system, catalog)
        difference = PlanDifference(changes=changes, before=None, why_not=_INTERRUPTED)
        if not is_interrupted():
            progress("with the catalog's figures:")
            difference = _difference(before, changes, workers, progress)
    ahead, sensitivity = NO_OUTLOOK, None
    if not is_interrupted():
        ahead = outlook_of(found, outlook, workers=workers, progress=progress, ends_s=ends_s)
    if not is_interrupted():
        sensitivity = sensitivity_of(found, workers=workers)
    return PlanAnswer(plan=found, difference=difference, sensitivity=sensitivity, outlook=ahead)


_INTERRUPTED: Final = "interrupted"


def _changes(system: SystemSpec, catalog: SystemSpec) -> tuple[str, ...]:
    turned = catalog.turned_switches()
    return tuple(each for each in system.turned_switches() if each not in turned)


def _difference(
    question: PlanQuestion,
    changes: tuple[str, ...],
    workers: SimulationWorkers,
    progress: Progress,
) -> PlanDifference:
    try:
        before = plan(question, workers=workers, progress=progress)
    except ConfigError as error:
        return PlanDifference(changes=changes, before=None, why_not=str(error))
    except KeyboardInterrupt:
        workers.stop()
        return PlanDifference(changes=changes, before=None, why_not=_INTERRUPTED)
    return PlanDifference(changes=changes, before=before)


def with_what_if(document: Document, answer: PlanAnswer) -> Document:
    """The plan's report with the sections of this module, before its last: the assumptions."""
    *sections, last = document.sections
    sections += outlook_sections(answer.plan, answer.outlook)
    if answer.difference is not None:
        sections.append(difference_section(answer.plan, answer.difference))
    if answer.sensitivity is not None:
        sections.append(sensitivity_section(answer.sensitivity))
    return replace(document, sections=(*sections, last))


def what_if_data(answer: PlanAnswer) -> dict[str, Any]:
    """The same for JSON, beside the plan's own data."""
    difference, sensitivity = answer.difference, answer.sensitivity
    return {
        "change": difference and difference_data(answer.plan, difference),
        "sensitivity": sensitivity and sensitivity_data(sensitivity),
        **outlook_data(answer.plan, answer.outlook),
    }


def difference_section(after: Plan, found: PlanDifference) -> Section:
    """Before and after, for the report."""
    return Lines(
        title=f"what the change does ({', '.join(found.changes)}):",
        rows=tuple(_difference_lines(after, found)),
    )


def _difference_lines(after: Plan, found: PlanDifference) -> Iterator[str]:
    before = found.before
    if before is None:
        yield f"with the catalog's figures nothing was planned: {found.why_not}"
        return
    for name, was, is_now, form in _measures(before, after):
        if was is not None and is_now is not None:
            change = f" ({signed_percent(is_now / was - 1)})" if was else ""
            yield f"{name}: {format(was, form)} -> {format(is_now, form)}{change}"
    yield f"before: {before.choice.setting.words}"
    yield f"after:  {after.choice.setting.words}"
    cut = [
        name for name, each in (("before", before), ("after", after)) if not each.choice.is_whole
    ]
    ended = f"; the search was cut short {' and '.join(cut)}" if cut else ""
    yield f"both planned by the same seeds, each in half of the budget{ended}"


def _measures(before: Plan, after: Plan) -> Iterator[tuple[str, float | None, float | None, str]]:
    def both(name: str, of: Callable[[Plan], float | None], form: str) -> Any:
        return name, of(before), of(after), form

    yield both("chips in service", lambda plan: plan.fleet.chips_in_service, ",d")
    machines = f"machines bought ({after.question.sweep.system.name})"
    yield both(machines, lambda plan: plan.machines, ",d")
    yield both(
        "MW drawn at the peak",
        lambda plan: plan.bill.peak_drawn_watts / WATTS_PER_MEGAWATT,
        ",.4g",
    )
    yield both("$ per million tokens over the day, all machines", _day_dollars, ",.4g")
    yield both("the same, of chips in service alone", _shared_dollars, ",.4g")


def _day_dollars(plan: Plan) -> float | None:
    cost = plan.bill.day_cost
    return None if cost is None else cost.dollars_per_million_total


def _shared_dollars(plan: Plan) -> float | None:
    cost = plan.bill.shared_day_cost
    return None if cost is None else cost.dollars_per_million_total


def difference_data(after: Plan, found: PlanDifference) -> dict[str, Any]:
    """The same for JSON."""
    return {
        "set": found.changes,
        "budget_s_of_each": after.question.search.budget_s,
        "before": found.before and _plan_data(found.before),
        "after": _plan_data(after),
        "why_not": found.why_not or None,
    }


def _plan_data(plan: Plan) -> dict[str, Any]:
    return {
        "chips_in_service": plan.fleet.chips_in_service,
        "ultraservers": plan.machines,
        "peak_drawn_watts": plan.bill.peak_drawn_watts,
        "dollars_per_million_total_over_the_day": _day_dollars(plan),
        "dollars_per_million_total_of_chips_in_service": _shared_dollars(plan),
        "setting": plan.choice.setting.words,
        "is_whole_search": plan.choice.is_whole,
    }

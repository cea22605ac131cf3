"""Systems side by side: each is planned by itself, for one demand, one target and the same seeds.

A system that cannot serve the demand is part of the answer, with the reason. One machine that does
not hold the model is planned as a cluster of the fewest that do, replicas across them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from emulator.errors import ConfigError
from emulator.power.token_cost import MILLION, SECONDS_PER_HOUR, WATTS_PER_KILOWATT
from emulator.specs.system import SystemSpec
from serving.analysis.compare.price_file import PriceFile, PriceTerm
from serving.analysis.plan.plan import Plan, plan
from serving.analysis.plan.plan_bill import bill_of
from serving.analysis.plan.plan_choice import TargetOutOfReach
from serving.analysis.plan.plan_question import PlanQuestion
from serving.simulator import THIS_PROCESS, SimulationWorkers

EVEN_PART: Final = 0.5
"""Of the budget, divided evenly; the rest goes by the partitions that a system has: those of a
large machine are many times those of a small one, and all are looked at before the search.
"""
CLUSTER_MOST: Final = 16
"""Machines of a cluster, up to which one that holds the model is looked for."""

QuestionOn = Callable[[SystemSpec], PlanQuestion]
"""The one question, asked of a system; raises ConfigError for what the system cannot do."""


class RefusalKind(StrEnum):
    """Why a system has no plan."""

    NOT_TIMED = "a data sheet"
    REFUSED = "cannot be asked that"
    DOES_NOT_FIT = "does not fit"
    OUT_OF_REACH = "the target is out of reach"
    NOT_FOUND = "nothing found that keeps the target"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemRefusal:
    """A system without a plan, and why."""

    system: str
    kind: RefusalKind
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedSystem:
    """A system's plan, searched for `budget_s`; `unit` is one machine, of which a cluster has
    several.
    """

    unit: SystemSpec
    plan: Plan
    budget_s: float
    grid_gco2_per_kwh: float | None = None

    @property
    def name(self) -> str:
        """The catalog's."""
        return self.unit.name

    @property
    def units_of_cluster(self) -> int:
        """Machines over which a replica may lie; 1: none does."""
        return self.plan.fleet.system.units // self.unit.units

    @property
    def machines(self) -> int:
        """Machines bought."""
        return self.plan.machines * self.units_of_cluster

    @property
    def serving_share(self) -> float:
        """Chips in service over chips bought."""
        return self.plan.fleet.chips_in_service / self.plan.fleet.chips

    @property
    def dollars_per_hour(self) -> float | None:
        """Of the machines bought and their energy, over the day; None without a price."""
        cost = self.plan.bill.day_cost
        return None if cost is None else cost.dollars_per_hour

    @property
    def energy_dollars_per_hour(self) -> float:
        """Of that the energy; 0 without a price."""
        cost = self.plan.bill.day_cost
        return 0.0 if cost is None else cost.energy_dollars_per_hour

    @property
    def gco2_per_million_output(self) -> float | None:
        """Of the energy at the meter over the day, by its output tokens; None without a grid."""
        return self._gco2_per_million(self.plan.rates.output_tokens_per_s)

    @property
    def gco2_per_million_total(self) -> float | None:
        """The same, by all tokens."""
        return self._gco2_per_million(self.plan.rates.total_tokens_per_s)

    def _gco2_per_million(self, peak_tokens_per_s: float) -> float | None:
        if self.grid_gco2_per_kwh is None:
            return None
        kilowatts = self.plan.bill.mean_drawn_watts / WATTS_PER_KILOWATT
        tokens_per_hour = peak_tokens_per_s * self.plan.night.day.mean_share * SECONDS_PER_HOUR
        return kilowatts * self.grid_gco2_per_kwh / tokens_per_hour * MILLION


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonTerms:
    """The search's `budget_s` of all systems together, and prices; `price_list` may be None."""

    budget_s: float
    price_list: PriceFile | None = None
    price_term: PriceTerm = PriceTerm.ON_DEMAND


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemComparison:
    """Systems with a plan and those without, each in the order of the question.

    `traffic` is in words; empty where no system holds the model.
    """

    terms: ComparisonTerms
    traffic: str
    found: tuple[ComparedSystem, ...]
    refusals: tuple[SystemRefusal, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """A system that holds the model, and what it is asked."""

    unit: SystemSpec
    question: PlanQuestion
    partitions: int


def compare(
    systems: Sequence[SystemSpec],
    question_on: QuestionOn,
    terms: ComparisonTerms,
    *,
    refused: Sequence[SystemRefusal] = (),
    workers: SimulationWorkers = THIS_PROCESS,
    progress: Callable[[str], None] = lambda _: None,
    is_interrupted: Callable[[], bool] = lambda: False,
) -> SystemComparison:
    """Plan each of `systems`; those that hold the model share the budget (see `EVEN_PART`).

    After an interrupt, which `plan` may have answered with its best so far, no other is planned.
    `refused` is what was ruled out before.
    """
    entries, refusals = [], [*refused]
    for unit in systems:
        entry = _entry(unit, question_on)
        if isinstance(entry, SystemRefusal):
            refusals.append(entry)
        else:
            entries.append(entry)
    found = []
    for entry, budget_s in zip(entries, _budgets(entries, terms.budget_s), strict=True):
        said = SystemRefusal(
            system=entry.unit.name, kind=RefusalKind.INTERRUPTED, reason="before it had a plan"
        )
        answer = said if is_interrupted() else _planned(entry, budget_s, terms, workers, progress)
        if isinstance(answer, SystemRefusal):
            refusals.append(answer)
        else:
            found.append(answer)
    return SystemComparison(
        terms=terms,
        traffic=entries[0].question.demand.in_words() if entries else "",
        found=tuple(found),
        refusals=tuple(refusals),
    )


def _budgets(entries: Sequence[_Entry], budget_s: float) -> list[float]:
    every = sum(entry.partitions for entry in entries)
    return [
        budget_s * (EVEN_PART / len(entries) + (1 - EVEN_PART) * entry.partitions / every)
        for entry in entries
    ]


def _entry(unit: SystemSpec, question_on: QuestionOn) -> _Entry | SystemRefusal:
    """One machine, or the smallest cluster, that holds the model."""

    def refusal(kind: RefusalKind, error: ConfigError) -> SystemRefusal:
        return SystemRefusal(system=unit.name, kind=kind, reason=error.expected)

    try:
        question = question_on(unit)
    except ConfigError as error:
        return refusal(RefusalKind.REFUSED, error)
    try:
        tasks = question.sweep.tasks()
    except ConfigError as error:
        if error.field != "partition":
            return refusal(RefusalKind.REFUSED, error)
        return _cluster_entry(unit, question_on) or refusal(RefusalKind.DOES_NOT_FIT, error)
    return _Entry(unit=unit, question=question, partitions=len(tasks))


def _cluster_entry(unit: SystemSpec, question_on: QuestionOn) -> _Entry | None:
    """The question to the fewest machines, joined by network cards, that hold the model."""
    if unit.chip.scale_out_bytes_per_s is None:
        return None
    for units in range(2, CLUSTER_MOST + 1):
        question = question_on(unit.cluster(units))
        sweep = question.sweep
        wide = replace(sweep, asked=replace(sweep.asked, across_units=True))
        try:
            tasks = wide.tasks()
        except ConfigError:
            continue
        question = replace(question, sweep=wide)
        return _Entry(unit=unit, question=question, partitions=len(tasks))
    return None


def _planned(
    entry: _Entry,
    budget_s: float,
    terms: ComparisonTerms,
    workers: SimulationWorkers,
    progress: Callable[[str], None],
) -> ComparedSystem | SystemRefusal:
    name = entry.unit.name

    def refusal(kind: RefusalKind, reason: str) -> SystemRefusal:
        return SystemRefusal(system=name, kind=kind, reason=reason)

    search = replace(entry.question.search, budget_s=budget_s)
    question = replace(entry.question, search=search, margins=False)
    try:
        found = plan(question, workers=workers, progress=lambda line: progress(f"{name}: {line}"))
    except KeyboardInterrupt:
        return refusal(RefusalKind.INTERRUPTED, "before it had a plan")
    except TargetOutOfReach as error:
        return refusal(RefusalKind.OUT_OF_REACH, error.expected)
    except ConfigError as error:
        return refusal(RefusalKind.NOT_FOUND, error.expected)
    listed = terms.price_list
    grid = None if listed is None else listed.grid_gco2_per_kwh
    return ComparedSystem(
        unit=entry.unit,
        plan=priced(found, entry.unit, terms),
        budget_s=budget_s,
        grid_gco2_per_kwh=None if grid is None else grid.value,
    )


def priced(found: Plan, unit: SystemSpec, terms: ComparisonTerms) -> Plan:
    """The plan with the bill by the price list; unchanged where `unit` has no price in it."""
    if terms.price_list is None:
        return found
    units = found.fleet.system.units // unit.units
    prices = terms.price_list.prices_of(unit.name, terms.price_term, units=units)
    if prices is None:
        return found
    bill = bill_of(found.fleet, found.night, found.rates, prices)
    return replace(found, question=replace(found.question, prices=prices), bill=bill)

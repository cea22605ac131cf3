"""A fleet over days: each system's replica is simulated once, each row of machines is walked.

Machines share nothing but their row's requests, spares and power, so rows are walked by themselves,
in parallel, and a fleet is their sum.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ConfigError
from emulator.specs.system import SystemSpec
from serving.analysis.day.day_trace import HOUR_S
from serving.analysis.day.virtual_day import DaySettings, WalkableMachine, walkable_machine
from serving.analysis.fleet.fleet_account import FleetAccount
from serving.analysis.fleet.fleet_plan import FleetBuilding, FleetPlan, FleetRow
from serving.analysis.fleet.row_week import RowTask, RowWeek, row_walker
from serving.analysis.fleet.sampled_machines import SampledMachines, sampled_machines
from serving.policy.day_night.policy_text import parse_policy
from serving.simulator import THIS_PROCESS, SimulationWorkers

Float64s = NDArray[np.float64]
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FleetQuestion:
    """A plan, and of each of its systems the settings of a day's walk, all of one question.

    `samples`: exact runs that the walk is held against.
    """

    plan: FleetPlan
    settings: Mapping[str, DaySettings]
    samples: int = 0

    def __post_init__(self) -> None:
        if self.samples < 0:
            raise ConfigError("sample", self.samples, "from 0 on")
        for settings in self.settings.values():
            parse_policy(settings.question.policies[0])
            if settings.question.length_s % HOUR_S:
                hours = settings.question.length_s / HOUR_S
                raise ConfigError("trace", f"{hours:g} hours", "whole hours, as caps go by them")

    def system_of(self, row: FleetRow) -> SystemSpec:
        """A row's machine, with the figures that it is asked with."""
        return self.settings[row.system].sweep.system


@dataclass(frozen=True, kw_only=True, eq=False)
class VirtualFleet:
    """The answer."""

    question: FleetQuestion
    walkable: Mapping[str, WalkableMachine]
    rows: tuple[RowWeek, ...]
    sampled: SampledMachines | None

    @cached_property
    def everything(self) -> FleetAccount:
        """All buildings."""
        return FleetAccount(name="all", rows=self.rows)

    @cached_property
    def buildings(self) -> tuple[FleetAccount, ...]:
        """Each one, in the plan's order."""
        grouped = groupby(self.rows, key=lambda row: row.task.building)
        return tuple(FleetAccount(name=name, rows=tuple(rows)) for name, rows in grouped)


def virtual_fleet(
    question: FleetQuestion,
    *,
    workers: SimulationWorkers = THIS_PROCESS,
    progress: Progress = lambda _: None,
) -> VirtualFleet:
    """Raises ConfigError when no replica keeps the target, or a cap holds no machine."""
    walkable = {}
    for name, settings in question.settings.items():
        progress(f"{name}:")
        walkable[name] = walkable_machine(settings, workers=workers, progress=progress)
    rows = walked_rows(question, walkable, workers=workers, progress=progress)
    sampled = None
    if question.samples:
        sampled = sampled_machines(
            rows,
            {name: each.replica for name, each in walkable.items()},
            question.samples,
            seed=_any(question).question.terms.seed,
            workers=workers,
            progress=progress,
        )
    return VirtualFleet(question=question, walkable=walkable, rows=rows, sampled=sampled)


def walked_rows(
    question: FleetQuestion,
    walkable: Mapping[str, WalkableMachine],
    *,
    workers: SimulationWorkers = THIS_PROCESS,
    progress: Progress = lambda _: None,
) -> tuple[RowWeek, ...]:
    """Every row of every building, in the plan's order."""
    tasks = row_tasks(question)
    chunks = [
        _SystemRows(machine=walkable[name], settings=question.settings[name], tasks=chunk)
        for name in question.settings
        for chunk in _chunked([each for each in tasks if each.row.system == name], workers.count)
    ]
    found: dict[int, RowWeek] = {}
    for weeks in workers.results(_walk_chunk, chunks):
        for week in weeks:
            found[week.task.first_machine] = week
        progress(f"rows walked: {len(found)} of {len(tasks)}")
    return tuple(found[task.first_machine] for task in tasks)


def row_tasks(question: FleetQuestion) -> tuple[RowTask, ...]:
    """In the plan's order, with each building's power divided by what its rows are provisioned
    for.
    """
    plan, settings = question.plan, _any(question)
    hours = round(settings.question.length_s / HOUR_S)
    begins_s = settings.question.trace.begins.timestamp() + settings.question.begin_s
    first_hour = int(_hour_of_week(settings, begins_s))
    tasks: list[RowTask] = []
    first_machine = 0
    for name, building, row in plan.each_row():
        weather = plan.weather[building.weather]
        percent = building.peak_percent or plan.traffic.peak_percent
        tasks.append(
            RowTask(
                building=name,
                row=row,
                first_machine=first_machine,
                peak_share=percent / 100,
                pue=weather.pue(question.system_of(row), first_hour=first_hour, hours=hours),
                cap_watts=_cap_watts(question, building, row, first_hour=first_hour, hours=hours),
                failures=plan.failures,
            )
        )
        first_machine += row.machines
    return tuple(tasks)


def _cap_watts(
    question: FleetQuestion, building: FleetBuilding, row: FleetRow, *, first_hour: int, hours: int
) -> Float64s | None:
    cap_watts = building.cap_watts(first_hour=first_hour, hours=hours)
    if cap_watts is None:
        return None

    def watts(one: FleetRow) -> float:
        return one.machines * question.system_of(one).provisioned_watts.value

    part: Float64s = cap_watts * (watts(row) / sum(map(watts, building.rows)))
    return part


def _hour_of_week(settings: DaySettings, at_s: float) -> float:
    """From Monday's midnight on."""
    begins = settings.question.trace.begins
    return (24 * begins.weekday() + begins.hour + (at_s - begins.timestamp()) / HOUR_S) % 168


def _any(question: FleetQuestion) -> DaySettings:
    return next(iter(question.settings.values()))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _SystemRows:
    machine: WalkableMachine
    settings: DaySettings
    tasks: Sequence[RowTask]


def _chunked(tasks: Sequence[RowTask], count: int) -> list[Sequence[RowTask]]:
    """At most `count` parts, none empty."""
    return [part for part in (tasks[start::count] for start in range(count)) if part]


def _walk_chunk(chunk: _SystemRows) -> list[RowWeek]:
    walker = row_walker(chunk.machine.machine, chunk.machine.handover, chunk.settings.question)
    return [walker.row_week(task) for task in chunk.tasks]

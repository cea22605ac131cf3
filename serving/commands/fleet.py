"""`ultraserve fleet`: buildings of machines over a week, with their power caps, weather, failures.

Starts no server: one replica of each system is simulated exactly at several rates, then all rows of
machines are walked, and some of their machines are simulated exactly.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serving.commands.analysis_options import (
    PlotOptions,
    SimulationOptions,
    check_least,
    interruptible,
    print_answer,
)
from serving.commands.day import DayOptions, day_settings
from serving.commands.pareto import accepted_assumptions
from serving.settings import AssumptionOptions
from serving.traffic.engine_limits import PLANNED_LIMITS, SchedulerLimits
from startup.typed_options import REQUIRED, add_options, option, read_options

if TYPE_CHECKING:
    from serving.analysis.day.virtual_day import DaySettings
    from serving.analysis.fleet.fleet_plan import FleetPlan
    from serving.analysis.fleet.virtual_fleet import FleetQuestion

_SAMPLES = 8


@dataclass(frozen=True, kw_only=True)
class FleetOptions(PlotOptions, AssumptionOptions, SimulationOptions):
    """All of a fleet's question."""

    GROUP = "fleet"

    plan: Path = option(
        REQUIRED,
        "a TOML file of buildings, rows, power caps, weather, failures and demand, as "
        "deploy/fleets/rainier.toml",
    )
    sample: int = option(
        _SAMPLES,
        "stretches of ten minutes of some machine, drawn at random and simulated exactly beside "
        "the walk; 0 for none",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least("sample", self.sample, 0)

    def question(self) -> FleetQuestion:
        """The options and their file as a question; raises UltraServeError."""
        from emulator.specs.systems import system_by_name
        from serving.analysis.fleet.fleet_plan import read_fleet_plan
        from serving.analysis.fleet.virtual_fleet import FleetQuestion

        plan = read_fleet_plan(self.plan)
        systems = [system_by_name(name) for name in plan.systems]
        accepted = accepted_assumptions(systems, self.assumptions)
        settings = {
            system: self._settings(plan, system, assumptions)
            for system, assumptions in zip(plan.systems, accepted, strict=True)
        }
        return FleetQuestion(plan=plan, settings=settings, samples=self.sample)

    def _settings(self, plan: FleetPlan, system: str, assumptions: Sequence[str]) -> DaySettings:
        """A day of one machine of the system, with the plan's traffic."""
        traffic = plan.traffic
        options = DayOptions(
            model=traffic.model,
            system=system,
            assumptions=assumptions,
            slo=traffic.slo,
            trace=traffic.trace,
            days=traffic.days,
            first_day=traffic.first_day,
            peak=f"{traffic.peak_percent:g}",
            policy=traffic.policy,
            input=traffic.input,
            output=traffic.output,
            lengths=None if traffic.lengths is None else Path(traffic.lengths),
            train_model=traffic.train_model,
            train_recipe=traffic.train_recipe,
            requests=self.requests,
            seed=self.seed,
        )
        limits: dict[str, Any] = {**PLANNED_LIMITS}
        return day_settings(options, SchedulerLimits(**limits))


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `fleet` command."""
    parser = subparsers.add_parser(
        "fleet",
        help="a week of a fleet: buildings, power caps, weather, failures, spares",
        description="Rows of UltraServers in buildings serve a week's demand within a latency "
        "target and train when it falls, below the buildings' power caps, while machines fail and "
        "are repaired. One replica of each system is simulated exactly at several rates, rows are "
        "walked on what came of it, and a sample of machines is simulated exactly beside the walk. "
        "Modelled, not measured.",
        epilog="Example: ultraserve fleet --plan deploy/fleets/rainier.toml --plot fleet.png",
    )
    add_options(parser, FleetOptions)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Walk the fleet and print; returns 0. Raises UltraServeError."""
    from reporting.plain_text import document_lines
    from serving.analysis.fleet.fleet_report import fleet_data, fleet_document
    from serving.analysis.fleet.virtual_fleet import virtual_fleet

    ended = "ultraserve fleet: interrupted, no fleet was walked"
    options = read_options(FleetOptions, args)
    found = interruptible(virtual_fleet, options.question(), options=options, ended=ended)
    if options.plot:
        from serving.analysis.fleet.fleet_chart import fleet_chart

        options.write_plots(lambda: fleet_chart(found))
    print_answer(
        document_lines(fleet_document(found)), lambda: fleet_data(found), json=options.json
    )
    return 0

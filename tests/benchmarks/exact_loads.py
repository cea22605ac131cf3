"""The walk held against the exact run of an hour in which a group leaves and comes back, by load.

    python -m tests.benchmarks exact_loads [--loads N,N] [--seeds N] -- ARGUMENTS OF ultraserve day

Requests come at random at one rate; a load is percent of what all groups but one serve within the
target, by the lowest capacity of a group. All groups serve, or all but the last one, by turns of
five to fifteen minutes. A line has an hour's differences, walked less exact.
"""

import argparse
import logging
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import numpy as np

from serving.analysis.day.day_demand import DayDemand
from serving.analysis.day.day_result import DayResult
from serving.analysis.day.day_walk import walk
from serving.analysis.day.exact_day import ExactTerms, Planned
from serving.analysis.day.held_day import HeldDay, held_stretch
from serving.analysis.day.look_outcomes import LookOutcomes
from serving.analysis.day.virtual_day import DaySettings, WalkableMachine, walkable_machine
from serving.commands import day as command
from serving.policy.day_night.history import DemandHistory
from serving.simulator import SimulationWorkers
from tests.benchmarks.exact_handovers import line_of
from tests.serving.commands.small_day import parsed

AWAY: Final = (0, 0, 0, 0, 0, 0, 1, 1, 0, 1, 1, 1, 0, 0, 1, 1, 0, 0)
"""Groups that train at each look, of which the first five and the last are not judged."""
FIRST: Final = 5
BEGINS: Final = datetime(2024, 5, 10, tzinfo=UTC)


def held_at(
    settings: DaySettings, walkable: WalkableMachine, *, rate_per_s: float, seed: int
) -> HeldDay:
    """The hour at a rate."""
    machine, terms = walkable.machine, settings.question.terms
    begins_s = BEGINS.timestamp()
    counts = np.random.default_rng(seed).poisson(
        rate_per_s * terms.interval_s, len(AWAY) * terms.look_intervals
    )
    demand = DayDemand(
        begins=BEGINS,
        interval_s=terms.interval_s,
        arrivals=counts,
        past=DemandHistory(end_s=begins_s, bucket_s=terms.look_s, requests_per_s=np.zeros(0)),
    )
    outcomes = LookOutcomes(
        trained=machine.trained,
        handover=walkable.handover,
        group_idle_watts=machine.curve.idle_watts,
        interval_s=terms.interval_s,
        look_s=terms.look_s,
    )
    plan = Planned(
        begins_s=begins_s,
        look_s=terms.look_s,
        serving=tuple(machine.groups - away for away in AWAY),
    )
    result = DayResult(
        machine=machine,
        walk=walk(demand, machine.curve, outcomes, plan),
        policy=plan.name,
        describes=plan.describe(),
    )
    exact = ExactTerms(
        groups=machine.groups,
        look_s=terms.look_s,
        grace_s=settings.grace_s,
        job=settings.job,
        handover=walkable.handover,
        capacity_per_s=machine.curve.least_capacity_per_s,
        seed=seed,
    )
    length_s = (len(AWAY) - 1 - FIRST) * terms.look_s
    return held_stretch(
        result, walkable.replica, exact, begin_s=FIRST * terms.look_s, length_s=length_s
    )


def run(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each load and seed."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.exact_loads")
    parser.add_argument("--loads", default="25,50,70,84,90", help="percent, by commas")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("day", nargs="*", help="arguments of ultraserve day, after --")
    args = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    settings = command.settings_of(parsed(*args.day))
    with SimulationWorkers(1) as workers:
        walkable = walkable_machine(
            settings, workers=workers, progress=lambda text: print(text, file=sys.stderr)
        )
    machine = walkable.machine
    most_per_s = (machine.groups - 1) * machine.curve.least_capacity_per_s
    for load in map(float, args.loads.split(",")):
        for seed in range(args.seeds):
            begun_s = time.process_time()
            held = held_at(settings, walkable, rate_per_s=load / 100 * most_per_s, seed=seed)
            name = f"{load:g} %, seed {seed}"
            print(line_of(name, held, time.process_time() - begun_s), flush=True)


if __name__ == "__main__":
    run()

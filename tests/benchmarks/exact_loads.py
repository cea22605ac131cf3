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
from typing import Final

import numpy as np

from serving.analysis.day.held_day import HeldDay
from serving.analysis.day.virtual_day import DaySettings, WalkableMachine, walkable_machine
from serving.commands import day as command
from serving.simulator import SimulationWorkers
from tests.benchmarks.exact_handovers import line_of
from tests.serving.analysis.day.planned_stretch import held_plan
from tests.serving.commands.small_day import parsed

AWAY: Final = (0, 0, 0, 0, 0, 0, 1, 1, 0, 1, 1, 1, 0, 0, 1, 1, 0, 0)
"""Groups that train at each look, of which the first five and the last are not judged."""
FIRST: Final = 5


def held_at(
    settings: DaySettings, walkable: WalkableMachine, *, rate_per_s: float, seed: int
) -> HeldDay:
    """The hour at a rate."""
    machine, terms = walkable.machine, settings.question.terms
    intervals = len(AWAY) * terms.look_intervals
    return held_plan(
        settings,
        walkable,
        serving=[machine.groups - away for away in AWAY],
        arrivals=np.random.default_rng(seed).poisson(rate_per_s * terms.interval_s, intervals),
        first=FIRST,
        looks=len(AWAY) - 1 - FIRST,
        seed=seed,
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

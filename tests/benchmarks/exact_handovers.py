"""The walk of a day held against exact hours that contain hand-overs, drawn at random.

    python -m tests.benchmarks exact_handovers [--hours N] -- ARGUMENTS OF ultraserve day

Each hour is simulated step by step, all replicas, or parts of the one engine, with the walk's
groups at each decision, from 20 minutes before it on. A line has the differences of the headline's
first policy, walked less exact.
"""

import argparse
import logging
import sys
import time
from collections.abc import Sequence
from typing import Final

import numpy as np

from serving.analysis.day.day_result import DayResult
from serving.analysis.day.day_trace import HOUR_S
from serving.analysis.day.held_day import HeldDay, held_stretch
from serving.analysis.day.virtual_day import chosen, exact_terms, virtual_day
from serving.commands import day as command
from serving.simulator import SimulationWorkers
from tests.serving.commands.small_day import parsed

SEED: Final = 0


def hours_with_handovers(result: DayResult, *, hours: int, look_s: float) -> list[int]:
    """Hours of the day after its first one, drawn without a second time, in order."""
    of_hour = round(HOUR_S / look_s)
    moved = np.array(result.walk.handovers)
    whole = len(moved) // of_hour
    counts = moved[: whole * of_hour].reshape(whole, of_hour).sum(axis=1)
    (found,) = counts.nonzero()
    later = found[found > 0]
    rng = np.random.default_rng(SEED)
    drawn: list[int] = np.sort(rng.choice(later, min(hours, len(later)), replace=False)).tolist()
    return drawn


def line_of(name: str, held: HeldDay, cpu_s: float) -> str:
    """One hour's differences."""
    return (
        f"{name}: {held.requests:,} requests, {held.handovers.exact:.0f} hand-overs "
        f"({held.handovers.walked:.0f} walked); kept {held.both.exact:.3%} "
        f"({100 * held.both.difference:+.2f} points), worst 5 min {held.worst.exact:.2%} "
        f"({100 * held.worst.difference:+.2f}); TTFT p99 {1e3 * held.ttft_p99_s.exact:,.1f} ms "
        f"({held.ttft_p99_s.relative:+.1%}), TPOT p99 {1e3 * held.tpot_p99_s.exact:,.2f} ms "
        f"({held.tpot_p99_s.relative:+.1%}); energy {held.joules.relative:+.2%}, trained tokens "
        f"{held.trained_tokens.relative:+.2%}; moved {held.moved_requests.exact:,.0f} "
        f"({held.moved_requests.walked:,.0f}); {cpu_s:.0f} s of CPU"
    )


def run(arguments: Sequence[str] | None = None) -> None:
    """Print the hours."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.exact_handovers")
    parser.add_argument("--hours", type=int, default=10)
    parser.add_argument("day", nargs="*", help="arguments of ultraserve day, after --")
    args = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    settings = command.settings_of(parsed(*args.day))
    _, replica = chosen(settings)
    with SimulationWorkers(1) as workers:
        walked = virtual_day(
            settings, workers=workers, progress=lambda t: print(t, file=sys.stderr)
        )
    result, terms = walked.headline.results[0], exact_terms(settings, walked)
    for hour in hours_with_handovers(result, hours=args.hours, look_s=terms.look_s):
        begun_s = time.process_time()
        held = held_stretch(result, replica, terms, begin_s=hour * HOUR_S)
        print(line_of(f"{hour:2} h", held, time.process_time() - begun_s), flush=True)


if __name__ == "__main__":
    run()

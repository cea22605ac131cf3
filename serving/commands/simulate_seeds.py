"""`ultraserve simulate --seeds N`: the same run with several seeds, each figure with its spread."""

from __future__ import annotations

import argparse
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from serving.commands.analysis_options import print_answer, say

if TYPE_CHECKING:
    from serving.analysis.simulate.simulated_report import SimulatedReport
    from serving.commands.simulate import SimulatedQuestion, SimulateOptions


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SeedTask:
    """One run of the arguments, with a seed of its own."""

    args: argparse.Namespace
    seed: int

    @property
    def question(self) -> SimulatedQuestion:
        """Raises UltraServeError, LoadError."""
        from serving.commands.simulate import SimulatedQuestion

        return SimulatedQuestion.of(argparse.Namespace(**(vars(self.args) | {"seed": self.seed})))


def simulate_seeds(args: argparse.Namespace, options: SimulateOptions) -> int:
    """Simulate and print; returns 0, or 130 or 143 with what there is.

    The first interrupt or SIGTERM ends the runs that are not done. Raises UltraServeError,
    LoadError.
    """
    from reporting.plain_text import document_lines
    from serving.analysis.simulate.seeds_report import seeds_document, seeds_report

    assert options.seeds is not None
    seeds = range(options.seed, options.seed + options.seeds)
    tasks = [SeedTask(args=args, seed=seed) for seed in seeds]
    tasks[0].question.compiled()  # once for all
    runs: list[SimulatedReport] = []
    code = 0
    begun_s = time.perf_counter()
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        with options.workers() as workers:
            for run in workers.results(run_of_seed, tasks):
                runs.append(run)
                say(f"seed {seeds[len(runs) - 1]}: done, {len(runs)} of {len(seeds)}")
    except KeyboardInterrupt as interrupt:
        say(f"ultraserve simulate: interrupted, {len(runs)} of {len(seeds)} seeds were simulated")
        if not runs:
            raise
        code = 128 + (signal.SIGTERM if isinstance(interrupt, _Terminated) else signal.SIGINT)
    finally:
        signal.signal(signal.SIGTERM, before)
    report = seeds_report(seeds[: len(runs)], runs, wall_s=time.perf_counter() - begun_s)
    print_answer(document_lines(seeds_document(report)), lambda: report, json=options.json)
    return code


class _Terminated(KeyboardInterrupt):
    """SIGTERM, which ends the workers as an interrupt does."""


def _terminated(*_: object) -> None:
    raise _Terminated


def run_of_seed(task: SeedTask) -> SimulatedReport:
    """The figures of one run; raises UltraServeError, LoadError."""
    asked = task.question
    begun_s = time.perf_counter()
    found = asked.simulated()
    return asked.report(found, compile_s=0.0, wall_s=time.perf_counter() - begun_s)

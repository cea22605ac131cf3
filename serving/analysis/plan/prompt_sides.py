"""Engines for prompts of a plan's pools, judged without what decodes.

Nothing goes back to them, and a first token follows its prompt. So where they alone are too late,
each unit that has them is, whatever decodes in it: many units are out by a short simulation.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from emulator.specs.partition import Partition
from loadgen.measures.slo import Slo
from serving.analysis.plan.plan_check import SizeTask, check_by_seed, check_sizes
from serving.analysis.plan.plan_options import Option
from serving.analysis.plan.plan_question import PlanQuestion
from serving.analysis.plan.plan_setting import Setting
from serving.analysis.plan.plan_task import FRESH_TIMES, size_task
from serving.simulator import SimulationWorkers

PromptSide = tuple[str, Partition, int, int]
"""Precision, partition, how many engines in a unit, and how many units."""


def prompt_side(option: Option, units: int) -> PromptSide | None:
    """Of so many units; None where each engine computes its own prompts."""
    prefill = option.point.prefill
    if prefill is None:
        return None
    return option.point.precision, prefill.partition, prefill.replicas, units


class PromptSides:
    """Which of them are `late`: by fresh runs they do not surely keep TTFT, or a unit did not."""

    def __init__(self, question: PlanQuestion, workers: SimulationWorkers) -> None:
        self._question = question
        self._workers = workers
        self._judged = set[PromptSide]()
        self.late = set[PromptSide]()

    def judge(self, settings: Sequence[Setting], *, ends_s: float = float("inf")) -> bool:
        """Simulate those of `settings` that are not known; returns whether any were, and raises
        OutOfTime after `ends_s` of `time.monotonic`.
        """
        sides: dict[PromptSide, SizeTask] = {}
        for setting in settings:
            side = prompt_side(setting.option, setting.replicas)
            if side is not None and side not in self._judged | self.late:
                sides.setdefault(side, self._task(setting, ends_s))
        self._judged.update(sides)
        tasks = {side: task for side, task in sides.items() if task.slo.bounds}
        seed = self._question.check.seed + 1
        first = check_by_seed([*tasks.values()], seed, self._workers)
        self.late.update(side for side, (_, may_be) in zip(tasks, first, strict=True) if not may_be)
        left = [side for side in tasks if side not in self.late]
        checks = check_sizes([tasks[side] for side in left], self._workers)
        self.late.update(
            side for side, check in zip(left, checks, strict=True) if not check.surely_meets
        )
        return bool(sides)

    def in_time(self, settings: Collection[Setting]) -> list[Setting]:
        """Those whose prompts are not known to be late."""
        return [
            each for each in settings if prompt_side(each.option, each.replicas) not in self.late
        ]

    def _task(self, setting: Setting, ends_s: float) -> SizeTask:
        question = self._question
        judged = FRESH_TIMES * question.check.judged
        task = size_task(
            question, setting, judged=judged, is_fresh=True, prompts_alone=True, ends_s=ends_s
        )
        bounds = tuple(bound for bound in question.slo.bounds if bound.name == "ttft")
        return replace(task, slo=Slo(bounds=bounds, words=question.slo.words))

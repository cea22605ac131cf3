"""Engines for prompts of a plan's pools, judged without what decodes.

Nothing goes back to them, and a first token follows its prompt. So where they alone are too late,
each unit that has them is, whatever decodes in it: many units are out by a short simulation.

A seed gives any number of units the same requests, only closer together the fewer units there are.
So where engines are late, as many or fewer of them in as many or fewer units are late too, and
where they are in time, as many or more are: most of what a search asks of is known.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from math import ceil

from emulator.specs.partition import Partition
from loadgen.measures.slo import Slo
from serving.analysis.plan.plan_check import SizeTask, check_by_seed, check_sizes
from serving.analysis.plan.plan_options import Option
from serving.analysis.plan.plan_question import PlanQuestion
from serving.analysis.plan.plan_setting import Setting
from serving.analysis.plan.plan_task import FIRST_SHARE, FRESH_TIMES, size_task
from serving.simulator import SimulationWorkers

PromptSide = tuple[str, Partition, int, int]
"""Precision, partition, how many engines in a unit, and how many units."""


def prompt_side(option: Option, units: int) -> PromptSide | None:
    """Of so many units; None where each engine computes its own prompts."""
    prefill = option.point.prefill
    if prefill is None:
        return None
    return option.point.precision, prefill.partition, prefill.replicas, units


class LateSides:
    """Those that were found late, and by these others of the same engines."""

    def __init__(self) -> None:
        self._found = defaultdict[tuple[str, Partition], set[tuple[int, int]]](set)

    def __contains__(self, side: object) -> bool:
        if not isinstance(side, tuple):  # None: engines that compute their own prompts
            return False
        precision, partition, engines, units = side
        found = self._found.get((precision, partition), ())
        return any(engines <= late and units <= late_units for late, late_units in found)

    def add(self, side: PromptSide) -> None:
        """Note one."""
        precision, partition, engines, units = side
        self._found[precision, partition].add((engines, units))


class PromptSides:
    """Which of them are `late`: by fresh runs they do not surely keep TTFT, or a unit did not."""

    def __init__(self, question: PlanQuestion, workers: SimulationWorkers) -> None:
        self._question = question
        self._bounds = tuple(bound for bound in question.slo.bounds if bound.name == "ttft")
        self._workers = workers
        self._in_time = set[PromptSide]()
        self.late = LateSides()

    def judge(self, settings: Sequence[Setting], *, ends_s: float = float("inf")) -> bool:
        """Simulate those of `settings` that are not known; returns whether any were, and raises
        OutOfTime after `ends_s` of `time.monotonic`.
        """
        sides: dict[PromptSide, Setting] = {}
        for setting in settings:
            side = prompt_side(setting.option, setting.replicas)
            if side is not None and not self._is_known(side):
                sides.setdefault(side, setting)
        check, workers = self._question.check, self._workers
        left = [*sides]
        if not self._bounds:
            self._in_time.update(left)
            return bool(sides)
        # What is hopeless is so by few requests, and most of the rest by one seed of several.
        few = ceil(check.judged / FIRST_SHARE)
        firsts = [self._task(sides[each], few, ends_s, is_fresh=False) for each in left]
        left = self._kept(left, [each.may_meet for each in check_sizes(firsts, workers)])
        judged = FRESH_TIMES * check.judged
        tasks = {each: self._task(sides[each], judged, ends_s, is_fresh=True) for each in left}
        by_seed = check_by_seed([*tasks.values()], check.seed + 1, workers)
        left = self._kept(left, [may_be_sure for _, may_be_sure in by_seed])
        checks = check_sizes([tasks[each] for each in left], workers)
        self._in_time.update(self._kept(left, [each.surely_meets for each in checks]))
        return bool(sides)

    def _is_known(self, side: PromptSide) -> bool:
        *kind, engines, units = side
        return side in self.late or any(
            [*known] == kind and least <= engines and least_units <= units
            for *known, least, least_units in self._in_time
        )

    def _kept(self, sides: Sequence[PromptSide], are_in_time: Sequence[bool]) -> list[PromptSide]:
        """Those that are; the others are late."""
        for side, is_in_time in zip(sides, are_in_time, strict=True):
            if not is_in_time:
                self.late.add(side)
        return [side for side in sides if side not in self.late]

    def in_time(self, settings: Collection[Setting]) -> list[Setting]:
        """Those whose prompts are not known to be late."""
        return [
            each for each in settings if prompt_side(each.option, each.replicas) not in self.late
        ]

    def _task(self, setting: Setting, judged: int, ends_s: float, *, is_fresh: bool) -> SizeTask:
        task = size_task(
            self._question,
            setting,
            judged=judged,
            is_fresh=is_fresh,
            prompts_alone=True,
            ends_s=ends_s,
        )
        return replace(task, slo=Slo(bounds=self._bounds, words=self._question.slo.words))

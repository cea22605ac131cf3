"""Engines for prompts of a plan's pools, judged without what decodes.

Nothing goes back to them, and a first token follows its prompt. So where they alone are too late,
each unit that has them is, whatever decodes in it: many units are out by a short simulation. Not
the other way round: a unit's first tokens also wait for seats where it decodes, so that of a late
unit these engines are judged by themselves.

A rate's seed gives any number of units the same requests, only closer together the fewer units
there are. So where engines are late, as many or fewer of them in as many or fewer units are late
too, and where they are in time, as many or more are: most of what a search asks of is known. What
was judged itself is as it was judged. A trace's requests are dealt out at random, others to each
number of units, and what prompts share lies in caches: there every side is judged.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from math import ceil
from typing import Final

from emulator.specs.partition import Partition
from loadgen.measures.slo import Slo
from serving.analysis.plan.plan_check import SizeTask, check_in_turn, check_sizes
from serving.analysis.plan.plan_demand import RateDemand
from serving.analysis.plan.plan_options import Option
from serving.analysis.plan.plan_question import PlanQuestion
from serving.analysis.plan.plan_setting import Setting
from serving.analysis.plan.plan_task import FIRST_SHARE, FRESH_TIMES, size_task, task_anew
from serving.simulator import SimulationWorkers

CLEAR: Final = 0.8
"""Of TTFT's limit: what one more run surely keeps by so much is judged no further."""

PromptSide = tuple[str, Partition, int, int]
"""Precision, partition, how many engines in a unit, and how many units."""


def prompt_side(option: Option, units: int) -> PromptSide | None:
    """Of so many units; None where each engine computes its own prompts."""
    prefill = option.point.prefill
    if prefill is None:
        return None
    return option.point.precision, prefill.partition, prefill.replicas, units


class LateSides:
    """Those that were found late and, with `by_others`, those that others of the same engines say
    are; none that was found in time, or that fewer are. Of those that are `unsure` neither is known
    for sure.
    """

    def __init__(self, *, by_others: bool = True) -> None:
        self._by_others = by_others
        self.unsure = set[PromptSide]()
        self._late = defaultdict[tuple[str, Partition], set[tuple[int, int]]](set)
        self._in_time = defaultdict[tuple[str, Partition], set[tuple[int, int]]](set)

    def __contains__(self, side: object) -> bool:
        return isinstance(side, tuple) and self.is_late(side) is True

    def is_late(self, side: PromptSide) -> bool | None:
        """None where it is not known; False where it is `unsure`."""
        precision, partition, engines, units = side
        late, in_time = self._late[precision, partition], self._in_time[precision, partition]
        if (own := (engines, units)) in late or own in in_time:
            return own in late
        if self._by_others and any(few <= engines and least <= units for few, least in in_time):
            return False
        if self._by_others and any(engines <= many and units <= most for many, most in late):
            return True
        return False if side in self.unsure else None

    def add(self, side: PromptSide, *, is_late: bool = True) -> None:
        """Note what was found of one."""
        precision, partition, engines, units = side
        of, other = (self._late, self._in_time) if is_late else (self._in_time, self._late)
        of[precision, partition].add((engines, units))
        other[precision, partition].discard((engines, units))
        self.unsure.discard(side)

    def leave_open(self, side: PromptSide) -> None:
        """Note that one is unsure, whatever was found of it before: it says nothing of others."""
        precision, partition, engines, units = side
        for known in (self._late, self._in_time):
            known[precision, partition].discard((engines, units))
        self.unsure.add(side)


class PromptSides:
    """Which of them are `late`: by fresh runs they do not surely keep TTFT, so that by these seeds
    no unit would that has them; or by new seeds they surely miss it. Where other seeds than those
    that will judge a unit leave it open they are unsure, and late once such a unit is refuted.
    `by_others` takes what is known of others for an answer, as far as a demand allows it.
    """

    def __init__(
        self, question: PlanQuestion, workers: SimulationWorkers, *, by_others: bool = True
    ) -> None:
        self._question = question
        self._bounds = tuple(bound for bound in question.slo.bounds if bound.name == "ttft")
        self._workers = workers
        self.late = LateSides(by_others=by_others and isinstance(question.demand, RateDemand))
        self._anew = set[PromptSide]()

    def judge(self, settings: Sequence[Setting], *, ends_s: float = float("inf")) -> bool:
        """Simulate those of `settings` that are not known; returns whether any were, and raises
        OutOfTime after `ends_s` of `time.monotonic`.
        """
        sides: dict[PromptSide, Setting] = {}
        for setting in settings:
            side = prompt_side(setting.option, setting.replicas)
            if side is not None and self.late.is_late(side) is None:
                sides.setdefault(side, setting)
        check, workers = self._question.check, self._workers
        left = [*sides]
        if not self._bounds:
            for side in left:
                self.late.add(side, is_late=False)
            return bool(sides)
        # What is hopeless is so by few requests, and most of the rest by some seeds of several.
        few = ceil(check.judged / FIRST_SHARE)
        firsts = [self._task(sides[each], few, ends_s, is_fresh=False) for each in left]
        left = self._kept(left, [each.may_meet for each in check_sizes(firsts, workers)])
        judged = FRESH_TIMES * check.judged
        fresh = {each: self._task(sides[each], judged, ends_s, is_fresh=True) for each in left}
        clear = self._judge_in_turn(fresh)
        near = [each for each in left if each not in self.late and each not in clear]
        self._judge_anew({each: sides[each] for each in near}, ends_s)
        return bool(sides)

    def doubt(self, setting: Setting, *, ends_s: float = float("inf")) -> None:
        """Judge the engines for prompts of a unit whose TTFT new seeds refuted as those that are
        near the limit: where they are nearly full, few windows after each other are alike. Late
        where that leaves it open, too: a choice that spares time and may drop units that stand. At
        500 requests/s of gpt-oss-120b a plan without it, which also judged fewer engines that
        decode by new seeds, had 66 chips, one with it 63.
        """
        side = prompt_side(setting.option, setting.replicas)
        if side is None or side in self.late:
            return
        if side not in self._anew:
            self._judge_anew({side: setting}, ends_s)
        if side in self.late.unsure:
            self.late.add(side)

    def _judge_anew(self, sides: dict[PromptSide, Setting], ends_s: float) -> None:
        """By as many seeds as judge what a search finds, and others than those; where all seeds
        give the same requests there is nothing to judge.
        """
        tasks = {
            side: task_anew(self._question, setting, prompts_alone=True, ends_s=ends_s)
            for side, setting in sides.items()
        }
        of_ttft = {
            side: self._of_ttft(task)
            for side, task in tasks.items()
            if task.terms.window is not None
        }
        self._judge_in_turn(of_ttft, may_be_unsure=True)
        self._anew.update(sides)

    def _judge_in_turn(
        self, tasks: dict[PromptSide, SizeTask], *, may_be_unsure: bool = False
    ) -> set[PromptSide]:
        """Note which are late, or unsure if they may be; returns those that are in time by far."""
        asked = [(task, task.terms.seeds) for task in tasks.values()]
        clear = set[PromptSide]()
        for side, (found, _) in zip(tasks, check_in_turn(asked, self._workers), strict=True):
            if may_be_unsure and found.may_meet and not found.surely_meets:
                self.late.leave_open(side)
                continue
            self.late.add(side, is_late=not found.surely_meets)
            if all(
                term.again is not None and term.again.most_s <= CLEAR * term.limit_s
                for term in found.terms
            ):
                clear.add(side)
        return clear

    def _kept(self, sides: Sequence[PromptSide], are_in_time: Sequence[bool]) -> list[PromptSide]:
        """Those that may be; the others are late, and so are those that these say are."""
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
        return self._of_ttft(task)

    def _of_ttft(self, task: SizeTask) -> SizeTask:
        return replace(task, slo=Slo(bounds=self._bounds, words=self._question.slo.words))

"""What KV of FP8 would save a plan whose KV has 16 bits.

The model knows its bytes and not what it does to replies, so a plan does not choose it: it says
what the choice is worth, by the answer's own kind of partitions and the sizes just below it.
"""

from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from math import ceil
from typing import Final

from emulator.errors import ConfigError
from emulator.specs.precisions import kv_dtype, with_kv_dtype
from serving.analysis.plan.plan_options import NEAR, best_options, size_ends
from serving.analysis.plan.plan_pools import PoolKinds, partitions_of
from serving.analysis.plan.plan_question import PlanQuestion
from serving.analysis.plan.plan_race import Progress, Race, option_terms
from serving.analysis.plan.plan_search import first_that_holds
from serving.analysis.plan.plan_setting import Setting
from serving.analysis.plan.size_check import Check
from serving.analysis.plan.timed_run import OutOfTime
from serving.simulator import SimulationWorkers

NARROW: Final = "fp8"
LEAST: Final = 0.75
"""Of an engine's chips, and of the answer's: nothing smaller is tried."""
TRIES: Final = 2
"""Partitions, or units of pools, of each size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NarrowKv:
    """The fewest chips that keep the target with FP8 KV, by halves of the sizes below the plan's;
    None where none tried does. `tried`: the sizes that were, in chips. Not
    `is_whole`: the time was over before.
    """

    check: Check | None
    tried: tuple[int, ...] = ()
    is_whole: bool = True


def narrow_kv_of(
    question: PlanQuestion,
    setting: Setting,
    workers: SimulationWorkers,
    progress: Progress,
    *,
    ends_s: float,
) -> NarrowKv | None:
    """None where KV is as narrow already, or the chip has no FP8; raises OutOfTime before anything
    is known.
    """
    narrow = narrow_question(question, setting)
    if narrow is None:
        return None
    race = Race(narrow, workers, progress, ends_s=ends_s)
    terms = option_terms(narrow)
    tasks = [*narrow.sweep.tasks()]
    found = partitions_of(terms, tasks, workers, pools=setting.option.is_pooled)
    race.options = best_options(each.option for each in found)
    race.pools = PoolKinds(terms, found) if setting.option.is_pooled else None
    race.say(f"with KV of {NARROW}, sizes below {setting.chips:,} chips")
    is_whole, tried = True, list[int]()
    sizes = _sizes(setting.chips)

    def holds(place: int) -> bool:
        settings = race.settings(*sizes[place])
        has_passed = race.run(settings, first=True)
        tried.extend({each.chips for each in settings})
        return has_passed

    try:
        first_that_holds(-1, len(sizes), holds)
        while race.best is not None and not race.stands(race.best):
            pass  # it is refuted, and the next best is asked
    except OutOfTime:
        is_whole = False
        if not tried and race.best is None:
            raise
    check = None if race.best is None else race.checks[race.best]
    return NarrowKv(check=check, tried=tuple(sorted(set(tried))), is_whole=is_whole)


def _sizes(chips: int) -> list[tuple[int, int]]:
    """Below so many chips."""
    ends = size_ends(ceil(LEAST * chips) - 1, chips - 1, ratio=NEAR) if chips > 1 else []
    return [*pairwise(ends)]


def narrow_question(question: PlanQuestion, setting: Setting) -> PlanQuestion | None:
    """With FP8 KV, for engines as the answer's and somewhat smaller, as far as they were asked for,
    its policy and limits.
    """
    sweep, point = question.sweep, setting.option.point
    try:
        model = with_kv_dtype(NARROW, sweep.model, sweep.system.chip)
    except ConfigError:
        return None
    if kv_dtype(sweep.model) == NARROW:
        return None
    own = [each.partition for each in (setting.option.candidate, point.prefill) if each is not None]
    chips = {size for of in own for size in range(ceil(LEAST * of.chips), of.chips + 1)}
    if sweep.asked.chips:
        chips &= {*sweep.asked.chips}
    asked = replace(
        sweep.asked,
        chips=tuple(sorted(chips)),
        tp=tuple({of.tp for of in own}),
        lnc=tuple({of.lnc for of in own}),
        attention_split=tuple({of.attention_split for of in own}),
    )
    schedulers = question.check.schedulers
    if setting.limits is not None:
        schedulers = replace(schedulers, **asdict(setting.limits))
    search = replace(question.search, policies=(setting.policy,), other_limits=(), tries=TRIES)
    return replace(
        question,
        sweep=replace(sweep, model=model, asked=asked, precisions=(point.precision,)),
        check=replace(question.check, schedulers=schedulers),
        search=search,
    )

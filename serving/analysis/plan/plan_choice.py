"""A plan's partition, prefill policy and size: the cheapest that passes simulation, by default the
fewest chips.

The steady state proposes, settings race in virtual time; what comes nearest for less is shown
beside the answer.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import compress
from typing import Final

from emulator.errors import ConfigError
from loadgen.measures.slo import Slo
from loadgen.records.plain_number import counted
from serving.analysis.plan.plan_check import check_sizes
from serving.analysis.plan.plan_cost import LESS, Cost
from serving.analysis.plan.plan_options import Option, OptionTerms, best_options, near_sizes
from serving.analysis.plan.plan_pools import PlanPartition, PoolKinds, partitions_of
from serving.analysis.plan.plan_question import Minimised, PlanQuestion
from serving.analysis.plan.plan_race import Progress, Race, option_terms
from serving.analysis.plan.plan_reason import missed_because
from serving.analysis.plan.plan_search import (
    fewer_replicas,
    fewer_to_decode,
    first_answer,
    search,
    search_deeper,
)
from serving.analysis.plan.plan_setting import Setting
from serving.analysis.plan.plan_task import FRESH_TIMES
from serving.analysis.plan.size_check import Check, quality
from serving.analysis.plan.timed_run import OutOfTime
from serving.analysis.steady_state.sweep import Task
from serving.simulator import SimulationWorkers

NEARLY: Final = 1.25
"""Times the answer's chips, or what is minimised, that count as nearly as good."""
SHOWN: Final = 5
SEARCH_SHARE: Final = 0.7
"""Of the budget; the rest is for margins and ranges of what was found."""
ALONE_SHARE: Final = 0.85
"""Of the budget, without margins."""
SMALLER_SHARE: Final = 0.9
"""Of the budget, by when what is smaller is shown as far as it is known."""
_CUT_SHORT: Final = (
    "the search was cut short: a setting {} may keep the target too, less is known of those"
)
_GIB: Final = 2**30


class TargetOutOfReach(ConfigError):
    """An idle replica does not keep the target, however many there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The plan's setting, what comes nearest for less, and all that was tried.

    Attributes:
        cost: in what is minimised; `fewest` is the setting with the fewest chips that passed.
        smaller: None: nothing smaller was tried; `smaller_words` say why, or which it is, and
            `smaller_misses` why it misses the target.
        other_kind: of pools, or of engines that compute their own prompts, whichever the setting is
            not: the cheapest that passed, or else what came nearest; `other_misses` why it misses.
        frontier: other partitions that keep the target, nearly as good, the best first.
        tried: of each setting the longest simulation; `passed` are those that keep the target.
        options, pools: partitions and pools that could race.
        is_whole: the search came to its end; `is_interrupted`: a signal ended it.
    """

    setting: Setting
    check: Check
    cost: Cost
    fewest: Setting
    fewest_cost: Cost
    smaller: Check | None
    smaller_words: str
    smaller_misses: tuple[str, ...]
    other_kind: Check | None
    other_misses: tuple[str, ...]
    frontier: tuple[Check, ...]
    tried: tuple[Check, ...]
    passed: tuple[tuple[Setting, Check], ...]
    options: tuple[Option, ...]
    pools: PoolKinds | None
    is_whole: bool
    is_interrupted: bool


def choose(question: PlanQuestion, workers: SimulationWorkers, progress: Progress) -> Choice:
    """Find the size. Raises ConfigError when no tried setting meets the target.

    An interrupt, or the end of its share of the question's budget, ends the search with the best so
    far.
    """
    share = SEARCH_SHARE if question.margins else ALONE_SHARE
    begun_s = time.monotonic()
    ends_s = begun_s + share * question.search.budget_s
    terms = option_terms(question)
    race = Race(question, workers, progress, ends_s=ends_s)
    is_whole, is_interrupted = _as_far_as_time_lasts(
        race, workers, lambda: _search_all(race, question, terms, workers)
    )
    stand_s = begun_s + SMALLER_SHARE * question.search.budget_s
    if not is_interrupted:
        race.ends_s = stand_s
        stood, is_interrupted = _as_far_as_time_lasts(
            race, workers, partial(_until_it_stands, race)
        )
        is_whole = is_whole and stood
    if not is_interrupted:
        race.ends_s = ends_s
        _, is_interrupted = _as_far_as_time_lasts(race, workers, partial(_deeper, race))
    best = race.standing or race.best or race.perhaps
    if best is None:
        raise _never_met(race, question.slo)
    smaller: Check | None = None
    words, misses = "", tuple[str, ...]()
    if not is_interrupted:
        smaller, words, misses = _smaller(race, best, question, workers, is_whole=is_whole)
    if not is_whole:
        words = ", ".join(filter(None, (_CUT_SHORT.format(LESS[question.minimise]), words)))
    fewest = race.fewest or best
    other = _other_kind(race, best)
    return Choice(
        setting=best,
        check=race.checks[best],
        cost=race.cost(best),
        fewest=fewest,
        fewest_cost=race.cost(fewest),
        smaller=smaller,
        smaller_words=words,
        smaller_misses=misses,
        other_kind=None if other is None else race.checks[other],
        other_misses=()
        if other is None
        else tuple(missed_because(race.checks[other], other, race.rate_per_s)),
        frontier=tuple(race.checks[each] for each in _nearly_as_good(race, best)),
        tried=tuple(race.checks.values()),
        passed=tuple((each, race.checks[each]) for each in race.passed),
        options=race.options,
        pools=race.pools,
        is_whole=is_whole,
        is_interrupted=is_interrupted,
    )


def _as_far_as_time_lasts(
    race: Race, workers: SimulationWorkers, work: Callable[[], None]
) -> tuple[bool, bool]:
    """Whether it came to its end, and whether an interrupt ended it; the best so far is known.

    Raises KeyboardInterrupt where nothing is.
    """
    try:
        work()
    except KeyboardInterrupt:
        if race.best is None:
            raise
        workers.stop()
        return False, True
    except OutOfTime:
        return False, False
    return True, False


def _until_it_stands(race: Race) -> None:
    """Judge the best once more, by new seeds; where they refute it, look for the next best: among
    what has seemed to keep the target, then among all.
    """
    is_searched, refuted_chips = True, 0
    while True:
        best = race.best
        if best is not None and not race.stands(best):
            is_searched, refuted_chips = False, best.chips
            fewer_replicas(race)
            continue
        stands = race.best
        race.confirm_what_seems()
        if race.best != stands:
            continue
        if is_searched:
            return
        race.say("searching all sizes below, without what new seeds refuted")
        if race.best is None:
            first_answer(race)
        search(race, refuted_chips=refuted_chips)
        is_searched = True


def _deeper(race: Race) -> None:
    """Look for what stands among more settings near the best."""
    search_deeper(race)
    while race.best is not None and race.best != race.standing:
        if race.stands(race.best):
            return
        if race.best == race.standing:
            search_deeper(race)  # now without what new seeds refuted


def _search_all(
    race: Race, question: PlanQuestion, terms: OptionTerms, workers: SimulationWorkers
) -> None:
    """Search among a few partitions, then one of each shape, then all: each time below the best."""
    tasks = _near(question, question.sweep.tasks())
    machine_chips = question.sweep.system.chips.count
    costed: dict[Task, PlanPartition | None] = {}
    each_s = 0.0
    for part in (_quick(tasks, machine_chips), _one_layout(tasks), tasks):
        within = _no_larger_than_best(part, race)
        new = [task for task in within if task not in costed]
        begun_s = time.monotonic()
        if begun_s + each_s * len(new) > race.ends_s:
            raise OutOfTime
        costed |= dict.fromkeys(new)  # None where the longest request does not fit
        costed |= {of.task: of for of in partitions_of(terms, new, workers, pools=question.pools)}
        each_s = (time.monotonic() - begun_s) / max(1, len(new))
        found = [each for task in within if (each := costed[task]) is not None]
        race.options = best_options(each.option for each in found)
        race.pools = pools = PoolKinds(terms, found)
        if race.best is None and part is not tasks:
            first_answer(race)
            while race.best is not None and not race.stands(race.best):  # so that one does
                first_answer(race)
            fewer_to_decode(race)
        else:
            race.say(f"{len(within):,} partitions; searching all sizes below")
            search(race)
    if not pools.can_meet and not any(each.meets for each in race.options):
        raise _out_of_reach(race.options, question.slo)


def _no_larger_than_best(tasks: Sequence[Task], race: Race) -> Sequence[Task]:
    """Without what surely costs more."""
    if race.best is None or not race.only_chips:
        return tasks
    return [task for task in tasks if task[1].partition.chips <= race.best.chips]


def _quick(tasks: Sequence[Task], machine_chips: int) -> list[Task]:
    """Return the partitions that race for the first answer, as costing all takes most of a minute.

    These are even parts of a machine; where `tp` does not divide the machine, no even part has such
    ranks, and all sizes are kept (a heuristic: few have such ranks). Of each the one with the most
    expert ranks, in the last layout of logical cores and attention, which divides the most.
    """
    found: dict[tuple[str, int, int], Task] = {}
    for task in tasks:
        partition = task[1].partition
        if machine_chips % partition.chips == 0 or machine_chips % partition.tp:
            key = (task[0], partition.chips, partition.tp)
            if partition.ep >= found.setdefault(key, task)[1].partition.ep:
                found[key] = task
    return [*found.values()] or [*tasks]


def _one_layout(tasks: Sequence[Task]) -> list[Task]:
    """Of layouts of logical cores and attention the last one, which divides the most."""
    return [
        *{
            (precision, of.partition.chips, of.partition.tp, of.partition.ep): (precision, of)
            for precision, of in tasks
        }.values()
    ]


def _near(question: PlanQuestion, tasks: Sequence[Task]) -> list[Task]:
    """Leave out sizes of replicas for which near ones stand, unless chips were asked for.

    Where `tp` does not divide the machine all sizes stay: near ones seldom have such ranks. With
    other `tp` a size goes though the near one that stands for it may have other ranks.
    """
    if question.sweep.asked.chips:
        return [*tasks]
    sizes = sorted({candidate.partition.chips for _, candidate in tasks})
    machine_chips = question.sweep.system.chips.count
    near = near_sizes(sizes, machine_chips)
    partitions = [task[1].partition for task in tasks]
    are_kept = [each.chips in near or machine_chips % each.tp for each in partitions]
    return [*compress(tasks, are_kept)]


def _nearly_as_good(race: Race, best: Setting) -> list[Setting]:
    """Of each other partition, policy and limits the cheapest that passes."""
    seen = {best.kind}
    found: list[Setting] = []
    most = NEARLY * race.cost(best)[0]
    order = sorted(race.passed, key=lambda each: (race.cost(each), -quality(race.checks[each])[1]))
    for setting in order:
        if setting.kind not in seen and race.cost(setting)[0] <= most:
            seen.add(setting.kind)
            found.append(setting)
    return found[:SHOWN]


def _other_kind(race: Race, best: Setting) -> Setting | None:
    """The best setting simulated that has pools where `best` has none, or the other way round."""
    others = [each for each in race.checks if each.option.is_pooled != best.option.is_pooled]
    passed = [each for each in race.passed if each in others]
    if passed:
        return min(passed, key=race.cost)
    return max(others, key=lambda each: quality(race.checks[each]), default=None)


def _smaller(
    race: Race,
    best: Setting,
    question: PlanQuestion,
    workers: SimulationWorkers,
    *,
    is_whole: bool,
) -> tuple[Check | None, str, tuple[str, ...]]:
    """What came nearest for less, run until all is known if time lasts; which it is, and
    what it misses.
    """
    cost = race.cost(best)
    fewer = [each for each in race.checks if race.cost(each) < cost]
    if not fewer and (not is_whole or question.minimise is not Minimised.CHIPS):
        return None, f"nothing {LESS[question.minimise]} was tried", ()
    if not fewer:
        return None, _no_room(question, best.option.replica_chips * best.replicas - 1), ()
    judged = question.check.judged  # by fewer requests little is known

    def nearness(setting: Setting) -> tuple[bool, tuple[float, float]]:
        return race.checks[setting].requests >= judged, quality(race.checks[setting])

    nearest = max(fewer, key=nearness)
    check = race.checks[nearest]
    if any(term.reached_s is None for term in check.terms):
        judged = FRESH_TIMES * question.check.judged
        task = race.task(nearest, judged=judged, is_fresh=True, early_end=False)
        with suppress(OutOfTime):
            (check,) = check_sizes([task], workers)
    words = f"{LESS[question.minimise]}, of {counted(len(fewer), 'setting')} the nearest"
    return check, words, tuple(missed_because(check, nearest, race.rate_per_s))


def _no_room(question: PlanQuestion, chips: int) -> str:
    sweep, demand = question.sweep, question.demand
    model = sweep.model_at(sweep.precisions[0])
    longest = int((demand.peak.prompt_tokens + demand.peak.output_tokens).max())
    if not chips:
        return "there is none: the plan is one chip"
    usable = chips * sweep.system.chip.hbm_bytes * sweep.terms.utilization / _GIB
    return (
        f"nothing smaller was tried: no partition of up to {chips} chips, of those asked for, both "
        "holds the model and takes the load; the weights alone are "
        f"{model.weight_bytes / _GIB:,.1f} of the {usable:,.1f} GiB that {chips} may use, beside "
        f"each chip's reserves and the {longest:,} tokens of the longest request on every rank"
    )


def _out_of_reach(options: Sequence[Option], slo: Slo) -> TargetOutOfReach:
    if not options:
        expected = "shorter requests: no partition has room for the KV of a mean one"
        return TargetOutOfReach("slo", slo, expected)
    tpot_ms = min(option.alone_ns for option in options) / 1e6
    ttft_ms = min(option.prompt_ns for option in options) / 1e6
    return TargetOutOfReach(
        "slo",
        slo,
        f"what an idle replica can do: at best TPOT {tpot_ms:.3g} ms, and TTFT "
        f"{ttft_ms:.3g} ms for a prompt at that percentile",
    )


def _never_met(race: Race, slo: Slo) -> ConfigError:
    if not race.checks:
        return ConfigError("budget", "", "more time: nothing was simulated within it")
    nearest = max(race.checks, key=lambda each: quality(race.checks[each]))
    check = race.checks[nearest]
    shares = ", ".join(term.share_words for term in check.terms)
    return ConfigError(
        "slo",
        slo,
        f"a looser one, or more --requests, --tries or --budget: of {len(race.checks):,} settings "
        f"{nearest.words} came nearest, {shares}; "
        + "; ".join(missed_because(check, nearest, race.rate_per_s)),
    )

"""The race of a plan's settings: partition, prefill policy and replicas, by simulation.

Settings of about equally many chips run against each other on the same arrivals. Most are out after
a few requests; what is left is judged by more of them, and the best at last by long runs of seeds
that had no part in their choice. That a larger size passes where a smaller one does is not assumed.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import ceil
from typing import Final

import numpy as np

from serving.analysis.plan.class_demand import steady_target
from serving.analysis.plan.kept_runs import KeptRuns
from serving.analysis.plan.plan_check import (
    RUNS_AT_ONCE,
    SizeTask,
    check_by_seed,
    check_in_turn,
    check_sizes,
)
from serving.analysis.plan.plan_cost import (
    Cost,
    cost_of,
    cost_words,
    fleet_of,
    replicas_per_machine,
    steady_watts,
)
from serving.analysis.plan.plan_options import Option, OptionTerms
from serving.analysis.plan.plan_pools import PoolKinds
from serving.analysis.plan.plan_question import Minimised, PlanQuestion
from serving.analysis.plan.plan_setting import Setting
from serving.analysis.plan.plan_task import FIRST_SHARE, FRESH_TIMES, size_task, task_anew
from serving.analysis.plan.prompt_sides import PromptSides
from serving.analysis.plan.size_check import Check, quality
from serving.analysis.plan.timed_run import OutOfTime
from serving.simulator import SimulationWorkers
from serving.traffic.engine_limits import BatchLimits

LAST_TIMES: Final = 4
"""Times the requests to judge, in the last heat."""
_CONFIRMED: Final = 2
KEPT: Final = 3
"""One of so many stays in the race after a heat."""
FIRST_KEPT: Final = 6
"""The same, in a race for the first answer."""
FIRST_TRIES: Final = 2
"""Units of pools in it, which take the longest to simulate."""
PROVEN: Final = 2
"""Units of other sizes that go on to a size, beside those that the steady state ranks first."""
POLICIES_KEPT: Final = 3
"""That go on to the next sizes: those that have done best, and another by turns."""
HOPELESS: Final = 0.5
"""Of requests: where of the partitions, or the pools, that race at a size none keeps the target for
so many, none of clearly fewer chips are tried.
"""
CLEARLY: Final = 0.9
NEAREST: Final = 3
"""Settings that are tried under other batch limits, at a time."""
TASKS_OF_WORKER: Final = 2
"""At once, between two looks at the time."""

NO_POLICY: Final = ("none",)
"""Of pools, in which prompts hold up no decodes."""

Progress = Callable[[str], None]


def option_terms(question: PlanQuestion, limits: BatchLimits | None = None) -> OptionTerms:
    """What partitions are asked, under the question's own limits or others."""
    limits = limits or question.check.schedulers.batch
    shape = replace(question.sweep.shape, batched_tokens_max=limits.max_num_batched_tokens)
    sweep = replace(question.sweep, shape=shape)
    return OptionTerms.of(sweep, question.demand, question.slo, seats=limits.max_num_seqs)


class Race:
    """Settings for a question, and what the simulation of each has shown.

    `ends_s` is on `time.monotonic`'s clock; what is asked or runs after it raises OutOfTime.
    """

    def __init__(
        self,
        question: PlanQuestion,
        workers: SimulationWorkers,
        progress: Progress,
        *,
        ends_s: float = float("inf"),
    ) -> None:
        self._question = question
        self._workers = KeptRuns(workers)
        self._progress = progress
        self.ends_s = ends_s
        self._begun_s = time.monotonic()
        self.tries = question.search.tries
        self.rate_per_s = question.demand.peak_rate_per_s
        self._steady_slo, _ = steady_target(question.demand, question.slo)
        self._places: dict[str, list[float]] = defaultdict(list)  # of each policy, 0 the best
        self._turn = 0
        self._seemed: Setting | None = None
        self._hopeless_chips = {False: 0, True: 0}  # of partitions, and of pools
        self.options: tuple[Option, ...] = ()
        self.pools: PoolKinds | None = None
        """Partitions that may race, and pools."""
        self._terms: dict[BatchLimits, OptionTerms] = {}
        self._limited: set[tuple[Setting, BatchLimits]] = set()  # tried under other limits
        self.checks: dict[Setting, Check] = {}
        """Of each setting the longest."""
        self._sides = PromptSides(question, self._workers)
        self._known: dict[tuple[Setting, int, bool], Check] = {}
        self._seeming: list[Setting] = []  # those that passed the last heat, unconfirmed ones too
        self.passed: list[Setting] = []
        """Those that surely keep the target after the last heat."""
        self._refuted: set[tuple[int, tuple[object, ...]]] = set()  # by seeds that none has seen
        self._hardest_seed: int | None = None  # the one of them that refuted the last setting
        self._withstood: set[tuple[Setting, int]] = set()  # such a seed
        self.standing: Setting | None = None
        """Of those that such seeds bear out one that costs the least."""

    @property
    def only_chips(self) -> bool:
        """Whether nothing else than chips is minimised."""
        return self._question.minimise is Minimised.CHIPS

    @property
    def best(self) -> Setting | None:
        """Of those that passed one that costs the least."""
        return min(self.passed, key=self.cost, default=None)

    @property
    def fewest(self) -> Setting | None:
        """Of those that passed one with the fewest chips."""
        return min(self.passed, key=lambda each: each.chips, default=None)

    @property
    def perhaps(self) -> Setting | None:
        """What costs the least and keeps the target, but not surely: too few requests tell."""
        judged = self._question.check.judged
        kept = [each for each, of in self.checks.items() if of.meets and of.requests >= judged]
        return min(kept, key=self.cost, default=None)

    def cost(self, setting: Setting) -> Cost:
        """By the power that its longest simulation has shown; before any, an estimate."""
        check = self.checks.get(setting)
        if check is None:
            return self._steady_cost(setting.option, setting.replicas)
        watts = check.replica_chip_watts
        fleet = fleet_of(self._question, setting.option, setting.replicas, watts)
        return cost_of(self._question, fleet)

    def _steady_cost(self, option: Option, replicas: int) -> Cost:
        watts = steady_watts(self._question, option, self.rate_per_s / replicas)
        return cost_of(self._question, fleet_of(self._question, option, replicas, watts))

    def settings(self, above: int, most: int, *, first: bool = False) -> list[Setting]:
        """The most promising of more than `above` and up to `most` chips that may cost less than
        the best one.

        Of partitions those with the lowest load, in what is left of the time to a long prompt's
        first token; of pools as `PoolKinds.promising` says. `first`: with fewer policies.
        """
        search, found = self._question.search, list[tuple[float, Option, int]]()
        bound = self._bound
        is_hopeless = {
            is_pooled: most < CLEARLY * chips for is_pooled, chips in self._hopeless_chips.items()
        }
        for option in () if is_hopeless[False] else self.options:
            lasts = most // option.replica_chips * option.most_requests_per_s >= self.rate_per_s
            replicas = self._cheaper(option, above, most, bound) if option.meets and lasts else 0
            if replicas * option.most_requests_per_s >= self.rate_per_s:
                load = self.rate_per_s / (replicas * option.promise(self._steady_slo))
                found.append((load, option, replicas))
        alone = [(option, count) for _, option, count in sorted(found, key=lambda each: each[0])]
        pooled: list[tuple[Option, int]] = []
        if self.pools is not None and not is_hopeless[True]:
            tries = min(self.tries, FIRST_TRIES) if first else self.tries
            promising = self._promising_units(self.pools, above, most, tries)
            units = [(option, option.replicas) for option in promising]
            units += self._proven_units(above, most, beside=promising)
            pooled = [each for each in units if self._steady_cost(*each) < bound]
        policies = search.policies[:POLICIES_KEPT] if first else self._promising_policies()
        return [
            Setting(option=option, policy=policy, replicas=replicas)
            for sized, several in ((alone[: self.tries], policies), (pooled, NO_POLICY))
            for option, replicas in sized
            for policy in several
        ]

    def _promising_units(self, pools: PoolKinds, above: int, most: int, tries: int) -> list[Option]:
        """Return the most promising units, without those whose engines for prompts are late.

        What replaces a late one may be late too, so that it goes on until nothing new is judged.
        """
        while True:
            promising = [each for _, each in pools.promising(above, most, tries, self._sides.late)]
            settings = [
                Setting(option=each, policy=NO_POLICY[0], replicas=each.replicas)
                for each in promising
            ]
            if not self._sides.judge(settings, ends_s=self.ends_s):
                return promising

    def _proven_units(
        self, above: int, most: int, *, beside: Sequence[Option]
    ) -> list[tuple[Option, int]]:
        """The units that seemed to keep the target with the fewest chips, each as often as there is
        room: how near the steady state thinks a unit to its limits need not be how near it is.
        """
        seen = {(each.candidate, each.point.prefill) for each in beside}
        found: list[tuple[Option, int]] = []
        for setting in sorted(self._seeming, key=lambda each: each.chips):
            option, count = setting.option, most // setting.option.replica_chips
            lasts = count * option.most_requests_per_s >= self.rate_per_s
            unit = option.candidate, option.point.prefill
            fits = option.is_pooled and lasts and count * option.replica_chips > above
            if fits and unit not in seen and len(found) < PROVEN:
                seen.add(unit)
                found.append((option, count))
        return found

    @property
    def _bound(self) -> Cost:
        """What the best one costs."""
        return (float("inf"), 0) if self.best is None else self.cost(self.best)

    def _cheaper(self, option: Option, above: int, most: int, bound: Cost) -> int:
        """The most replicas of more than `above` and up to `most` chips below `bound`; 0: none.

        Where not chips are minimised, one more machine is more than all else of a size's costs.
        """
        fewest, upto = above // option.replica_chips + 1, most // option.replica_chips
        if not self.only_chips:
            on_machine = replicas_per_machine(self._question, option)
            upto = min(upto, -(-fewest // on_machine) * on_machine)
        for count in range(upto, fewest - 1, -1):
            if self._steady_cost(option, count) < bound:
                return count
        return 0

    def _promising_policies(self) -> Sequence[str]:
        policies = self._question.search.policies
        if any(policy not in self._places for policy in policies):
            return policies
        ranked = sorted(policies, key=lambda each: float(np.mean(self._places[each])))
        kept, others = ranked[:POLICIES_KEPT], ranked[POLICIES_KEPT:]
        if not others:
            return kept
        self._turn += 1
        return [*kept, others[self._turn % len(others)]]

    def run_under_other_limits(self) -> bool:
        """Race what comes nearest to the target, of what costs less than the best one, under each
        of the other limits; returns whether any passes. What has been tried is not tried again, and
        nothing is raced that the limits do not change. Pools keep theirs: their steps are apart.
        """
        bound, judged = self._bound, ceil(self._question.check.judged / FIRST_SHARE)
        near = [
            each
            for each in self.checks
            if each.limits is None and not each.option.is_pooled and self.cost(each) < bound
        ]
        near.sort(key=lambda each: quality(self.checks[each]), reverse=True)
        field = []
        for setting, limits in product(near[:NEAREST], self._question.search.other_limits):
            if (setting, limits) not in self._limited:
                self._limited.add((setting, limits))
                limited = self._under(limits, setting)
                field += [] if limited is None else [(setting, limited)]
        own = self._simulated([setting for setting, _ in field], judged)
        others = self._simulated([limited for _, limited in field], judged)
        changed = []
        for (_, limited), before, after in zip(field, own, others, strict=True):
            if (before.steps, before.percentiles_s) != (after.steps, after.percentiles_s):
                changed.append(limited)
            else:
                del self.checks[limited]
        return self.run(changed, first=True)

    def _under(self, limits: BatchLimits, setting: Setting) -> Setting | None:
        """The setting under these limits; None where it cannot serve the load."""
        if limits not in self._terms:
            self._terms[limits] = option_terms(self._question, limits)
        option = setting.option
        limited = self._terms[limits].option((option.point.precision, option.candidate))
        if limited is None or not limited.meets:
            return None
        most_requests_per_s = limited.most_requests_per_s
        if setting.replicas * most_requests_per_s < self.rate_per_s:
            return None
        option = replace(option, most_requests_per_s=most_requests_per_s)
        return replace(setting, option=option, limits=limits)

    def run(self, settings: Sequence[Setting], *, first: bool = False) -> bool:
        """`heats`, and `confirm` what seems to keep the target; returns whether any surely does."""
        return self.confirm(self.heats(settings, first=first))

    def heats(
        self,
        settings: Sequence[Setting],
        *,
        first: bool = False,
        every: bool = False,
        by_hardest: bool = True,
    ) -> list[Setting]:
        """Race them; returns those that seem to keep the target, the best two or `every` one. A
        `first` race, of a few, says nothing of others. `by_hardest`: also by the new seed that
        refuted the last setting.
        """
        judged, bound = self._question.check.judged, self._bound
        settings = self._unrefuted(settings)
        field, checks = settings, self._simulated(settings, ceil(judged / FIRST_SHARE))
        for place, each in enumerate(_by_quality(checks)):
            if not field[each].option.is_pooled:
                self._places[field[each].policy].append(place / len(field))
        if not first:
            self._note_hopeless(field, checks)
        kept = len(field)
        for times in (1, LAST_TIMES):
            kept = ceil(min(kept, len(field)) / (1 if every else FIRST_KEPT if first else KEPT))
            known = dict(zip(field, checks, strict=True))
            field = [field[each] for each in _by_quality(checks) if checks[each].may_meet]
            field = [each for each in field if self.cost(each) < bound]
            checks = [known[each] for each in field]
            if times == 1 and all(check.requests >= judged for check in checks[:kept]):
                continue  # A high rate's first heat has judged as many as the second does.
            field = self._through_hardest(field, kept) if by_hardest else field[:kept]
            checks = self._simulated(field, times * judged)
            self._say_perhaps()
        field = [field[each] for each in _by_quality(checks) if checks[each].meets]
        self._seeming += field
        if not self.only_chips:  # of which all have about as many
            field.sort(key=self.cost)
        return field if every else field[:_CONFIRMED]

    def confirm(self, field: Sequence[Setting]) -> bool:
        """Judge them by fresh seeds, and note each that passes as it comes, since time may be over
        during the next; returns whether any did.
        """
        judged, known = FRESH_TIMES * self._question.check.judged, len(self.passed)
        for setting, check in self._simulations(self._unrefuted(field), judged, is_fresh=True):
            if check.surely_meets:
                before, through = self.best, [*self.passed[known:], setting]
                through.sort(key=lambda each: quality(self.checks[each]), reverse=True)
                self.passed[known:] = through
                if (best := self.best) is not None and best is not before:
                    cost = cost_words(self._question.minimise, self.cost(best))
                    self.say(f"{cost} keep the target: {best.words}")
        return len(self.passed) > known

    def confirm_what_seems(self) -> None:
        """Confirm what passed a last heat and costs less than the best, that which costs the least
        first, until one of it passes.
        """
        for setting in sorted(dict.fromkeys(self._seeming), key=self.cost):
            if self.cost(setting) >= self._bound or self.confirm([setting]):
                break

    def stands(self, setting: Setting) -> bool:
        """Judge a setting that passed once more, by more new seeds: what a search finds to be the
        smallest has been lucky with those that all it looked at were judged by. Raises OutOfTime.
        """
        if setting == self.standing:
            return True
        if time.monotonic() > self.ends_s:
            raise OutOfTime
        task = self.task_anew(setting)
        in_turn = sorted(task.terms.seeds, key=lambda seed: seed != self._hardest_seed)
        ((check, worst),) = check_in_turn([(task, in_turn)], self._workers)
        self._hardest_seed = self._hardest_seed if worst is None else worst
        self.checks[setting] = check
        if not check.surely_meets:
            self._refute(setting)
            if any(term.name == "ttft" and term.is_why_refuted for term in check.terms):
                self._sides.doubt(setting, ends_s=self.ends_s)
        elif self.standing is None or self.cost(setting) < self.cost(self.standing):
            self.standing = setting
        return check.surely_meets

    def _through_hardest(self, field: Sequence[Setting], most: int) -> list[Setting]:
        """The first `most` of them that the new seed which refuted the last setting does not."""
        if (seed := self._hardest_seed) is None:
            return [*field[:most]]
        found: list[Setting] = []
        for first in range(0, len(field), RUNS_AT_ONCE):
            part = self._unrefuted(field[first : first + RUNS_AT_ONCE])
            new = [each for each in part if (each, seed) not in self._withstood]
            tasks = [self.task_anew(each) for each in new]
            checks = check_by_seed(tasks, seed, self._workers)
            for setting, (check, may_be_sure) in zip(new, checks, strict=True):
                if may_be_sure:
                    self._withstood.add((setting, seed))
                else:
                    self.checks[setting] = check
                    self._refute(setting)
            found += self._unrefuted(part)
            if len(found) >= most:
                break
        return found[:most]

    def _refute(self, setting: Setting) -> None:
        self._refuted.add((setting.replicas, setting.kind))
        if setting in self.passed:
            # Units whose engines for prompts are doubted meanwhile are judged by their own runs.
            self.passed = [each for each in self.passed if not self._is_refuted(each)]
            self.say(f"not by new seeds: {setting.words}")

    def task_anew(self, setting: Setting) -> SizeTask:
        """To judge a setting by seeds that no heat and no confirmation has seen."""
        return task_anew(self._question, setting, ends_s=self.ends_s)

    def _unrefuted(self, settings: Sequence[Setting]) -> list[Setting]:
        in_time = self._sides.in_time(settings)
        return [each for each in in_time if not self._is_refuted(each)]

    def _is_refuted(self, setting: Setting) -> bool:
        return (setting.replicas, setting.kind) in self._refuted

    def _say_perhaps(self) -> None:
        """While nothing is sure, show what seems to be so."""
        seems = self.perhaps
        if self.best is None and seems is not None and seems != self._seemed:
            self._seemed = seems
            requests = self.checks[seems].requests
            self.say(f"{seems.chips:,} chips seem to, by {requests:,} requests: {seems.words}")

    def _note_hopeless(self, field: Sequence[Setting], checks: Sequence[Check]) -> None:
        for is_pooled, most_chips in self._hopeless_chips.items():
            of_kind = [
                (min(term.share for term in check.terms), setting.chips)
                for setting, check in zip(field, checks, strict=True)
                if setting.option.is_pooled == is_pooled
            ]
            if of_kind and max(share for share, _ in of_kind) < HOPELESS:
                chips = max(chips for _, chips in of_kind)
                self._hopeless_chips[is_pooled] = max(most_chips, chips)

    def say(self, words: str) -> None:
        """Show progress, with the time since the beginning."""
        self._progress(f"{time.monotonic() - self._begun_s:6.1f} s  {words}")

    def _simulated(self, field: Sequence[Setting], judged: int) -> list[Check]:
        return [check for _, check in self._simulations(field, judged)]

    def _simulations(
        self, field: Sequence[Setting], judged: int, *, is_fresh: bool = False
    ) -> Iterator[tuple[Setting, Check]]:
        """Each of them, known as soon as it is there; raises OutOfTime."""
        count = self._workers.count
        # Fresh runs are long, and one often tells: of a setting a few run at once.
        step = max(1, count // RUNS_AT_ONCE) if is_fresh else TASKS_OF_WORKER * count
        for first in range(0, len(field), step):
            if time.monotonic() > self.ends_s:
                raise OutOfTime
            part = field[first : first + step]
            new = [each for each in part if (each, judged, is_fresh) not in self._known]
            tasks = [self.task(each, judged=judged, is_fresh=is_fresh) for each in new]
            if is_fresh:
                in_turn = check_in_turn([(each, each.terms.seeds) for each in tasks], self._workers)
                checks = [check for check, _ in in_turn]
            else:
                checks = check_sizes(tasks, self._workers)
            for setting, check in zip(new, checks, strict=True):
                self._known[setting, judged, is_fresh] = check
                longest = self.checks.setdefault(setting, check)
                self.checks[setting] = check if check.requests >= longest.requests else longest
            yield from ((each, self._known[each, judged, is_fresh]) for each in part)

    def task(
        self,
        setting: Setting,
        *,
        judged: int,
        is_fresh: bool = False,
        early_end: bool = True,
    ) -> SizeTask:
        """To judge a setting by so many requests; if `is_fresh` in each of several fresh runs."""
        return size_task(
            self._question,
            setting,
            judged=judged,
            is_fresh=is_fresh,
            early_end=early_end,
            ends_s=self.ends_s,
        )


def _by_quality(checks: Sequence[Check]) -> list[int]:
    """Places of `checks`, the best first."""
    return sorted(range(len(checks)), key=lambda each: quality(checks[each]), reverse=True)

"""The cheapest setting whose target is kept by what comes after a loss of chips, too.

Three ways are tried on each setting that keeps the target without a loss: spare chips beside each
engine, which take the seats of lost ones; engines more on one side of a unit of pools; and whole
replicas more. Where others stand for them, engines that lose chips are taken out of service, and
what is left has to keep the target for the whole traffic. Each side of a unit has its own way: that
a larger other side does no harm is assumed. Larger settings are raced, too, where what they need
for the loss may make them cheaper in the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from typing import Final

from serving.analysis.plan.plan_check import SizeTask, check_sizes
from serving.analysis.plan.plan_choice import Choice
from serving.analysis.plan.plan_cost import (
    Cost,
    cost_of,
    cost_words,
    fleet_of,
    replicas_per_machine,
    steady_watts,
)
from serving.analysis.plan.plan_margins import LOSS_S, EngineSide, Loss, hit, lost_words, sides_of
from serving.analysis.plan.plan_options import Option, size_ends
from serving.analysis.plan.plan_question import LostPart, PlanQuestion
from serving.analysis.plan.plan_race import LAST_TIMES, NO_POLICY, Race
from serving.analysis.plan.plan_setting import Setting
from serving.analysis.plan.plan_task import FRESH_TIMES
from serving.analysis.plan.size_check import Check
from serving.analysis.plan.timed_run import OutOfTime
from serving.simulator import SimulationWorkers

LARGER: Final = 1.1
"""Ratio of sizes above the fewest chips."""
UNITS: Final = 48
"""Units of pools of about a size, of which a few race."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptLoss:
    """The answer's setting, with all that it has for the loss, beside the one `without`.

    Attributes:
        check: before the loss; `losses` have those after it, of each kind of engine.
        machines: bought, over which replicas are spread evenly where one may be lost; 0: as few as
            hold them.
        is_whole: all cheaper ways were tried; else the time was over.
    """

    lost: LostPart
    setting: Setting
    check: Check
    cost: Cost
    machines: int
    losses: tuple[Loss, ...]
    without: Check
    without_cost: Cost
    is_whole: bool

    @property
    def most_of_machine(self) -> int | None:
        """Replicas that a machine may hold at most, so that it may be lost with all of them; None:
        as many as have room, since less is lost at once.
        """
        if self.lost is not LostPart.MACHINE:
            return None
        return self.setting.replicas - min(loss.replicas_left for loss in self.losses)


def kept_through(
    question: PlanQuestion, choice: Choice, race: Race, workers: SimulationWorkers, *, ends_s: float
) -> KeptLoss | None:
    """Search until the race's end; what is found is simulated once more, until `ends_s` of
    `time.monotonic`. None where there is no time for that.
    """
    ways = _Ways(question, race, workers)
    is_whole = True
    try:
        ways.look(choice.setting, choice.check)
        for setting, check in sorted(choice.passed, key=lambda each: each[0].chips):
            if setting != choice.setting:
                ways.look(setting, check)
        _race_larger(question, choice, ways, workers)
    except OutOfTime:
        is_whole = False
    way = ways.best
    assert way is not None  # more replicas always do
    race.ends_s = ends_s
    judged = FRESH_TIMES * question.check.judged
    task = race.task(way.setting, judged=judged, is_fresh=True, early_end=False)
    try:
        (check,) = check_sizes([task], workers)
    except OutOfTime:
        return None
    return KeptLoss(
        lost=ways.lost,
        setting=way.setting,
        check=check,
        cost=ways.cost(way.setting, check.replica_chip_watts, way.machines),
        machines=way.machines,
        losses=way.losses,
        without=choice.check,
        without_cost=choice.cost,
        is_whole=is_whole and choice.is_whole,
    )


def _race_larger(
    question: PlanQuestion, choice: Choice, ways: "_Ways", workers: SimulationWorkers
) -> None:
    """Race what has more chips than the fewest that passed and may cost less than the best way.

    Each size is raced anew, as what passes does not bound it. Units of pools are those farthest
    from their limits, which may go on without chips, and those that cost the least with engines
    more.
    """
    assert ways.best is not None
    tries = question.search.tries
    ends = size_ends(choice.fewest.chips, ways.best.setting.chips, ratio=LARGER)
    for above, most in pairwise(ends):
        ways.race.say(f"larger settings, up to {most:,} chips")
        race = Race(question, workers, lambda _: None, ends_s=ways.race.ends_s)
        race.options = choice.options
        settings = [
            each for each in race.settings(above, most, first=True) if ways.may_be_best(each)
        ]
        if choice.pools is not None:
            units = [
                Setting(option=option, policy=NO_POLICY[0], replicas=option.replicas)
                for nearness, option in choice.pools.promising(above, most, UNITS)
                if nearness < 1
            ]
            units = [each for each in units if ways.may_be_best(each)]
            cheapest = sorted(units, key=ways.least_cost)
            settings += dict.fromkeys([*units[: ceil(tries / 2)], *cheapest[: tries // 2]])
        if settings and race.run(settings):
            for setting in race.passed:
                ways.look(setting, race.checks[setting])


@dataclass(frozen=True, slots=True, kw_only=True)
class _SideWay:
    """What each unit has more on a side: spares of each engine, and engines, where those that lose
    chips are `out` of service.
    """

    spares: int = 0
    engines: int = 0
    out: bool = False


_NOTHING: Final = _SideWay()


@dataclass(frozen=True, slots=True, kw_only=True)
class _LossWay:
    setting: Setting
    machines: int
    losses: tuple[Loss, ...]
    cost: Cost


class _Ways:
    """The ways looked at, and of those that keep the target the cheapest."""

    def __init__(self, question: PlanQuestion, race: Race, workers: SimulationWorkers) -> None:
        assert question.lose is not None
        self._question, self._workers = question, workers
        self._system = question.sweep.system
        self.race, self.lost = race, question.lose
        self._chips = self.lost.chips_of(self._system)
        self._is_machine = self._chips >= self._system.chips.count
        self.best: _LossWay | None = None

    def cost(self, setting: Setting, busy_watts: float, machines: int = 0) -> Cost:
        """Of at least so many machines."""
        fleet = fleet_of(self._question, setting.option, setting.replicas, busy_watts)
        return cost_of(self._question, replace(fleet, machines=max(fleet.machines, machines)))

    def least_cost(self, setting: Setting) -> Cost:
        """About what it costs with engines or replicas more, whichever costs less."""
        watts = self._steady_watts(setting)
        replicas, machines, _ = self._more_replicas(setting)
        cost = self.cost(replace(setting, replicas=replicas), watts, machines)
        equipped = self._more_engines(setting)
        return cost if equipped is None else min(cost, self.cost(equipped, watts))

    def _more_engines(self, setting: Setting) -> Setting | None:
        """A unit of pools with as many more on each side as are lost; None where it has no room."""
        if not setting.option.is_pooled or self._is_machine:
            return None
        gone = (hit(side.engine_chips, self._chips) for side in sides_of(setting.option))
        return self._equipped(setting, [_SideWay(engines=more, out=True) for more in gone])

    def may_be_best(self, setting: Setting) -> bool:
        """Whether it costs less than the best way, if it needs nothing for the loss."""
        watts = self._steady_watts(setting)
        return self.best is None or self.cost(setting, watts) < self.best.cost

    def _steady_watts(self, setting: Setting) -> float:
        rate_per_s = self.race.rate_per_s / setting.replicas
        return steady_watts(self._question, setting.option, rate_per_s)

    def look(self, setting: Setting, check: Check) -> None:
        """Find the cheapest way of a setting that keeps the target, by `check`, without a loss."""
        if not self._is_cheaper(setting, check, setting):
            return
        replicas, machines, gone = self._more_replicas(setting)
        more = replace(setting, replicas=replicas)
        loss = Loss(
            what=lost_words(self.lost, self._system), replicas_left=replicas - gone, check=check
        )
        self._offer(setting, check, more, (loss,), machines)
        if self._is_machine:
            return
        equipped = self._more_engines(setting)
        if equipped is not None and self._chips < setting.option.replica_chips:
            losses = (self._engines_out(setting, side) for side in sides_of(setting.option))
            known = tuple(replace(each, check=check) for each in losses)
            self._offer(setting, check, equipped, known)
        if self._chips < setting.option.replica_chips:
            self._look_inside(setting, check)
        else:
            self._look_at_fewer(setting, check, gone)

    def _more_replicas(self, setting: Setting) -> tuple[int, int, int]:
        """So many that the setting's are left, the machines of which one is lost, or 0, and the
        replicas that are lost.
        """
        left = setting.replicas
        if not self._is_machine:
            gone = hit(setting.option.replica_chips, self._chips)
            return left + gone, 0, gone
        machines = ceil(left / replicas_per_machine(self._question, setting.option)) + 1
        replicas = ceil(left * machines / (machines - 1))
        return replicas, machines, replicas - left

    def _look_at_fewer(self, setting: Setting, check: Check, gone: int) -> None:
        """Fewer replicas more than are lost may do."""
        for more in range(gone):
            left = setting.replicas + more - gone
            whole = replace(setting, replicas=setting.replicas + more)
            if left < 1 or not self._is_cheaper(setting, check, whole):
                continue
            (after,) = check_sizes([self._task(replace(setting, replicas=left))], self._workers)
            if after.meets:
                loss = Loss(
                    what=lost_words(self.lost, self._system), replicas_left=left, check=after
                )
                self._offer(setting, check, whole, (loss,))
                return

    def _look_inside(self, setting: Setting, check: Check) -> None:
        """Each side's cheapest way that keeps the target, by turns."""
        sides = sides_of(setting.option)
        ways = [iter(self._side_ways(setting.option, side)) for side in sides]
        chosen = [next(each) for each in ways]
        losses: list[Loss | None] = [None] * len(sides)
        while not all(losses):
            equipped = self._equipped(setting, chosen)
            if equipped is None or not self._is_cheaper(setting, check, equipped):
                return
            open_ones = [number for number, loss in enumerate(losses) if loss is None]
            tried = [self._after(setting, sides[each], chosen[each]) for each in open_ones]
            checks = iter(
                check_sizes([task for _, task in tried if task is not None], self._workers)
            )
            for number, (loss, task) in zip(open_ones, tried, strict=True):
                after = check if task is None else next(checks)
                if after.meets:
                    losses[number] = replace(loss, check=after)
                    continue
                following = next(ways[number], None)
                if following is None:
                    return
                chosen[number] = following
        for number, side in enumerate(sides):
            if chosen[number].spares:
                chosen[number], losses[number] = self._fewest_spares(
                    setting, side, (chosen[number], losses[number])
                )
        equipped = self._equipped(setting, chosen)
        assert equipped is not None
        self._offer(setting, check, equipped, tuple(each for each in losses if each is not None))

    def _fewest_spares(
        self, setting: Setting, side: EngineSide, found: tuple[_SideWay, Loss | None]
    ) -> tuple[_SideWay, Loss | None]:
        """Of 1, 2, 4 and so on, where one for each lost chip, as `found`, keeps the target."""
        spares = 1
        while spares < self._chips:
            way = _SideWay(spares=spares)
            loss, task = self._after(setting, side, way)
            assert task is not None
            (after,) = check_sizes([task], self._workers)
            if after.meets:
                return way, replace(loss, check=after)
            spares *= 2
        return found

    def _side_ways(self, option: Option, side: EngineSide) -> Sequence[_SideWay]:
        """By chips; the last of a unit's needs no simulation.

        Spares are tried with one for each lost chip first: that fewer keep no target which these do
        not is assumed.
        """
        gone = hit(side.engine_chips, self._chips)
        ways = []
        if self._chips < side.engine_chips:
            ways += [_NOTHING, _SideWay(spares=self._chips)]
        if option.is_pooled:
            enough = gone * side.engine_chips
            ways = [each for each in ways if each.spares * side.engines < enough]
            ways += [
                _SideWay(engines=more, out=True)
                for more in range(gone + 1)
                if side.engines + more > gone
            ]
        return sorted(
            ways, key=lambda each: side.engines * each.spares + each.engines * side.engine_chips
        )

    def _after(
        self, setting: Setting, side: EngineSide, way: _SideWay
    ) -> tuple[Loss, SizeTask | None]:
        """The loss without its check, and what simulates it; None where that is the setting."""
        option, gone = setting.option, hit(side.engine_chips, self._chips)
        loss = self._engines_out(setting, side, way.engines - gone)
        if not way.out:
            equipped = self._equipped(
                setting, [way if each == side else _NOTHING for each in sides_of(option)]
            )
            assert equipped is not None
            task = replace(self._task(equipped), lost=side.lost(self._chips))
            return replace(loss, lost_chips=self._chips, engines_left=0), task
        if way.engines == gone:
            return loss, None
        fewer = replace(way, engines=way.engines - gone)
        left = self._equipped(
            setting, [fewer if each == side else _NOTHING for each in sides_of(option)]
        )
        assert left is not None
        return loss, self._task(left)

    def _engines_out(self, setting: Setting, side: EngineSide, more: int = 0) -> Loss:
        """Of a side on which so many more than the setting's are left, without its check."""
        return Loss(
            what=lost_words(self.lost, self._system, side),
            replicas_left=setting.replicas,
            engines_left=side.engines + more,
        )

    def _task(self, setting: Setting) -> SizeTask:
        rate_per_s = self.race.rate_per_s / setting.replicas
        judged = max(LAST_TIMES * self._question.check.judged, ceil(LOSS_S * rate_per_s))
        return self.race.task(setting, judged=judged)

    def _equipped(self, setting: Setting, ways: Sequence[_SideWay]) -> Setting | None:
        """The setting with a way for each side; None where it has no room on a machine."""
        option = setting.option
        units = 1 if self._question.sweep.asked.across_units else self._system.units
        room = self._system.chips.count // units
        sides = []
        for side, way in zip(sides_of(option), ways, strict=True):
            partition = replace(side.candidate.partition, spares=way.spares)
            chips = partition.chips + way.spares
            if side.candidate.first_chip + chips > room:
                return None
            engines = side.engines + way.engines if option.is_pooled else units * (room // chips)
            sides.append(replace(side.candidate, partition=partition, replicas=engines))
        decode, prefill = (*sides, None)[:2]
        assert decode is not None
        point = replace(option.point, candidate=decode, prefill=prefill)
        equipped = replace(setting, option=replace(option, point=point))
        return equipped if equipped.option.replica_chips <= room else None

    def _is_cheaper(self, setting: Setting, check: Check, way: Setting) -> bool:
        return self.best is None or self._cost(setting, check, way, 0) < self.best.cost

    def _cost(self, setting: Setting, check: Check, way: Setting, machines: int) -> Cost:
        """About: of what the setting draws above idle each of the way's replicas has a part."""
        idle_watts = self._system.chip.idle_watts.value
        busy_watts = check.replica_chip_watts - idle_watts * check.replica_chips
        each_watts = busy_watts * setting.replicas / way.replicas
        return self.cost(way, each_watts + idle_watts * way.option.replica_chips, machines)

    def _offer(
        self,
        setting: Setting,
        check: Check,
        way: Setting,
        losses: tuple[Loss, ...],
        machines: int = 0,
    ) -> None:
        """Note a way that keeps the target."""
        cost = self._cost(setting, check, way, machines)
        if self.best is None or cost < self.best.cost:
            self.best = _LossWay(setting=way, machines=machines, losses=losses, cost=cost)
            words = cost_words(self._question.minimise, cost)
            self.race.say(f"{words} keep the target through the loss: {way.words}")

"""Machines that serve a model's traffic within a latency target, their power and costs.

From the cost model, checked by simulating the server's scheduler. Modelled, not measured.

`plan_range` is the size at both ends of the cost model's 80 % range, the partition kept: steps that
take f times as long serve traffic as these steps serve f times its rate within 1 / f of its limits:
that is simulated, and every queue with it.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from emulator.power.efficiency import TokenRates
from emulator.specs.shipped_fits import PredictionInterval
from loadgen.measures.slo import Slo
from loadgen.workloads.traffic import Traffic
from serving.analysis.plan.night import Night, night_of
from serving.analysis.plan.plan_bill import Bill, BilledFleet, bill_of
from serving.analysis.plan.plan_check import check_sizes
from serving.analysis.plan.plan_choice import Choice, choose
from serving.analysis.plan.plan_cost import fleet_of, replicas_per_machine
from serving.analysis.plan.plan_margins import Margins, margins_of
from serving.analysis.plan.plan_narrow_kv import NarrowKv, narrow_kv_of
from serving.analysis.plan.plan_options import NEAR, size_ends
from serving.analysis.plan.plan_question import PlanQuestion
from serving.analysis.plan.plan_race import LAST_TIMES, Progress, Race
from serving.analysis.plan.plan_routers import RouterRace, routers_of
from serving.analysis.plan.plan_spares import KeptLoss, kept_through
from serving.analysis.plan.timed_run import OutOfTime
from serving.simulator import THIS_PROCESS, SimulationWorkers

SIZES_AT_ONCE: Final = 2
"""However many workers there are: what is tried is then the same everywhere."""
A_FEW: Final = 8
SIMULATED_SHARE: Final = 0.95
"""Of the budget; the rest is for what the steady state says of other figures."""
MARGINS_SHARE: Final = 0.85
"""Of the budget: by then the headroom is as it was found."""
CHOICE_SHARE: Final = 0.5
"""Of the budget, for the plan without a loss that is asked for; until `LOSS_SHARE` of it what that
needs is searched.
"""
LOSS_SHARE: Final = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRange:
    """Replicas that keep the target with steps `steps.least` and `steps.most` times as long; None
    where none of the sizes tried did.
    """

    steps: PredictionInterval
    fewest: int | None
    most: int | None

    def ends(self) -> Iterator[tuple[float, int | None]]:
        """The steps' factor and the replicas, the good end first."""
        yield self.steps.least, self.fewest
        yield self.steps.most, self.most


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer; `range` is the answer over the model's 80 % range, None for a roofline.

    `rates` are of tokens that are computed: prompts' without those found in caches. `range` and
    `margins` are None, too, where a signal ended the search, or no time was left, and
    `margins` where they are not asked for. `kept_loss`: of the loss asked for, the setting is its.
    `routers`: None where none is tried, they are not asked for, or no time was left; `narrow_kv`:
    where it is not asked for, makes no difference, or no time was left.
    """

    question: PlanQuestion
    choice: Choice
    rates: TokenRates
    fleet: BilledFleet
    bill: Bill
    night: Night
    replicas_per_machine: int
    range: PlanRange | None
    margins: Margins | None
    kept_loss: KeptLoss | None = None
    routers: RouterRace | None = None
    narrow_kv: NarrowKv | None = None

    @property
    def machines(self) -> int:
        """Bought, without a spare."""
        return self.fleet.machines

    @property
    def prompt_tokens_per_s(self) -> float:
        """At the peak, cached ones too."""
        demand = self.question.demand
        return demand.peak_rate_per_s * float(demand.peak.prompt_tokens.mean())

    def machines_for(self, replicas: int) -> int:
        """Whole machines that hold so many."""
        return ceil(replicas / self.replicas_per_machine)

    @property
    def machines_with_spare(self) -> int:
        """Enough to meet the target when one is lost."""
        return self.machines + 1

    @property
    def provisioned_watts_with_spare(self) -> float:
        """Of the racks' budget, the spare machine's included."""
        return self.provisioned_watts_per_machine * self.machines_with_spare

    @property
    def provisioned_watts_per_machine(self) -> float:
        """Of the racks' budget."""
        return self.bill.provisioned_watts / self.machines

    @property
    def spare_replica_fits(self) -> bool:
        """Whether the machines bought have room for one replica more."""
        return self.fleet.replicas < self.machines * self.replicas_per_machine

    @property
    def machines_with_spare_replica(self) -> int:
        """For one replica more than the peak needs."""
        return self.machines if self.spare_replica_fits else self.machines + 1


def plan(
    question: PlanQuestion,
    *,
    workers: SimulationWorkers = THIS_PROCESS,
    progress: Progress = lambda _: None,
) -> Plan:
    """Search, simulate and add up.

    Raises ConfigError when the model fits nowhere, or nothing meets the target.
    """
    demand = question.demand
    begun_s, budget_s = time.monotonic(), question.search.budget_s
    ends_s = begun_s + SIMULATED_SHARE * budget_s
    rates_end_s = begun_s + MARGINS_SHARE * budget_s
    choice = choose(_leaving_time(question), workers, progress)
    kept_loss = None
    if question.lose is not None and not choice.is_interrupted:
        race = Race(question, workers, progress, ends_s=begun_s + LOSS_SHARE * budget_s)
        progress(f"what keeps the target through the loss of a {question.lose}")
        try:
            kept_loss = kept_through(question, choice, race, workers, ends_s=ends_s)
        except KeyboardInterrupt:  # the plan without it is known
            workers.stop()
            choice = replace(choice, is_interrupted=True)
    if kept_loss is not None:
        choice = _with_loss(choice, kept_loss)
    check, option = choice.check, choice.setting.option
    per_machine = replicas_per_machine(question, option)
    fleet = fleet_of(question, option, check.replicas, check.replica_chip_watts)
    if kept_loss is not None:
        fleet = replace(fleet, machines=max(fleet.machines, kept_loss.machines))
    night = night_of(
        question.day,
        replicas=fleet.replicas,
        replica_chips=fleet.replica_chips,
        bought_chips=fleet.chips,
    )
    rates = _token_rates(demand.peak, demand.peak_rate_per_s, check.hit_share or 0.0)
    beside = _Beside()
    if not choice.is_interrupted:
        race = Race(question, workers, progress, ends_s=ends_s)
        try:
            _simulate_beside(
                beside, question, choice, race, workers, progress, rates_end_s=rates_end_s
            )
        except KeyboardInterrupt:  # the plan itself is known
            workers.stop()
    return Plan(
        question=question,
        choice=choice,
        rates=rates,
        fleet=fleet,
        bill=bill_of(
            fleet, night, rates, question.prices, grid_gco2_per_kwh=question.grid_gco2_per_kwh
        ),
        night=night,
        replicas_per_machine=per_machine,
        range=beside.range,
        margins=beside.margins,
        kept_loss=kept_loss,
        routers=beside.routers,
        narrow_kv=beside.narrow_kv,
    )


@dataclass(slots=True)
class _Beside:
    """What is simulated beside the answer, each as far as time lasts."""

    routers: RouterRace | None = None
    margins: Margins | None = None
    range: PlanRange | None = None
    narrow_kv: NarrowKv | None = None


def _simulate_beside(
    found: _Beside,
    question: PlanQuestion,
    choice: Choice,
    race: Race,
    workers: SimulationWorkers,
    progress: Progress,
    *,
    rates_end_s: float,
) -> None:
    """Note each as it is known, since an interrupt may come during the next."""
    setting = choice.setting
    if question.margins and time.monotonic() < rates_end_s:
        progress("headroom, and what lost chips cost")
        found.margins = margins_of(
            question,
            setting,
            race,
            workers,
            replicas_per_machine=replicas_per_machine(question, setting.option),
            is_sure=choice.check.surely_meets,
            rates_end_s=rates_end_s,
        )
    found.range = plan_range(question, choice, workers, progress, race.ends_s)
    if question.margins:
        with suppress(OutOfTime):
            found.routers = routers_of(question, setting, race, workers)
    if question.narrow_kv and question.lose is None:
        with suppress(OutOfTime):
            found.narrow_kv = narrow_kv_of(question, setting, workers, progress, ends_s=race.ends_s)


def _leaving_time(question: PlanQuestion) -> PlanQuestion:
    """For the loss, if one is asked for."""
    if question.lose is None:
        return question
    search = question.search
    return replace(question, search=replace(search, budget_s=CHOICE_SHARE * search.budget_s))


def _with_loss(choice: Choice, kept: KeptLoss) -> Choice:
    """The choice with what the loss needs; what was compared with it is so without a loss."""
    return replace(
        choice,
        setting=kept.setting,
        check=kept.check,
        cost=kept.cost,
        smaller_words=f"of the search without a loss: {choice.smaller_words}",
        frontier=(),
        is_whole=kept.is_whole,
    )


def _token_rates(peak: Traffic, rate_per_s: float, hit_share: float) -> TokenRates:
    return TokenRates(
        output_tokens_per_s=rate_per_s * float(peak.output_tokens.mean()),
        input_tokens_per_s=rate_per_s * float(peak.prompt_tokens.mean()) * (1 - hit_share),
    )


def plan_range(
    question: PlanQuestion,
    choice: Choice,
    workers: SimulationWorkers,
    progress: Progress,
    ends_s: float = float("inf"),
) -> PlanRange | None:
    """Simulate both ends of TPOT's range; None for a roofline, whose steps are bounds, and where it
    takes longer than until `ends_s` of `time.monotonic`.
    """
    steps = question.sweep.assumptions.model_error.get("tpot")
    if steps is None:
        return None
    judged = question.check.judged

    def replicas(factor: float) -> int | None:
        race = Race(slowed(question, factor), workers, progress, ends_s=ends_s)
        race.say(f"with steps {factor:.2f} times as long")
        guess = max(1, round(factor * choice.setting.replicas))
        counts = size_ends(max(1, guess // 2), 3 * guess + A_FEW, ratio=NEAR)
        for first in range(0, len(counts), SIZES_AT_ONCE):
            settings = [
                replace(choice.setting, replicas=count)
                for count in counts[first : first + SIZES_AT_ONCE]
            ]
            tasks = [race.task(each, judged=LAST_TIMES * judged) for each in settings]
            for check in check_sizes(tasks, workers):
                if check.meets:
                    return check.replicas
        return None

    try:
        return PlanRange(steps=steps, fewest=replicas(steps.least), most=replicas(steps.most))
    except OutOfTime:
        return None


def slowed(question: PlanQuestion, factor: float) -> PlanQuestion:
    """The question whose answer is that of `question` with steps `factor` times as long."""
    bounds = (replace(bound, limit=bound.limit / factor) for bound in question.slo.bounds)
    return replace(
        question,
        demand=question.demand.sped_up(factor),
        slo=Slo(bounds=tuple(bounds), words=question.slo.words),
    )

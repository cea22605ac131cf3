"""A day of several served models and the night's tenants: how a question is answered.

Every model is one replica a group, all groups are of one size: the largest that a model's own
choice asks for. What a replica serves is simulated exactly; jobs are timed by the cost model.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil
from time import perf_counter
from typing import Final

import numpy as np

from emulator.errors import ConfigError
from emulator.specs.partition import divisors
from emulator.specs.system import SystemSpec
from loadgen.measures.slo import Slo
from serving.analysis.day.curve_search import CurveTerms, find_curve, turns_of
from serving.analysis.day.day_demand import day_demand
from serving.analysis.day.day_result import DayMachine, DayResult, mean_request_flops
from serving.analysis.day.replica_choice import ReplicaChoice
from serving.analysis.day.replica_curve import ReplicaCurve
from serving.analysis.day.replica_run import RateTask, overloaded
from serving.analysis.day.training_table import (
    group_handover,
    group_load,
    jobs_by_groups,
    yield_of_jobs,
)
from serving.analysis.day.training_yield import TrainingYield
from serving.analysis.day.virtual_day import Progress
from serving.analysis.tenants.fleet_walk import FleetModel, FleetWalk, NightFleet, walk_fleet
from serving.analysis.tenants.resharding import resharding
from serving.analysis.tenants.tenant import BatchInferenceTenant, TrainingTenant
from serving.analysis.tenants.tenant_question import (
    BatchQuestion,
    JobQuestion,
    ServedQuestion,
    TenantSettings,
)
from serving.simulator import THIS_PROCESS, SimulationWorkers
from serving.simulator.job_cost import JobCost, JobTerms, best_job

_ANY_TIME: Final = Slo.parse("ttft=100000h@p50")
"""Of batch inference: no target that could be missed."""
_OVERLOAD: Final = 1.5
"""Times the steady state's highest rate: a permanent queue."""
_LEADS: Final = 2.0
"""Mean durations of a request before those that are counted, so that all seats are taken."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TenantDay:
    """The answer; `models` in the order of the question, `wall_s` by stage."""

    settings: TenantSettings
    choices: tuple[ReplicaChoice, ...]
    walk: FleetWalk
    models: tuple[DayResult, ...]
    wall_s: dict[str, float]

    @property
    def group_chips(self) -> int:
        """Of every group."""
        return self.choices[0].chips

    @property
    def groups(self) -> int:
        """Of the machine."""
        return self.walk.fleet.groups


def tenant_day(
    settings: TenantSettings,
    *,
    workers: SimulationWorkers = THIS_PROCESS,
    progress: Progress = lambda _: None,
) -> TenantDay:
    """Raises ConfigError for a model or a job that does not fit, or keeps no target."""
    wall_s: dict[str, float] = {}
    began = perf_counter()

    def lap(name: str) -> None:
        nonlocal began
        wall_s[name] = perf_counter() - began
        began = perf_counter()

    choices = _choices(settings)
    chips, groups = choices[0].chips, choices[0].candidate.replicas
    progress(f"{groups} groups of {chips} chips on a {settings.system.name}")
    lap("choice")
    curves = [
        _curve(settings, of, choice, workers, progress)
        for of, choice in zip(settings.served, choices, strict=True)
    ]
    lap("curves")
    idle_watts = curves[0].idle_watts
    tenants = tuple(
        _job(settings.system, each, group_chips=chips, groups=groups)
        if isinstance(each, JobQuestion)
        else _batch(settings, each, group_chips=chips, groups=groups, progress=progress)
        for each in settings.tenants
    )
    lap("tenants")
    models = tuple(
        _fleet_model(settings, number, choice, curve, groups)
        for number, (choice, curve) in enumerate(zip(choices, curves, strict=True))
    )
    walked = walk_fleet(
        NightFleet(
            groups=groups,
            group_idle_watts=idle_watts,
            models=models,
            tenants=tenants,
            worth=settings.worth,
            terms=settings.terms,
        )
    )
    lap("walk")
    return TenantDay(
        settings=settings,
        choices=choices,
        walk=walked,
        models=tuple(
            _result(settings, number, choices[number], walked)
            for number in range(len(settings.served))
        ),
        wall_s=wall_s,
    )


def _choices(settings: TenantSettings) -> tuple[ReplicaChoice, ...]:
    """A replica of each served model, all of one size."""
    own = [each.replica.choice(each.slo, None) for each in settings.served]
    chips = max(choice.chips for choice in own)
    return tuple(
        choice if choice.chips == chips else each.replica.choice(each.slo, chips)
        for each, choice in zip(settings.served, own, strict=True)
    )


def _curve(
    settings: TenantSettings,
    of: ServedQuestion,
    choice: ReplicaChoice,
    workers: SimulationWorkers,
    progress: Progress,
) -> ReplicaCurve:
    terms = CurveTerms(
        required_share=max(bound.share for bound in of.slo.bounds),
        judged=settings.judged,
        turns=turns_of(choice.candidate.replicas),
        seed=settings.terms.seed,
    )
    replica = of.replica.under_test(choice, of.slo)
    say = _named(of.name, progress)
    return find_curve(replica, choice.guess, terms, workers, say)


def _named(name: str, progress: Progress) -> Callable[[str], None]:
    return lambda line: progress(f"{name}: {line}")


def _fleet_model(
    settings: TenantSettings,
    number: int,
    choice: ReplicaChoice,
    curve: ReplicaCurve,
    groups: int,
) -> FleetModel:
    of = settings.served[number]
    demand = day_demand(
        of.trace.scaled(of.peak_share * groups * curve.capacity_per_s),
        begin_s=of.begin_s,
        length_s=settings.length_s,
        # Models have chance of their own.
        terms=replace(settings.terms, seed=settings.terms.seed + number),
    )
    return FleetModel(
        name=of.name,
        demand=demand,
        curve=curve,
        handover=group_handover(
            settings.handovers,
            of.replica.sweep.model_at(choice.precision),
            choice.candidate,
            curve,
            of.replica.lengths,
            grace_s=settings.grace_s,
        ),
        policy=of.policy,
    )


def _job(
    system: SystemSpec, asked: JobQuestion, *, group_chips: int, groups: int
) -> TrainingTenant:
    terms = replace(asked.terms, rates=asked.checkpoint.rates)
    try:
        if asked.elastic and not terms.searched:
            terms = replace(terms, ep=_one_ep(terms, group_chips=group_chips, groups=groups))
        jobs = jobs_by_groups(terms, group_chips=group_chips, groups=groups)
    except ConfigError as error:
        raise ConfigError(f"{asked.name}: model", error.value, error.expected) from error
    least, most = _bounds(asked, group_chips, groups)
    within: list[JobCost | None] = [
        None if number < least else jobs[min(number, most)] for number in range(groups + 1)
    ]
    if within[-1] is None:
        raise ConfigError(
            f"{asked.name}: largest_chips",
            asked.chips_most,
            f"chips in groups of {group_chips} that hold the training state of {terms.model.name}",
        )
    return TrainingTenant(
        name=asked.name,
        priority=asked.priority,
        weight=asked.weight,
        trained=yield_of_jobs(terms, within, group_chips=group_chips),
        tokens=asked.tokens,
        deadline_s=asked.deadline_s,
        resharding=resharding(system, within, group_chips=group_chips) if asked.elastic else None,
        checkpoint=asked.checkpoint,
    )


def _one_ep(terms: JobTerms, *, group_chips: int, groups: int) -> int | None:
    """Chips of an expert group with which all sizes together train the most, so that they differ
    in data parallelism alone; None where no size fits.
    """
    sums: dict[int, float] = {}
    for ep in divisors(group_chips):
        sizes = (
            best_job(replace(terms, ep=ep), range(count * group_chips))
            for count in range(1, groups + 1)
        )
        sums[ep] = sum(job.tokens_per_s for job in sizes if job)
    best = max(sums, key=lambda ep: sums[ep])
    return best if sums[best] else None


def _bounds(asked: JobQuestion | BatchQuestion, group_chips: int, groups: int) -> tuple[int, int]:
    """Fewest and most groups; raises ConfigError when the two exclude each other."""
    least = max(1, ceil(asked.chips_least / group_chips))
    most = groups if asked.chips_most is None else min(groups, asked.chips_most // group_chips)
    if least > most:
        raise ConfigError(
            f"{asked.name}: chips",
            f"{asked.chips_least} to {asked.chips_most}",
            f"a number of whole groups of {group_chips}, of which there are {groups}",
        )
    return least, most


def _batch(
    settings: TenantSettings,
    asked: BatchQuestion,
    *,
    group_chips: int,
    groups: int,
    progress: Progress,
) -> BatchInferenceTenant:
    choice = asked.replica.choice(_ANY_TIME, group_chips)
    replica = asked.replica.under_test(choice, _ANY_TIME)
    lead_s = _LEADS * replica.mean_output_tokens * choice.guess.tpot_s
    rate_per_s = _OVERLOAD * choice.guess.rate_per_s
    run = overloaded(
        RateTask(
            replica=replica,
            rate_per_s=rate_per_s,
            judged=max(settings.judged, ceil(rate_per_s * lead_s)),
            lead_s=lead_s,
            seed=settings.terms.seed,
        )
    )
    progress(
        f"{asked.name}: a group without a latency target serves {run.begun_per_s:,.4g} requests/s "
        f"at {run.chip_watts:,.0f} W"
    )
    least, most = _bounds(asked, group_chips, groups)
    load_s, load_joules = group_load(
        settings.handovers,
        asked.replica.sweep.model_at(choice.precision),
        choice.candidate,
    )
    costs = replica.cost_model()
    seats = min(
        asked.replica.limits.max_num_seqs,
        asked.replica.sweep.replica(choice.precision, choice.candidate).kv_batch_max,
    )
    return BatchInferenceTenant(
        name=asked.name,
        priority=asked.priority,
        weight=asked.weight,
        model=asked.replica.sweep.model.name,
        groups=groups,
        groups_least=least,
        groups_most=most,
        requests_per_s=run.begun_per_s,
        watts_at_work=run.chip_watts,
        idle_watts=costs.idle_chip_watts * group_chips,
        in_flight=float(seats * choice.candidate.partition.ranks),
        load_s=load_s,
        load_joules=load_joules,
        prompt_tokens=replica.mean_prompt_tokens,
        output_tokens=replica.mean_output_tokens,
        submissions=asked.submissions,
    )


def _result(
    settings: TenantSettings, number: int, choice: ReplicaChoice, walked: FleetWalk
) -> DayResult:
    """One model's day, on a machine without a job."""
    of, model = settings.served[number], walked.fleet.models[number]
    lengths = of.replica.lengths
    machine = DayMachine(
        system=settings.system,
        machines=1,
        group_chips=choice.chips,
        curve=model.curve,
        trained=_nothing_trained(settings.system, walked.fleet.groups),
        mean_prompt_tokens=float(lengths.prompt_tokens.mean()),
        mean_output_tokens=float(lengths.output_tokens.mean()),
        flops_per_request=mean_request_flops(of.replica.sweep.model_at(choice.precision), lengths),
        season=of.replica.sweep.season,
    )
    return DayResult(
        machine=machine,
        walk=walked.models[number],
        policy=str(model.policy),
        describes=model.policy.describe(),
    )


def _nothing_trained(system: SystemSpec, groups: int) -> TrainingYield:
    none = np.zeros(groups + 1)
    return TrainingYield(
        model="",
        least_chips=0,
        recipe="",
        peak_flops_per_s=system.chip.tensor_flops_per_s("bf16"),
        flops_per_token=0.0,
        tokens_per_s=none,
        chips_at_work=none,
        watts=none,
        save_s=none,
        start_s=none,
        save_joules=none,
        start_joules=none,
    )

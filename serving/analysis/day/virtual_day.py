"""A day in virtual time: the steady state chooses a replica, which is simulated exactly at several
rates; the cost model times training; every policy walks the day at every load.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter

from emulator.errors import ConfigError
from loadgen.measures.slo import Slo
from loadgen.workloads.length_pairs import ObservedLengths
from serving.analysis.day.curve_search import (
    CurveTerms,
    find_curve,
    find_partition_curves,
    turns_of,
)
from serving.analysis.day.day_comparison import DayQuestion, LoadComparison, compare
from serving.analysis.day.day_result import DayMachine, ValueUnit, mean_request_flops
from serving.analysis.day.exact_day import ExactTerms
from serving.analysis.day.exact_hour import ExactHour, HourCheck, exact_hour
from serving.analysis.day.held_day import ExactQuestion, HeldDay, held_day
from serving.analysis.day.kept_figures import FigureStore, MachineFigures
from serving.analysis.day.partition_handover import PartitionHandover, partition_handover
from serving.analysis.day.replica_choice import ReplicaChoice, choose_replica
from serving.analysis.day.replica_run import ReplicaUnderTest
from serving.analysis.day.slower_handovers import SlowerHandovers, with_slower_handovers
from serving.analysis.day.training_table import group_handover, training_yield
from serving.analysis.day.training_yield import GroupHandover
from serving.analysis.steady_state.sweep import Sweep
from serving.simulator import THIS_PROCESS, SimulationWorkers
from serving.simulator.job_cost import JobTerms
from serving.traffic.engine_limits import SchedulerLimits

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WalkableMachine:
    """All that walks of a machine need: its chosen replica's curve, its training, hand-overs."""

    choice: ReplicaChoice
    replica: ReplicaUnderTest
    machine: DayMachine
    handover: GroupHandover
    parts: PartitionHandover | None
    kept_unix_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DaySettings:
    """A question about a day.

    Attributes:
        limits: of a rank, but for its KV blocks, which the replica decides.
        question: its first policy is the headline's, and the one that `check` simulates.
        headline_share: of the capacity; the nearest load is the headline.
        group_chips: parts of one engine that change hands; None: a group is a replica.
    """

    sweep: Sweep
    machines: int
    slo: Slo
    lengths: ObservedLengths
    lengths_in_words: str
    limits: SchedulerLimits
    job: JobTerms
    question: DayQuestion
    curve: CurveTerms
    grace_s: float
    headline_share: float
    group_chips: int | None = None
    unit: ValueUnit = ValueUnit.FLOPS
    check: HourCheck | None = None
    exact: ExactQuestion | None = None

    def __post_init__(self) -> None:
        if self.machines < 1:
            raise ConfigError("ultraservers", self.machines, "at least 1")
        if not 0 <= self.grace_s < float("inf"):
            raise ConfigError("drain_grace", self.grace_s, "from 0 on")
        if self.group_chips is not None and self.check is not None:
            expected = "nothing with groups of one engine, whose days are simulated as a whole"
            raise ConfigError("check-hour", self.check.begin_s / 3_600, expected)
        check, length_s = self.check, self.question.length_s
        if check is not None and not (
            0 <= check.begin_s < check.begin_s + check.length_s <= length_s
        ):
            expected = f"within the {length_s / 3_600:g} hours of the walk"
            raise ConfigError("check-hour", check.begin_s / 3_600, expected)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VirtualDay:
    """The answer; `wall_s` by stage, in order of execution.

    `parts`: how an engine's parts change hands; None for replicas. `kept_unix_s`: when a run before
    simulated the replica; None for this one.
    """

    settings: DaySettings
    choice: ReplicaChoice
    machine: DayMachine
    kept_unix_s: float | None
    handover: GroupHandover
    parts: PartitionHandover | None
    loads: tuple[LoadComparison, ...]
    slower: tuple[SlowerHandovers, ...]
    check: ExactHour | None
    exact: HeldDay | None
    wall_s: dict[str, float]

    @property
    def headline(self) -> LoadComparison:
        """The load nearest to `headline_share`."""
        share = self.settings.headline_share
        return min(self.loads, key=lambda load: abs(load.peak_share - share))


def virtual_day(
    settings: DaySettings,
    *,
    workers: SimulationWorkers = THIS_PROCESS,
    progress: Progress = lambda _: None,
    store: FigureStore | None = None,
) -> VirtualDay:
    """What a `store` has is not simulated again.

    Raises ConfigError when no replica keeps the target or the trained model does not fit.
    """
    wall_s: dict[str, float] = {}
    began = perf_counter()

    def lap(name: str) -> None:
        nonlocal began
        now = perf_counter()
        wall_s[name] = now - began
        began = now

    walkable = walkable_machine(settings, workers=workers, progress=progress, store=store, lap=lap)
    answer = _walked(settings, walkable, wall_s)
    lap("walks")
    if settings.exact is not None:
        held = _held_headline(settings, answer, walkable.replica, progress)
        answer = replace(answer, exact=held)
        lap("exact")
    if settings.check is None:
        return answer
    checked = exact_hour(
        answer.headline.results[0],
        walkable.replica,
        settings.check,
        workers,
        seed=settings.question.terms.seed,
        progress=progress,
    )
    lap("check")
    return replace(answer, check=checked)


def _held_headline(
    settings: DaySettings,
    walked: VirtualDay,
    replica: ReplicaUnderTest,
    progress: Progress,
) -> HeldDay:
    """The headline's first policy, step by step with its hand-overs."""
    assert settings.exact is not None
    result, terms = walked.headline.results[0], exact_terms(settings, walked)
    return held_day(result, replica, terms, settings.exact, progress=progress)


def exact_terms(settings: DaySettings, walked: VirtualDay) -> ExactTerms:
    """How the groups of a day that was walked are simulated."""
    return ExactTerms(
        groups=walked.machine.groups,
        look_s=settings.question.terms.look_s,
        grace_s=settings.grace_s,
        job=settings.job,
        handover=walked.handover,
        capacity_per_s=walked.machine.curve.least_capacity_per_s,
        seed=settings.question.terms.seed,
    )


def walkable_machine(
    settings: DaySettings,
    *,
    workers: SimulationWorkers = THIS_PROCESS,
    progress: Progress = lambda _: None,
    store: FigureStore | None = None,
    lap: Callable[[str], None] = lambda _: None,
) -> WalkableMachine:
    """Choose a replica and simulate its curve, unless a `store` has it; `lap` is called as each
    stage ends.

    Raises ConfigError when no replica keeps the target or the trained model does not fit.
    """

    def compute() -> MachineFigures:
        return _figures(settings, workers, progress, lap)

    if store is None:
        figures = compute()
    else:
        terms = (settings.limits, settings.group_chips, settings.curve, settings.job)
        figures = store.figures(
            (settings.sweep, settings.slo, settings.lengths, *terms),
            compute,
            lambda error: progress(f"what is simulated is not kept: {error}"),
        )
        lap("kept")
    choice = figures.choice
    replica = _under_test(settings, choice)
    _, group_chips = _groups(choice, replica)
    served = settings.sweep.model_at(choice.precision)
    machine = DayMachine(
        system=settings.sweep.system,
        machines=settings.machines,
        group_chips=group_chips,
        curve=figures.curve,
        trained=figures.trained,
        mean_prompt_tokens=replica.mean_prompt_tokens,
        mean_output_tokens=replica.mean_output_tokens,
        flops_per_request=mean_request_flops(served, settings.lengths),
        season=settings.sweep.season,
        unit=settings.unit,
    )
    handover = group_handover(
        settings.job,
        served,
        choice.candidate,
        figures.curve,
        settings.lengths,
        grace_s=settings.grace_s,
    )
    if figures.parts is not None:
        handover = replace(
            handover,
            restore_s=figures.parts.restore_s,
            restore_joules=figures.parts.joules,
            groups_min=figures.serving[0],
        )
    return WalkableMachine(
        choice=choice,
        replica=replica,
        machine=machine,
        handover=handover,
        parts=figures.parts,
        kept_unix_s=figures.kept_unix_s,
    )


def _figures(
    settings: DaySettings,
    workers: SimulationWorkers,
    progress: Progress,
    lap: Callable[[str], None],
) -> MachineFigures:
    """Of a replica, or of an engine and its parts; raises as `walkable_machine`."""
    choice, replica = chosen(settings)
    groups, group_chips = _groups(choice, replica)
    what = "a replica is" if replica.group_chips is None else "a group is a part of an engine,"
    progress(
        f"{what} {group_chips} chips ({choice.candidate.partition.division}), {groups} of them "
        f"on a {settings.sweep.system.name}"
    )
    lap("choice")
    trained = training_yield(settings.job, group_chips=group_chips, groups=groups)
    lap("training")
    parts = None if replica.group_chips is None else partition_handover(replica)
    if parts is None:
        terms = replace(settings.curve, turns=turns_of(groups))
        found = {groups: find_curve(replica, choice.guess, terms, workers, progress)}
    else:
        found = find_partition_curves(
            replica,
            choice.guess,
            settings.curve,
            workers,
            progress,
            groups_min=parts.groups_min,
        )
    lap("curve")
    return MachineFigures(
        choice=choice,
        serving=tuple(found),
        curves=tuple(found.values()),
        trained=trained,
        parts=parts,
    )


def _walked(
    settings: DaySettings, walkable: WalkableMachine, wall_s: dict[str, float]
) -> VirtualDay:
    machine, handover = walkable.machine, walkable.handover
    answer = VirtualDay(
        settings=settings,
        choice=walkable.choice,
        machine=machine,
        kept_unix_s=walkable.kept_unix_s,
        handover=handover,
        parts=walkable.parts,
        loads=compare(settings.question, machine, handover),
        slower=(),
        check=None,
        exact=None,
        wall_s=wall_s,
    )
    slower = with_slower_handovers(
        settings.question,
        machine,
        handover,
        peak_share=answer.headline.peak_share,
        start_s=settings.job.start_s,
    )
    return replace(answer, slower=slower)


def chosen(settings: DaySettings) -> tuple[ReplicaChoice, ReplicaUnderTest]:
    """The replica of a day; raises ConfigError as `virtual_day`."""
    lengths = settings.lengths
    choice = choose_replica(
        settings.sweep,
        settings.slo,
        longest_tokens=int((lengths.prompt_tokens + lengths.output_tokens).max()),
        seats=settings.limits.max_num_seqs,
        group_chips=settings.group_chips,
    )
    return choice, _under_test(settings, choice)


def _under_test(settings: DaySettings, choice: ReplicaChoice) -> ReplicaUnderTest:
    return ReplicaUnderTest(
        sweep=settings.sweep,
        precision=choice.precision,
        candidate=choice.candidate,
        limits=settings.limits.with_kv(choice.candidate.kv_capacity_tokens),
        lengths=settings.lengths,
        slo=settings.slo,
        group_chips=settings.group_chips,
    )


def _groups(choice: ReplicaChoice, replica: ReplicaUnderTest) -> tuple[int, int]:
    """Groups of a machine, and the chips of each."""
    if replica.group_chips is None:
        return choice.candidate.replicas, choice.chips
    return replica.groups, replica.group_chips

"""Every operating point of one model on one machine: partitions, batches, precisions and LNCs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Final, TypeVar

from emulator.errors import ConfigError
from emulator.memory.chip_contents import HbmTerms
from emulator.specs.model import ModelSpec
from emulator.specs.rack_power import Season
from emulator.specs.system import SystemSpec
from emulator.timing.expert_distribution import ExpertDistribution
from emulator.ultraserver.step_cost import StepCostModel
from serving.analysis.steady_state.envelope import Envelope
from serving.analysis.steady_state.operating_point import OperatingPoint
from serving.analysis.steady_state.partitions import (
    PartitionCandidate,
    PartitionFilter,
    candidate_partitions,
)
from serving.analysis.steady_state.precision import model_at, precisions_of
from serving.analysis.steady_state.replica import Replica
from serving.analysis.steady_state.request_shape import RequestShape
from serving.analysis.steady_state.step_assumptions import StepAssumptions
from serving.simulator import THIS_PROCESS, SimulationWorkers

Task = tuple[str, PartitionCandidate]
"""A precision and a partition to try in it."""
Result = TypeVar("Result")

_PARTS_BETWEEN: Final = (0.25, 0.5, 0.75)
"""Places of further batches between two powers of two."""

ROUTING_SEED: Final = 0
PARALLEL_FROM: Final = 40
"""Candidates from which on processes are worth their start of about two seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A question: the operating points of `model` on `system`.

    Attributes:
        precisions: empty tries all of the chip.
        batches: decoding requests of a rank; empty tries powers of two and the largest that fits,
            and some between them for partitions on the envelope.
        routing: of tokens over experts, as `ExpertDistribution.parse` reads it.

    Raises ConfigError for a precision that the chip lacks, or a batch below one.
    """

    system: SystemSpec
    model: ModelSpec
    shape: RequestShape
    asked: PartitionFilter = field(default_factory=PartitionFilter)
    precisions: tuple[str, ...] = ()
    batches: tuple[int, ...] = ()
    terms: HbmTerms = field(default_factory=HbmTerms)
    assumptions: StepAssumptions = field(default_factory=StepAssumptions)
    routing: str = "uniform"
    season: Season = Season.PEAK

    def __post_init__(self) -> None:
        for precision in self.precisions:
            model_at(precision, self.model, self.system.chip)
        for batch in self.batches:
            if batch < 1:
                raise ConfigError(field="batch", value=batch, expected="at least 1")
        self._distribution(self.model)

    def tasks(self) -> list[Task]:
        """Each precision with each partition that fits; raises ConfigError without any."""
        found: list[Task] = []
        refusal: ConfigError | None = None
        for precision in self.precisions or precisions_of(self.system.chip, self.model):
            try:
                candidates = candidate_partitions(
                    self.system,
                    self.model_at(precision),
                    asked=self.asked,
                    terms=self.terms,
                    least_kv_tokens=self.shape.tokens,
                )
            except ConfigError as error:
                refusal = error
                continue
            found += [(precision, candidate) for candidate in candidates]
        if not found and refusal is not None:
            raise refusal
        return found

    def model_at(self, precision: str) -> ModelSpec:
        """The model with its weights in `precision`."""
        return model_at(precision, self.model, self.system.chip)

    def cost_model(self, precision: str, candidate: PartitionCandidate) -> StepCostModel:
        """Of one candidate's replicas, in that precision."""
        model = self.model_at(precision)
        distribution = self._distribution(model)
        return self.assumptions.cost_model(self.system, model, candidate, distribution)

    def replica(self, precision: str, candidate: PartitionCandidate) -> Replica:
        """The cost of one candidate's steps."""
        model = self.model_at(precision)
        return Replica(
            self.system,
            model,
            candidate,
            shape=self.shape,
            precision=precision,
            assumptions=self.assumptions,
            distribution=self._distribution(model),
            season=self.season,
        )

    def steps_in_words(self) -> str:
        """Calibration, overlap and routing."""
        calibration = self.assumptions.calibration_in_words(self.system.chip)
        return f"{calibration}; overlap {self.assumptions.overlap.value}, routing {self.routing}"

    def _distribution(self, model: ModelSpec) -> ExpertDistribution:
        return ExpertDistribution.parse(self.routing, model, seed=ROUTING_SEED)


def operating_points(
    sweep: Sweep, *, workers: SimulationWorkers = THIS_PROCESS
) -> tuple[OperatingPoint, ...]:
    """Points with prefill and decode on the same chips; raises ConfigError when no batch fits."""
    points = shared(_points_of, sweep, workers)
    if not points:
        raise no_batch_fits(sweep)
    if not sweep.batches:
        points += _points_between(sweep, points)
    return tuple(sorted(points, key=point_order))


def _points_between(sweep: Sweep, points: list[OperatingPoint]) -> list[OperatingPoint]:
    """Batches between the powers of two, for the partitions on the envelope.

    Step time is not quite affine in the batch (few rows cost as much as a minimum of them): a line
    between two powers of two may be off by a tenth.
    """
    interactivity = [point.tokens_per_s_per_user for point in points]
    envelope = Envelope.of(interactivity, [point.output_tokens_per_s for point in points])
    known: dict[tuple[str, PartitionCandidate], set[int]] = {}
    for point in points:
        known.setdefault((point.precision, point.candidate), set()).add(point.batch)
    best = dict.fromkeys(
        (points[index].precision, points[index].candidate) for index in envelope.chosen.tolist()
    )
    found = []
    for precision, candidate in best:
        replica = sweep.replica(precision, candidate)
        batches = sorted(known[precision, candidate])
        between = {
            low + round((high - low) * part)
            for low, high in pairwise(batches)
            for part in _PARTS_BETWEEN
        }
        found += replica.operating_points(sorted(between.difference(batches)))
    return found


def shared(
    work: Callable[[Sweep, Task], list[Result]], sweep: Sweep, workers: SimulationWorkers
) -> list[Result]:
    """Results of `work`, a module's function, for a sweep's tasks, in their order."""
    tasks = sweep.tasks()
    count = workers.count if len(tasks) >= PARALLEL_FROM else 1
    if count == 1:
        return [result for task in tasks for result in work(sweep, task)]
    # Large and small partitions take turns, so that every process has as much to do.
    parts = [(work, sweep, tasks[first::count]) for first in range(count)]
    found: list[list[Result]] = [[] for _ in tasks]
    for first, results in enumerate(workers.map(_results_of, parts)):
        found[first::count] = results
    return list(chain.from_iterable(found))


def _results_of(
    part: tuple[Callable[[Sweep, Task], list[Result]], Sweep, Sequence[Task]],
) -> list[list[Result]]:
    work, sweep, tasks = part
    return [work(sweep, task) for task in tasks]


def no_batch_fits(sweep: Sweep) -> ConfigError:
    """The error of a sweep in which no partition has a batch."""
    return ConfigError(
        field="batch",
        value=",".join(map(str, sweep.batches)) or "any",
        expected=f"one that fits the KV pool of some partition, and with its prompts "
        f"{sweep.shape.batched_tokens_max:,} tokens a step",
    )


def point_order(point: OperatingPoint) -> tuple[object, ...]:
    """A sort key of the choice, not of its figures."""
    partition = point.candidate.partition
    sizes = (partition.chips, partition.tp, partition.ep, partition.lnc)
    return (point.precision, *sizes, point.batch)


def _points_of(sweep: Sweep, task: Task) -> list[OperatingPoint]:
    replica = sweep.replica(*task)
    return replica.operating_points(list(replica.batches(sweep.batches)))

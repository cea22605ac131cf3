"""Every operating point of one model on one machine: partitions, batches, precisions and LNCs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any, Final, TypeVar

from emulator.errors import ConfigError
from emulator.memory.chip_contents import HbmTerms
from emulator.specs.model import ModelSpec
from emulator.specs.precisions import model_at, precisions_of
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
_PARTS_OF_PROCESS: Final = 4
"""So that a process that is done with its own takes another's."""
PARALLEL_FROM: Final = 40
"""Candidates from which on processes are worth their start of about two seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A question: the operating points of `model` on `system`.

    Attributes:
        precisions: empty tries all of the chip.
        batches: decoding requests of a rank; empty tries powers of two and the largest that fits,
            and some between them for partitions on the envelope.
        routing: of tokens over experts, as `ExpertDistribution.parse` reads it into `distribution`.

    Raises ConfigError for a precision that the chip lacks, or a batch below one.
    """

    system: SystemSpec
    model: ModelSpec
    shape: RequestShape
    asked: PartitionFilter = field(default_factory=PartitionFilter)
    precisions: tuple[str, ...] = ()
    batches: tuple[int, ...] = ()
    terms: HbmTerms = field(default_factory=HbmTerms)
    assumptions: StepAssumptions
    routing: str = "uniform"
    season: Season = Season.PEAK
    distribution: ExpertDistribution = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for precision in self.precisions:
            model_at(precision, self.model, self.system.chip)
        for batch in self.batches:
            if batch < 1:
                raise ConfigError("batch", batch, "at least 1")
        distribution = ExpertDistribution.parse(self.routing, self.model, seed=ROUTING_SEED)
        object.__setattr__(self, "distribution", distribution)

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
                    context_tokens=self.shape.decode_context_tokens,
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
        return self.assumptions.cost_model(self.system, model, candidate, self.distribution)

    def replica(self, precision: str, candidate: PartitionCandidate) -> Replica:
        """The cost of one candidate's steps."""
        return Replica(
            self.system,
            self.model_at(precision),
            candidate,
            shape=self.shape,
            precision=precision,
            assumptions=self.assumptions,
            distribution=self.distribution,
            season=self.season,
        )

    def as_data(self) -> dict[str, Any]:
        """What its steps depend on beside the machine, the model and the partition, for JSON."""
        return {
            "assumptions": self.system.turned_switches(),
            "prompt_tokens": self.shape.prompt_tokens,
            "output_tokens": self.shape.output_tokens,
            "prefill_chunk_tokens": self.shape.prefill_chunk_tokens,
            "batched_tokens_max": self.shape.batched_tokens_max,
            "across_units": self.asked.across_units,
            "routing": self.routing,
            "overlap": self.assumptions.overlap.value,
            "calibration": self.assumptions.calibration.name,
            "hbm_utilization": self.terms.utilization,
        }

    def steps_in_words(self) -> str:
        """Calibration, overlap and routing."""
        calibration = self.assumptions.calibration_in_words(self.system.chip)
        return f"{calibration}; overlap {self.assumptions.overlap.value}, routing {self.routing}"


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
    on_chips: dict[int, list[int]] = {}  # tasks by number of chips: one process knows their links
    for place, (_, candidate) in enumerate(tasks):
        on_chips.setdefault(candidate.partition.chips, []).append(place)
    in_processes = workers.count > 1 and len(tasks) >= PARALLEL_FROM
    run, count = (workers, workers.count * _PARTS_OF_PROCESS) if in_processes else (THIS_PROCESS, 1)
    largest_first = [on_chips[chips] for chips in sorted(on_chips, reverse=True)]
    parts = [list(chain.from_iterable(largest_first[first::count])) for first in range(count)]
    for part in parts:
        part.sort(key=lambda place: _order(tasks[place]))
    given = [(work, sweep, [tasks[place] for place in part]) for part in parts]
    found: list[list[Result]] = [[] for _ in tasks]
    for part, results in zip(parts, run.map(_results_of, given), strict=True):
        for place, of_task in zip(part, results, strict=True):
            found[place] = of_task
    return list(chain.from_iterable(found))


def _order(task: Task) -> tuple[int, ...]:
    """What a cost model is made of is kept as long as the next have it too: terms of ranks by TP,
    links and experts by chips and EP.
    """
    partition = task[1].partition
    return (partition.tp, partition.chips, partition.ep)


def _results_of(
    part: tuple[Callable[[Sweep, Task], list[Result]], Sweep, Sequence[Task]],
) -> list[list[Result]]:
    work, sweep, tasks = part
    return [work(sweep, task) for task in tasks]


def no_batch_fits(sweep: Sweep) -> ConfigError:
    """The error of a sweep in which no partition has a batch."""
    return ConfigError(
        "batch",
        ",".join(map(str, sweep.batches)) or "any",
        f"one that fits the KV pool of some partition, and with its prompts "
        f"{sweep.shape.batched_tokens_max:,} tokens a step",
    )


def point_order(point: OperatingPoint) -> tuple[object, ...]:
    """A sort key of the choice, not of its figures."""
    partition = point.candidate.partition
    sizes = (partition.chips, partition.tp, partition.ep, partition.lnc, partition.attention_split)
    return (point.precision, *sizes, point.batch)


def _points_of(sweep: Sweep, task: Task) -> list[OperatingPoint]:
    replica = sweep.replica(*task)
    return replica.operating_points(list(replica.batches(sweep.batches)))

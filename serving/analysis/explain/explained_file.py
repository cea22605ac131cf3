"""Points of the files that `ultraserve pareto --json` and `plan --json` write, as questions."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from emulator.errors import ConfigError
from emulator.memory.chip_contents import HbmTerms
from emulator.specs.assumptions import with_assumptions
from emulator.specs.attention_split import AttentionSplit
from emulator.specs.models import model_by_name
from emulator.specs.overlap import Overlap
from emulator.specs.partition import Partition
from emulator.specs.precisions import model_at
from emulator.specs.shipped_fits import calibration_for
from emulator.specs.systems import system_by_name
from emulator.timing.expert_distribution import ExpertDistribution
from emulator.units import NS_PER_S
from serving.analysis.explain.explanation import Compared
from serving.analysis.explain.step_load import DeclaredLoad, PromptLoad, SteadyLoad, StepLoad
from serving.analysis.explain.step_question import StepQuestion, left_out_calibrations
from serving.analysis.steady_state.partitions import declared_candidate
from serving.analysis.steady_state.request_shape import RequestShape
from serving.analysis.steady_state.step_assumptions import StepAssumptions
from serving.analysis.steady_state.sweep import ROUTING_SEED

_FILES: Final = "a file of `ultraserve pareto --json` or `ultraserve plan --json`"


class SweepFields(msgspec.Struct, frozen=True, kw_only=True):
    """What `Sweep.as_data` writes."""

    system: str
    prompt_tokens: int
    output_tokens: int
    prefill_chunk_tokens: int | None
    batched_tokens_max: int
    across_units: bool
    assumptions: tuple[str, ...]
    routing: str
    overlap: str
    calibration: str
    hbm_utilization: float


class PartitionFields(msgspec.Struct, frozen=True, kw_only=True):
    """A partition."""

    chips: int
    tp: int
    ep: int
    lnc: int
    attention_split: str

    def partition(self) -> Partition:
        """The same as a partition; raises ConfigError."""
        return Partition(
            chips=self.chips,
            tp=self.tp,
            ep=self.ep,
            lnc=self.lnc,
            attention_split=AttentionSplit.named(self.attention_split),
        )


class ParetoPointFields(PartitionFields, frozen=True, kw_only=True):
    """One point of a machine."""

    precision: str
    batch: int
    tpot_ns: float
    ttft_ns: float
    prefill: PartitionFields | None


class ParetoMachineFields(SweepFields, frozen=True, kw_only=True):
    """A machine with its points."""

    chip: str
    units: int
    points: tuple[ParetoPointFields, ...]


class ParetoFields(msgspec.Struct, frozen=True, kw_only=True):
    """`ultraserve pareto --json`."""

    model: str
    machines: tuple[ParetoMachineFields, ...]


class PlanQuestionFields(SweepFields, frozen=True, kw_only=True):
    """The question of a plan."""

    model: str


class PlanChoiceFields(msgspec.Struct, frozen=True, kw_only=True):
    """The partition that a plan chose."""

    partition: PartitionFields
    precision: str


class PlanCandidateFields(PlanChoiceFields, frozen=True, kw_only=True):
    """A partition that a plan looked at, at the highest load of a replica."""

    batch: int
    tpot_s: float


class PlanFields(msgspec.Struct, frozen=True, kw_only=True):
    """`ultraserve plan --json`."""

    question: PlanQuestionFields
    plan: PlanChoiceFields
    candidates: tuple[PlanCandidateFields, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Point:
    """A point of either file."""

    subject: str
    model: str
    system: str
    units: int
    partition: Partition
    precision: str
    batch: int
    tpot_ns: float
    ttft_ns: float | None
    pooled: bool


def read_file(path: Path) -> ParetoFields | PlanFields:
    """The file of a sweep or a plan; raises ConfigError."""
    try:
        held = path.read_bytes()
    except OSError as error:
        raise ConfigError("file", path, f"a file that can be read ({error.strerror})") from error
    try:
        names = msgspec.json.decode(held)
        if isinstance(names, dict) and "machines" in names:
            return msgspec.json.decode(held, type=ParetoFields)
        return msgspec.json.decode(held, type=PlanFields)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError("file", path, f"{_FILES} of this release ({error})") from error


def point_of_file(
    path: Path, *, point: int | None, system: str | None, prompt: bool
) -> tuple[StepQuestion, tuple[Compared, ...]]:
    """The step of a point, by its place from 0 on, and what the file says of it.

    Of a plan by default the partition that it chose. `prompt`: the pass of one prompt on an idle
    replica instead of the mean step between tokens. Raises ConfigError.
    """
    held = read_file(path)
    if isinstance(held, PlanFields):
        if system is not None:
            raise ConfigError("system", system, "nothing with a plan's file")
        return _asked(_of_plan(held, path, point), held.question, prompt=prompt)
    machine = _machine(held, system)
    return _asked(_of_pareto(held, machine, path, point), machine, prompt=prompt)


def _machine(held: ParetoFields, system: str | None) -> ParetoMachineFields:
    for machine in held.machines:
        if system in (None, machine.system):
            return machine
    names = ", ".join(machine.system for machine in held.machines)
    raise ConfigError("system", system, f"one of the file's: {names}")


def _of_pareto(
    held: ParetoFields, machine: ParetoMachineFields, path: Path, place: int | None
) -> _Point:
    last = len(machine.points) - 1
    if place is None or not 0 <= place <= last:
        value = "(not given)" if place is None else place
        raise ConfigError("point", value, f"0 to {last:,}, a point's place")
    point = machine.points[place]
    if point.prefill is not None:
        subject = f"point {place} of {path.name}, decode pool"
    else:
        subject = f"point {place} of {path.name}"
    return _Point(
        subject=subject,
        model=held.model,
        system=machine.system.removeprefix(f"{machine.units} x "),
        units=machine.units if machine.system.startswith(f"{machine.units} x ") else 1,
        partition=point.partition(),
        precision=point.precision,
        batch=point.batch,
        tpot_ns=point.tpot_ns,
        ttft_ns=None if point.prefill is not None else point.ttft_ns,
        pooled=point.prefill is not None,
    )


def _of_plan(held: PlanFields, path: Path, place: int | None) -> _Point:
    chosen = (held.plan.partition, held.plan.precision)
    if place is None:
        places = [(each.partition, each.precision) for each in held.candidates]
        place = places.index(chosen)
    last = len(held.candidates) - 1
    if not 0 <= place <= last:
        raise ConfigError("point", place, f"0 to {last:,}, a candidate's place")
    point = held.candidates[place]
    is_plan = (point.partition, point.precision) == chosen
    return _Point(
        subject=f"the plan of {path.name}" if is_plan else f"candidate {place} of {path.name}",
        model=held.question.model,
        system=held.question.system,
        units=1,
        partition=point.partition.partition(),
        precision=point.precision,
        batch=point.batch,
        tpot_ns=point.tpot_s * NS_PER_S,
        ttft_ns=None,
        pooled=False,
    )


def _asked(
    point: _Point, fields: SweepFields, *, prompt: bool
) -> tuple[StepQuestion, tuple[Compared, ...]]:
    system = with_assumptions(system_by_name(point.system), fields.assumptions)
    system = system.cluster(point.units)
    model = model_at(point.precision, model_by_name(point.model), system.chip)
    shape = RequestShape(
        prompt_tokens=fields.prompt_tokens,
        output_tokens=fields.output_tokens,
        prefill_chunk_tokens=fields.prefill_chunk_tokens,
        batched_tokens_max=fields.batched_tokens_max,
    )
    assumed = StepAssumptions(
        overlap=Overlap(fields.overlap),
        calibration=calibration_for(system.chip.name, name=fields.calibration),
    )
    if prompt and point.pooled:
        raise ConfigError("prompt", True, "none of a decode pool, which computes no prompts")
    load: StepLoad = SteadyLoad(shape=shape)
    said, what = point.tpot_ns, "TPOT in the file"
    if prompt:
        load, what = PromptLoad(shape=shape), "TTFT in the file"
        said = point.ttft_ns or 0.0
    elif point.pooled:
        load = DeclaredLoad(context_tokens=shape.decode_context_tokens)
    terms = HbmTerms(utilization=fields.hbm_utilization)
    question = StepQuestion(
        subject=f"{point.subject}, {'one prompt' if prompt else 'mean step'}",
        system=system,
        model=model,
        precision=point.precision,
        candidate=declared_candidate(
            system, model, point.partition, terms=terms, across_units=fields.across_units
        ),
        load=load,
        requests=0 if prompt else point.batch * point.partition.ranks,
        assumptions=assumed,
        routing=fields.routing,
        distribution=ExpertDistribution.parse(fields.routing, model, seed=ROUTING_SEED),
        terms=terms,
        across_units=fields.across_units,
        left_out=left_out_calibrations(system.chip.name, name=fields.calibration),
        intervals={} if prompt else assumed.model_error,
    )
    return question, (Compared(what=what, ns=said),) if said else ()

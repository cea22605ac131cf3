"""A recorded step of a running server as a question.

The control service tells a step's tokens by rank, not its requests' contexts or expert loads: the
mean context is the one with which the step moves as many bytes of HBM as the server counted.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np

from emulator.errors import ConfigError
from emulator.specs.assumptions import AssumptionSet
from emulator.specs.attention_split import AttentionSplit
from emulator.specs.batch import StepBatch
from emulator.specs.figure import Figure
from emulator.specs.models import model_by_name
from emulator.specs.overlap import Overlap
from emulator.specs.partition import Partition
from emulator.specs.shipped_fits import calibration_for
from emulator.specs.system import SystemSpec
from emulator.specs.systems import system_by_name
from emulator.timing.expert_distribution import ExpertDistribution
from serving.analysis.explain.explanation import Compared
from serving.analysis.explain.step_load import DeclaredLoad, StepLoad, WeightedSteps
from serving.analysis.explain.step_question import StepQuestion, left_out_calibrations
from serving.analysis.steady_state.partitions import declared_candidate
from serving.analysis.steady_state.step_assumptions import StepAssumptions
from serving.analysis.steady_state.sweep import ROUTING_SEED
from serving.wire.step_record import StepPhase, StepRecord
from serving.wire.system_description import SpecSheet, SystemDescription

_UNIFORM = "uniform"
_NAMED = re.compile(r"(?P<name>uniform|zipf:[\d.]+)(?: \(seed (?P<seed>\d+)\))? \(expected\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedLoad:
    """A step's tokens by rank, [ranks] each; a rank's prompt tokens are one new prompt."""

    prefill_tokens: tuple[int, ...]
    decodes: tuple[int, ...]
    context_tokens: int

    def steps(self, ranks: int, requests: int) -> WeightedSteps:
        """As recorded on as many ranks; spread evenly over others."""
        if ranks != len(self.decodes):
            return self._spread(1).steps(ranks, requests)
        each = np.arange(ranks, dtype=np.int64)
        prompts = np.array(self.prefill_tokens, dtype=np.int64)
        decodes = np.array(self.decodes, dtype=np.int64)
        prompting = each[prompts > 0]
        rank = np.concatenate([np.repeat(each, decodes), prompting])
        batch = StepBatch(
            ranks=ranks,
            rank=rank,
            new_tokens=np.concatenate([np.ones(decodes.sum(), dtype=np.int64), prompts[prompting]]),
            context_tokens=np.concatenate(
                [np.full(decodes.sum(), self.context_tokens), np.zeros_like(prompting)]
            ),
            logit_rows=np.bincount(rank, minlength=ranks),
        )
        return [(1.0, batch)]

    def tokens(self, requests: int) -> float:
        """One of each decode; of prompts alone, theirs."""
        return requests or sum(self.prefill_tokens)

    def rank_tokens(self, ranks: int, requests: int) -> int:
        """Contexts and prompts, spread."""
        return self._spread(1).rank_tokens(ranks, requests)

    def shared(self, engines: int) -> StepLoad:
        """An even part of the prompts."""
        return self if engines == 1 else self._spread(engines)

    def _spread(self, engines: int) -> DeclaredLoad:
        """A prompt on each rank that has prompt tokens, spread evenly."""
        prompts = sum(self.prefill_tokens)
        return DeclaredLoad(
            context_tokens=self.context_tokens,
            prefill_tokens=ceil(prompts / engines),
            prompt_tokens=max(1, *self.prefill_tokens),
        )

    def in_words(self) -> str:
        """A line."""
        prompts = sum(self.prefill_tokens)
        words = f"mean context {self.context_tokens:,}" if any(self.decodes) else "no decodes"
        return f"{words}, {prompts:,} prompt tokens" if prompts else words


def typical_step(steps: Sequence[StepRecord], phase: StepPhase | None) -> StepRecord:
    """The step of median duration of a phase, by default of the one with the most time.

    Raises ConfigError for a phase without steps.
    """
    if phase is None:
        spent: dict[StepPhase, int] = {}
        for step in steps:
            spent[step.phase] = spent.get(step.phase, 0) + step.duration_ns
        phase = max(spent, key=lambda each: spent[each])
    of_phase = sorted(
        (step for step in steps if step.phase is phase), key=lambda each: each.duration_ns
    )
    if not of_phase:
        there = ", ".join(sorted({str(step.phase) for step in steps}))
        raise ConfigError("phase", phase, f"one that was recorded: {there}")
    return of_phase[len(of_phase) // 2]


def step_of_server(
    description: SystemDescription, step: StepRecord
) -> tuple[StepQuestion, tuple[Compared, ...], tuple[str, ...]]:
    """A recorded step, beside its recorded duration, and what was not told.

    Raises ConfigError for a server that times a model outside the catalog.
    """
    system = _as_described(system_by_name(description.system.name), description)
    model = model_by_name(description.model.name)
    told = description.partition
    partition = Partition(
        chips=told.chips,
        tp=told.tp,
        ep=told.ep,
        lnc=told.lnc,
        first_chip=told.first_chip,
        attention_split=AttentionSplit.named(told.attention_split),
    )
    assumed = StepAssumptions(
        overlap=Overlap(description.overlap),
        calibration=calibration_for(system.chip.name, name=description.calibration),
    )
    routing, distribution = _routing(description.routing, model)
    load = RecordedLoad(
        prefill_tokens=step.prefill_tokens, decodes=step.decode_tokens, context_tokens=1
    )
    candidate = declared_candidate(system, model, replace(partition, first_chip=0))
    question = StepQuestion(
        subject=f"step {step.step} of the server ({step.phase})",
        system=system,
        model=model,
        precision="stored",
        candidate=replace(candidate, first_chip=partition.first_chip),
        load=load,
        requests=sum(step.decode_tokens),
        assumptions=assumed,
        routing=routing,
        distribution=distribution,
        left_out=left_out_calibrations(system.chip.name, name=description.calibration),
        intervals=assumed.model_error if step.phase is StepPhase.DECODE else {},
    )
    if question.requests:
        context_tokens = _context_of(question, load, sum(step.hbm_bytes))
        question = replace(question, load=replace(load, context_tokens=context_tokens))
    parts = sorted(step.parts_ns.items(), key=lambda each: -each[1])
    shown = ", ".join(f"{part} {ns / 1e6:,.3f} ms" for part, ns in parts[:6] if ns > 0)
    notes = (
        f"as the server timed it: {shown}",
        "not told, and what the difference is: contexts (the mean that moves the recorded bytes "
        "of HBM stands for all), how prompt tokens divide into prompts (one a rank), expert loads "
        f"({routing}), faults and moved experts",
    )
    recorded = Compared(what="recorded", ns=float(step.duration_ns))
    return question, (recorded,), notes


def _routing(words: str, model: Any) -> tuple[str, ExpertDistribution]:
    """The server's expected distribution; uniform where its routers are computed or recorded."""
    if found := _NAMED.fullmatch(words):
        seed = int(found["seed"] or ROUTING_SEED)
        return found["name"], ExpertDistribution.parse(found["name"], model, seed=seed)
    return (
        f"{_UNIFORM} for {words}",
        ExpertDistribution.parse(_UNIFORM, model, seed=ROUTING_SEED),
    )


def _context_of(question: StepQuestion, load: RecordedLoad, moved_bytes: float) -> int:
    """The mean context with which the step moves at most so many bytes, by bisection."""
    low, high = 1, question.model.max_context_tokens
    costs = question.cost_model()
    while low < high:
        middle = (low + high + 1) // 2
        tried = replace(load, context_tokens=middle)
        ((_, batch),) = tried.steps(len(load.decodes), question.requests)
        if float(costs.cost(batch).hbm_bytes.sum()) <= moved_bytes:
            low = middle
        else:
            high = middle - 1
    return low


def _as_described(system: SystemSpec, description: SystemDescription) -> SystemSpec:
    """The catalog's system under the assumptions that give the figures that the server has."""
    for spec, switches, sheet in (
        (system, system.variants, description.system),
        (system.chip, system.chip.switches, description.chip),
    ):
        for switch in switches:
            if (name := _assumption_of(spec, switch, sheet)) is not None:
                system = system.assuming(switch.name, name)
    return system.with_figures(_set_figures(description.system) | _set_figures(description.chip))


def _set_figures(sheet: SpecSheet) -> dict[str, Figure]:
    """Those that the server's user has set."""
    figures = {each.name: Figure(each.value, each.unit, each.source) for each in sheet.figures}
    return {name: figure for name, figure in figures.items() if figure.is_set}


def _assumption_of(spec: object, switch: AssumptionSet, sheet: SpecSheet) -> str | None:
    """The assumption with all of the sheet's values that were not set; None for the spec's own."""
    changed = _set_figures(sheet)
    told = {figure.name: figure.value for figure in sheet.figures}

    def agrees(name: str, value: object) -> bool:
        if not isinstance(value, Figure) or name in changed:
            return True
        return told.get(name) == value.value

    def fits(figures: Any) -> bool:
        return all(agrees(name, value) for name, value in figures.items())

    own = {name: getattr(spec, name) for name in switch.assumptions[0].figures}
    if fits(own):
        return None
    return next((each.name for each in switch.assumptions if fits(each.figures)), None)

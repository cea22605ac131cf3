"""Duration of a step if one resource of the machine or its stack were faster.

One resource's time is divided everywhere and the counted step combined again, so the answer
includes all overlap and waiting; it is no share of time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from emulator.arrays import Float64s
from emulator.errors import ConfigError
from emulator.specs.batch import StepBatch
from emulator.specs.calibration import Calibration
from emulator.specs.expert_loads import ExpertLoads
from emulator.timing.roofline import ENGINES
from emulator.ultraserver.machine import StepCosting
from emulator.ultraserver.step_cost import StepCostModel
from emulator.ultraserver.step_terms import PhaseTerms, StepTerms
from emulator.ultraserver.step_time import combine, whole_ns
from emulator.ultraserver.step_work import StepWork, step_work


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A resource that can be faster: engines, other times of a phase, terms of a calibration."""

    engines: tuple[str, ...] = ()
    times: tuple[str, ...] = ()
    calibrated: tuple[str, ...] = ()
    launches: bool = False


RESOURCES: Final[Mapping[str, Resource]] = {
    # The matrix engine with what it loses to its clock and to filling and draining.
    "tensor": Resource(engines=("tensor",), times=("ramp_ns", "fill_drain_ns")),
    "vector": Resource(engines=("vector",)),
    "scalar": Resource(engines=("scalar",)),
    "gpsimd": Resource(engines=("gpsimd",)),
    # HBM and the DMAs that stream from it, by bytes.
    "memory": Resource(engines=("dma",)),
    # The links between chips, by bytes; then what a collective takes before its first byte.
    "links": Resource(times=("link_ns",)),
    "collective starts": Resource(
        times=("latency_ns",), calibrated=("collective_ns", "exchange_ns")
    ),
    # Sums over the logical cores of a chip.
    "core collectives": Resource(times=("core_ns",)),
    "launches": Resource(times=("dma_start_ns", "launch_ns"), launches=True),
    "layer overheads": Resource(calibrated=("layer_ns", "expert_layer_ns")),
    "step overheads": Resource(calibrated=("step_ns", "prefill_step_ns", "request_ns")),
}

EVEN_EXPERTS: Final = "even experts"
FULL_SPEED: Final = "slow chips at full speed"
POWER: Final = "power budget"
SPEEDLESS: Final = frozenset({EVEN_EXPERTS, FULL_SPEED})
"""Answers without a factor: work spread evenly, no slow chips."""


def what_if_ns(
    costing: StepCosting, batch: StepBatch, loads: ExpertLoads | None = None, *, factor: float
) -> dict[str, int]:
    """Duration of the step that runs `batch` with each of `RESOURCES` `factor` times as fast.

    With experts also `EVEN_EXPERTS`: every chip of an exchanging group has the mean chip's expert
    work, the limit of moving and copying experts. With slow chips also `FULL_SPEED`; where power
    stretches the step, `POWER`: `factor` times the budget above idle.

    Raises ConfigError for a factor that is not above 1, ValueError as `StepCostModel.cost` does.
    """
    if not 1 < factor < float("inf"):
        raise ConfigError("factor", factor, "a number above 1")
    model = costing.model
    terms = model.terms(batch, loads, costing.slow_factor)
    if terms is None:
        return dict.fromkeys(RESOURCES, 0)
    work = step_work(terms)

    answers = {
        name: held_ns(
            model,
            faster_terms(terms, resource, factor),
            faster_calibration(model.calibration, resource, factor),
            work=work,
        )
        for name, resource in RESOURCES.items()
    }
    if terms.experts is not None:
        answers[EVEN_EXPERTS] = held_ns(model, even_experts(terms), work=work)
    if (terms.slow > 1).any():
        answers[FULL_SPEED] = held_ns(model, at_full_speed(terms), work=work)
    free_ns = combine(terms, model.calibration, model.overlap).duration_ns
    if (throttle := model.throttle(work, free_ns)) > 1:
        answers[POWER] = whole_ns(max(1.0, throttle / factor) * free_ns)
    return answers


def held_ns(
    model: StepCostModel,
    terms: StepTerms,
    calibration: Calibration | None = None,
    *,
    work: StepWork,
) -> int:
    """Duration of changed terms, within the power budget.

    A faster engine does the same `work`, with the same joules.
    """
    free_ns = combine(terms, calibration or model.calibration, model.overlap).duration_ns
    return whole_ns(model.throttle(work, free_ns) * free_ns)


def faster_terms(terms: StepTerms, resource: Resource, factor: float) -> StepTerms:
    """The terms with `resource` so many times as fast."""
    return replace(
        terms,
        rank=_faster_phase(terms.rank, resource, factor),
        experts=None if terms.experts is None else _faster_phase(terms.experts, resource, factor),
        launch_ns=terms.launch_ns / factor if resource.launches else terms.launch_ns,
        halves=terms.halves_changed(lambda half: faster_terms(half, resource, factor)),
        drafts=tuple(faster_terms(draft, resource, factor) for draft in terms.drafts),
    )


def even_experts(terms: StepTerms) -> StepTerms:
    """The terms with the experts' work of each domain spread evenly over its chips."""
    assert terms.experts is not None
    width = terms.ranks_per_domain * terms.tp

    def even(array: Float64s) -> Float64s:  # [..., chips]
        mean = array.reshape(*array.shape[:-1], -1, width).mean(axis=-1)
        return np.repeat(mean, width, axis=-1)

    return replace(
        terms, experts=terms.experts.changed(even), halves=terms.halves_changed(even_experts)
    )


def at_full_speed(terms: StepTerms) -> StepTerms:
    """The terms without slow chips."""
    return replace(
        terms,
        slow=np.ones_like(terms.slow),
        halves=terms.halves_changed(at_full_speed),
        drafts=tuple(map(at_full_speed, terms.drafts)),
    )


def _faster_phase(phase: PhaseTerms, resource: Resource, factor: float) -> PhaseTerms:
    engine_ns = phase.engine_ns
    if resource.engines:
        engine_ns = engine_ns.copy()
        engine_ns[[ENGINES.index(engine) for engine in resource.engines]] /= factor
    times = {name: getattr(phase, name) / factor for name in resource.times}
    return replace(phase, engine_ns=engine_ns, **times)


def faster_calibration(calibration: Calibration, resource: Resource, factor: float) -> Calibration:
    """The calibration with the terms of `resource` divided by `factor`."""
    changed = {}
    for name in resource.calibrated:
        figure = getattr(calibration, name)
        source = f"{figure.source}; divided by {factor:g} to see what it is worth"
        changed[name] = replace(figure, value=figure.value / factor, source=source)
    return replace(calibration, **changed)

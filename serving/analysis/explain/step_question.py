"""A question about a step: machine, model, partition, load and assumptions."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from emulator.errors import ConfigError
from emulator.memory.chip_contents import HbmTerms
from emulator.specs.calibration import Calibration
from emulator.specs.expert_loads import ExpertLoads
from emulator.specs.model import ModelSpec
from emulator.specs.overlap import Overlap
from emulator.specs.shipped_fits import FITTED, PredictionInterval, shipped_fits
from emulator.specs.system import SystemSpec
from emulator.timing.expert_distribution import ExpertDistribution
from emulator.ultraserver.machine import StepCosting
from emulator.ultraserver.step_cost import StepCostModel
from emulator.ultraserver.step_terms import StepTerms
from emulator.ultraserver.step_waterfall import WaterfallTerm, merged, waterfall
from emulator.ultraserver.step_work import StepWork, step_work
from emulator.ultraserver.what_if import held_ns, what_if_ns
from serving.analysis.explain.step_load import StepLoad, WeightedSteps
from serving.analysis.steady_state.partitions import PartitionCandidate
from serving.analysis.steady_state.step_assumptions import StepAssumptions
from serving.analysis.validate.counted_rows import ROUTING_EXPONENT, measured_peak_loads


@dataclass(frozen=True, slots=True, kw_only=True)
class StepQuestion:
    """Steps of one engine.

    Attributes:
        subject: what is explained, in words.
        model: with its weights in `precision`.
        requests: that the engine decodes, over all ranks.
        across_units: other layouts may span units of a cluster, over network cards.
        draft_tokens: of a decoding request, made by a layer of the model's (`draft_module`), by
            `draft_model`, or found for nothing.
        tokens_per_step: of a request, above 1 with drafts.
        peak_loads: experts as `measured_peak_loads` has them; else as `distribution` does.
        left_out: calibrations of the same chip by fits that left a machine out.
        calibrated_by: the calibration in words, where it is none of a chip of the catalog.
        intervals: by metric, of measured over predicted.
    """

    subject: str
    system: SystemSpec
    model: ModelSpec
    precision: str
    candidate: PartitionCandidate
    load: StepLoad
    requests: int
    assumptions: StepAssumptions
    routing: str = "uniform"
    distribution: ExpertDistribution | None = None
    terms: HbmTerms = field(default_factory=HbmTerms)
    across_units: bool = False
    draft_tokens: int = 0
    draft_module: bool = True
    draft_model: ModelSpec | None = None
    tokens_per_step: float = 1.0
    peak_loads: bool = False
    left_out: tuple[Calibration, ...] = ()
    calibrated_by: str = ""
    intervals: Mapping[str, PredictionInterval] = field(default_factory=dict)

    @property
    def chips(self) -> int:
        """Of the engine."""
        return self.candidate.partition.chips

    def counted(self) -> "CountedSteps":
        """Its steps, counted."""
        steps = self.load.steps(self.candidate.partition.ranks, self.requests)
        return CountedSteps(self.cost_model(), steps, peak_loads=self.peak_loads)

    def steps_in_words(self) -> str:
        """Calibration, overlap, routing."""
        assumed = self.assumptions
        calibration = self.calibrated_by or assumed.calibration_in_words(self.system.chip)
        words = f"{calibration}; overlap {assumed.overlap.value}"
        if not self.peak_loads:
            return f"{words}, routing {self.routing}"
        liked = f"the expert of rank r is liked as r^-{ROUTING_EXPONENT:g} (assumed)"
        return f"{words}, {liked}, layers wait for the busiest chip"

    def check_kv(self) -> None:
        """Raise ConfigError unless the KV of the fullest rank fits."""
        tokens = self.load.rank_tokens(self.candidate.partition.ranks, self.requests)
        room = self.candidate.kv_capacity_tokens
        if tokens > room:
            expected = f"at most {max(0, room):,} tokens of KV on a rank, which its HBM holds"
            raise ConfigError("batch", f"{tokens:,} tokens", expected)

    def cost_model(self) -> StepCostModel:
        """Of the engine whose chips lie the farthest apart."""
        return self.assumptions.cost_model(
            self.system,
            self.model,
            self.candidate,
            self.distribution,
            draft_tokens=self.draft_tokens,
            draft_module=self.draft_module,
            draft_model=self.draft_model,
        )

    def drafts_in_words(self) -> str:
        """How many, and who makes them."""
        if self.draft_model is not None:
            maker = f"made by {self.draft_model.name}"
        else:
            maker = "made by a layer" if self.draft_module else "found in the text"
        return f"{self.draft_tokens} drafts a request and step, {maker}"

    def with_overlap(self, overlap: Overlap) -> "StepQuestion":
        """The same under another overlap."""
        return replace(self, assumptions=replace(self.assumptions, overlap=overlap))


def left_out_calibrations(chip: str, *, name: str) -> tuple[Calibration, ...]:
    """A chip's calibrations by the fits that left one machine out; none of a roofline."""
    if name != FITTED:
        return ()
    return tuple(fit.calibration(chip) for fit in shipped_fits().without.values())


class CountedSteps:
    """Weighted steps on one cost model, counted once and timed under any calibration."""

    def __init__(self, model: StepCostModel, steps: WeightedSteps, *, peak_loads: bool) -> None:
        self.model = model
        self._steps = steps
        peak = measured_peak_loads(model) if peak_loads and model.model.experts else None
        self._loads: list[ExpertLoads | None] = [
            None if peak is None else peak.loads(batch) for _, batch in steps
        ]

    @cached_property
    def _counted(self) -> list[tuple[float, StepTerms, StepWork]]:
        found = []
        for (weight, batch), loads in zip(self._steps, self._loads, strict=True):
            terms = self.model.terms(batch, loads)
            assert terms is not None, "a step without requests"
            found.append((weight, terms, step_work(terms)))
        return found

    def duration_ns(self, calibration: Calibration | None = None) -> float:
        """Of the weighted steps; another calibration is of no work yet."""
        changed = None if calibration is None else self.model.of_work(calibration)
        return sum(
            weight * held_ns(self.model, terms, changed, work=work)
            for weight, terms, work in self._counted
        )

    def waterfall(self) -> tuple[WaterfallTerm, ...]:
        """The terms, which sum to `duration_ns`."""
        falls = [
            waterfall(self.model, batch, loads)
            for (_, batch), loads in zip(self._steps, self._loads, strict=True)
        ]
        return merged(falls, [weight for weight, _ in self._steps])

    def what_ifs_ns(self, factor: float) -> dict[str, float]:
        """Duration with each resource `factor` times as fast; see `what_if_ns`."""
        costing = StepCosting(model=self.model, slow_factor=np.ones(self.model.partition.chips))
        own_ns = self.cost_ns()
        found: dict[str, float] = {}
        for (weight, batch), loads in zip(self._steps, self._loads, strict=True):
            step_ns = self.model.cost(batch, loads).duration_ns
            for name, ns in what_if_ns(costing, batch, loads, factor=factor).items():
                found[name] = found.get(name, own_ns) + weight * (ns - step_ns)
        return found

    def cost_ns(self) -> float:
        """Duration by the compiled kernels, which plans and sweeps use."""
        return sum(
            weight * self.model.cost(batch, loads).duration_ns
            for (weight, batch), loads in zip(self._steps, self._loads, strict=True)
        )

    def bound(self) -> dict[str, str]:
        """The engine that each part waits for, of the step with the most weight."""
        (_, batch), loads = max(
            zip(self._steps, self._loads, strict=True), key=lambda each: each[0][0]
        )
        return self.model.cost(batch, loads).bound

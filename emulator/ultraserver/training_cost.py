"""Cost of a training step: nanoseconds by part, watts and joules, HBM.

A step is micro-batches of passes in sequence (forward, perhaps recomputing, backward), then the
update. Each pass is throttled separately.

Assumed: the job's host runs ahead of the chips, so only a calibration's overheads of layers and
collectives count; and tokens pick experts independently by one distribution, which the
load-balancing loss aims at.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import Final

import numpy as np

from emulator.arrays import Float64s, Int64s
from emulator.errors import ConfigError
from emulator.fabric.all_to_all import AllToAll
from emulator.memory.training_memory import (
    CHECKPOINT_BYTES,
    TrainingMemory,
    check_training_fits,
    trained_model,
    training_cores,
    training_memory,
)
from emulator.specs.batch import StepBatch
from emulator.specs.calibration import Calibration
from emulator.specs.model import ModelSpec
from emulator.specs.overlap import Overlap
from emulator.specs.partition import Partition
from emulator.specs.placement import EMPTY, ExpertPlacement
from emulator.specs.shipped_fits import calibration_for
from emulator.specs.system import SystemSpec
from emulator.specs.training_recipe import Recompute, Sharding, TrainingRecipe
from emulator.timing.expert_distribution import ExpertDistribution
from emulator.timing.model_flops import training_flops_per_token
from emulator.timing.optimizer_work import optimizer_work
from emulator.timing.rank_totals import rank_totals
from emulator.timing.roofline import DMA, ENGINES, TENSOR, busy_ns, engine_rates
from emulator.ultraserver.gradient_collectives import GradientCollectives, Talk
from emulator.ultraserver.half_batches import half_batches
from emulator.ultraserver.step_cost import StepCostModel
from emulator.ultraserver.step_parts import (
    COLLECTIVE_LAUNCH,
    DISPATCH_COMBINE,
    THROTTLE,
    TP_COLLECTIVES,
)
from emulator.ultraserver.step_rows import together_ns
from emulator.ultraserver.step_terms import StepTerms
from emulator.ultraserver.step_time import StepTime, combine, without_host
from emulator.ultraserver.step_work import StepWork, step_work
from emulator.ultraserver.training_phases import (
    Pass,
    TrainingExperts,
    TrainingRanks,
    directions,
)
from emulator.units import NS_PER_S

OPTIMIZER: Final = "optimizer"
GRADIENTS: Final = "gradients"
_COMMUNICATION: Final = (DISPATCH_COMBINE, TP_COLLECTIVES, COLLECTIVE_LAUNCH)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingStepCost:
    """One step of the whole job.

    `parts_ns` sum to the duration but for its rounding: each pass's computing, `dispatch_combine`
    (exposed token exchanges), `gradients` (exposed collectives), `optimizer`, `throttle`.
    `chip_watts` averages over the step; `flops` are of all products, `model_flops` the model's own
    (see model_flops).
    """

    tokens: int
    duration_ns: int
    chip_watts: Float64s  # [chips]
    joules: float
    parts_ns: dict[str, float]
    flops: Float64s  # [chips]
    model_flops: float
    hbm_bytes: Float64s  # [chips]
    link_bytes: Float64s  # [chips]

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of all chips together."""
        return self.tokens / self.duration_ns * NS_PER_S

    @property
    def model_flops_per_s_per_chip(self) -> float:
        """Model flops a second of a chip; over its peak, the model-flops utilisation."""
        return self.model_flops / self.duration_ns * NS_PER_S / len(self.chip_watts)


class TrainingCost:
    """A job of `model` on some chips of `system`, data parallel, experts spread over its groups.

    Args:
        chips: the system's chip numbers, group after group.
        calibration: shares of peak rates, and overheads; by default those fitted for the chip.
        distribution: of tokens over experts; by default uniform.

    Raises ConfigError for chips that the system lacks, or groups that do not divide them; with
    `checks_hbm`, HbmExhausted, with the figures and the fewest sufficient chips, if it does not
    fit.
    """

    def __init__(
        self,
        system: SystemSpec,
        model: ModelSpec,
        chips: Int64s | tuple[int, ...] | list[int] | range,
        recipe: TrainingRecipe | None = None,
        *,
        calibration: Calibration | None = None,
        distribution: ExpertDistribution | None = None,
        checks_hbm: bool = True,
    ) -> None:
        self.system = system
        self.recipe = recipe or TrainingRecipe()
        for name in ("tp", "pp"):
            if getattr(self.recipe, name) > 1:
                raise ConfigError(name, getattr(self.recipe, name), "1 on chips of choice")
        self.chips = _checked_chips(system, chips)
        self.calibration = (calibration or calibration_for(system.chip.name)).in_training()
        self.model = trained_model(model, self.recipe)
        count, self._group = len(self.chips), self.recipe.expert_group(len(self.chips))
        weigh = check_training_fits if checks_hbm else training_memory
        self.hbm: TrainingMemory = weigh(system, model, count, self.recipe)
        self._partition = Partition(
            chips=count, ep=self._group, lnc=training_cores(system, self.recipe).lnc
        )
        self._placement = ExpertPlacement.even(
            layers=self.model.moe_layers, experts=self.model.experts, chips=count, ep=self._group
        )
        self._distribution = distribution or ExpertDistribution.uniform(self.model)

    @property
    def own_experts(self) -> Int64s:
        """Experts, counted in all layers, that each chip holds: [chips]."""
        counted: Int64s = (self._placement.expert_of_slot != EMPTY).sum(axis=(0, 2))
        return counted

    @property
    def owned_parameters(self) -> Float64s:
        """Parameters whose optimizer state each chip has: [chips]; they sum to the model's."""
        count = len(self.chips)
        experts = self.own_experts * self.model.expert_parameters / (count // self._group)
        return experts + self.model.replica_parameters() / count

    @property
    def checkpoint_bytes(self) -> Float64s:
        """Bytes of a checkpoint by chip: its part of BF16 weights and optimizer state."""
        return CHECKPOINT_BYTES * self.owned_parameters

    @property
    def step_tokens(self) -> int:
        """Tokens of a step of all chips."""
        return len(self.chips) * self.recipe.step_tokens_per_chip

    @cached_property
    def step(self) -> TrainingStepCost:
        """Cost of a step; computed once."""
        passes = self._passes()
        free_ns = sum(times * one.free_ns for times, one in passes)
        throttled_ns = sum(
            times * self._base.throttle(one.work, one.free_ns) * one.free_ns
            for times, one in passes
        )
        parts: dict[str, float] = {}
        for times, one in passes:
            for name, part_ns in one.parts_ns.items():
                parts[name] = parts.get(name, 0.0) + times * part_ns
        parts[THROTTLE] = throttled_ns - free_ns
        duration_ns = ceil(throttled_ns)
        idle = self.system.chip.idle_watts.value
        joules = np.sum([times * self._work_joules(one) for times, one in passes], axis=0)
        watts = idle + joules / duration_ns * NS_PER_S  # [chips]
        per_token = training_flops_per_token(self.model, self.recipe.sequence_tokens)
        return TrainingStepCost(
            tokens=self.step_tokens,
            duration_ns=duration_ns,
            chip_watts=watts,
            joules=float(watts.sum()) * duration_ns / NS_PER_S,
            parts_ns=parts,
            flops=np.sum([times * one.work.flops.sum(axis=0) for times, one in passes], axis=0),
            model_flops=self.step_tokens * per_token,
            hbm_bytes=np.sum([times * one.work.hbm_bytes for times, one in passes], axis=0),
            link_bytes=np.sum([times * one.work.link_bytes for times, one in passes], axis=0),
        )

    def _passes(self) -> list[tuple[int, "_PassTime"]]:
        """Every pass of a step with its count; the last backward pass ends gradients."""
        recipe, micro = self.recipe, self.recipe.micro_batches
        talks = self._collectives
        gathers = recipe.sharding >= Sharding.WEIGHTS
        reduces = recipe.sharding >= Sharding.GRADIENTS
        gathered = talks.gather_dense() if gathers else talks.nothing
        reduced = talks.reduce_dense() + talks.reduce_experts()
        passes = [(micro, self._pass(Pass.FORWARD, gathered))]
        if recipe.recompute is not Recompute.NONE:
            passes.append((micro, self._pass(Pass.RECOMPUTE, talks.nothing)))
        rounds = micro if reduces else 1
        if micro > rounds:
            passes.append((micro - rounds, self._pass(Pass.BACKWARD, gathered)))
        passes.append((rounds, self._pass(Pass.BACKWARD, gathered + reduced)))
        back = talks.gather_experts() if gathers else talks.gather_dense() + talks.gather_experts()
        return [*passes, (1, self._update(back))]

    def _pass(self, each: Pass, talk: Talk) -> "_PassTime":
        """Collectives hide behind computing while no token exchange uses the links."""
        terms = self._terms(each)
        overlap = self.recipe.overlap
        calibration = without_host(self.calibration)
        time = combine(terms, calibration, overlap)
        exposed_ns = exchange_ns = _exchanging_ns(time)
        launches_ns = self._launches_ns(each)
        if overlap is not Overlap.NONE:
            exchange_ns = max(0.0, exposed_ns - launches_ns)
        compute_ns = time.duration_ns - exposed_ns + launches_ns
        hidden_ns = 0.0
        if overlap is not Overlap.NONE:
            all_exchanges_ns = _exchanging_ns(combine(terms, calibration, Overlap.NONE))
            links_free_ns = compute_ns - max(0.0, all_exchanges_ns - exchange_ns)
            hidden_ns = min(talk.duration_ns, max(0.0, links_free_ns))
        return _PassTime(
            parts_ns={
                each.value: compute_ns,
                DISPATCH_COMBINE: exchange_ns,
                GRADIENTS: talk.duration_ns - hidden_ns,
            },
            work=step_work(terms) + talk.work,
        )

    def _launches_ns(self, each: Pass) -> float:
        """Of a chip's experts in all layers, one after the other."""
        own = ceil(self.model.experts / self._group) * self.model.moe_layers
        return (
            directions(each, self.recipe.recompute) * own * self.calibration.expert_launch_ns.value
        )

    def _update(self, talk: Talk) -> "_PassTime":
        """Clipping and AdamW on every chip's own part, then the all-gather of new weights."""
        chip = self.system.chip
        own = self.owned_parameters
        bytes_per_weight = self.model.weight_bytes / self.model.parameters
        work = optimizer_work(own, weight_bytes=bytes_per_weight * own)
        engine_ns = np.broadcast_to(
            busy_ns(work, engine_rates(chip, self.model.dtype)), (len(ENGINES), len(own))
        )
        calibrated = engine_ns.copy()
        calibrated[TENSOR] /= self.calibration.tensor_share.value
        calibrated[DMA] /= self.calibration.memory_share.value
        optimizer_ns = together_ns(calibrated, self.calibration.turn_taking.value).max()
        done = replace(
            self._collectives.nothing.work, engine_ns=engine_ns, hbm_bytes=work.hbm_bytes
        )
        return _PassTime(
            parts_ns={OPTIMIZER: float(optimizer_ns), GRADIENTS: talk.duration_ns},
            work=done + talk.work,
        )

    def _work_joules(self, one: "_PassTime") -> Float64s:
        """Joules of each chip above idle, [chips]."""
        wanted = self._base.wanted_watts(one.work, one.free_ns)
        return (wanted - self.system.chip.idle_watts.value) * one.free_ns / NS_PER_S

    def _terms(self, each: Pass) -> StepTerms:
        batch = self._batch
        whole = self._counted(each, batch)
        halves = half_batches(batch) if self.recipe.overlap is Overlap.TWO_BATCH else None
        if halves is None or not self._exchanges:
            return whole
        first, second = (self._counted(each, half) for half in halves)
        return replace(whole, halves=(first, second))

    @property
    def _exchanges(self) -> bool:
        return self.model.experts > 0 and self._group > 1

    def _counted(self, each: Pass, batch: StepBatch) -> StepTerms:
        base = replace(self._base_terms, requests=np.zeros(batch.ranks))
        ranks, experts = self._phases(each)
        totals = rank_totals(batch, self.model, ranks.shape)
        times = base.times
        if each is Pass.RECOMPUTE:  # layers alone: logits and loss are not made twice
            ends = np.array([part in ("lm_head", "sampling") for part in base.parts])
            times = times * ~ends
        rows = None if experts is None else experts.expected(totals.tokens)
        if each is Pass.RECOMPUTE and self.recipe.recompute is Recompute.SELECTIVE:
            base = replace(base, layers=0 * base.layers, expert_layers=0 * base.expert_layers)
            rows = rows and rows.without_talk()
        return replace(
            base,
            rank=ranks.terms(totals),
            times=times,
            experts=rows,
            prefills=np.ones(batch.ranks),
            halves=None,
        )

    def _phases(self, each: Pass) -> tuple[TrainingRanks, TrainingExperts | None]:
        layout, recompute = self._base.layout, self.recipe.recompute
        ranks = TrainingRanks(layout, each=each, recompute=recompute)
        if not self.model.experts:
            return ranks, None
        return ranks, TrainingExperts(layout, ranks.shape, each=each, recompute=recompute)

    @cached_property
    def _base(self) -> StepCostModel:
        return StepCostModel(
            self.system,
            self.model,
            self._partition,
            placement=self._placement,
            distribution=self._distribution,
            all_to_all=AllToAll(self.system, len(self.chips), physical=self.chips),
            physical=self.chips,
            calibration=self.calibration,
        )

    @cached_property
    def _base_terms(self) -> StepTerms:
        terms = self._base.terms(self._batch)
        assert terms is not None  # every rank has a sequence
        return terms

    @cached_property
    def _batch(self) -> StepBatch:
        """A micro-batch: whole sequences on every chip, logits of every token."""
        recipe, ranks = self.recipe, len(self.chips)
        sequences = ranks * recipe.sequences_per_chip
        return StepBatch(
            ranks=ranks,
            rank=np.repeat(np.arange(ranks), recipe.sequences_per_chip),
            new_tokens=np.full(sequences, recipe.sequence_tokens),
            context_tokens=np.zeros(sequences, dtype=np.int64),
            logit_rows=np.full(ranks, recipe.micro_batch_tokens_per_chip),
        )

    @cached_property
    def _collectives(self) -> GradientCollectives:
        return GradientCollectives(
            self.system,
            self.model,
            self.chips,
            group=self._group,
            own_experts=self.own_experts,
            calibration=self.calibration,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _PassTime:
    """One pass without a power budget: exposed time by part, and its work on each chip."""

    parts_ns: dict[str, float]
    work: StepWork

    @property
    def free_ns(self) -> float:
        """All parts together."""
        return sum(self.parts_ns.values())


def _exchanging_ns(time: StepTime) -> float:
    return sum(time.parts_ns.get(name, 0.0) for name in _COMMUNICATION)


def _checked_chips(
    system: SystemSpec, chips: Int64s | tuple[int, ...] | list[int] | range
) -> Int64s:
    numbers = np.asarray(chips, dtype=np.int64)
    total = system.chips.count
    inside = numbers.ndim == 1 and numbers.size > 0
    inside = inside and bool(((numbers >= 0) & (numbers < total)).all())
    if not inside or len(np.unique(numbers)) != len(numbers):
        raise ConfigError(
            "chips",
            numbers.tolist(),
            f"one or more different chips of the {total} of {system.name}",
        )
    return numbers

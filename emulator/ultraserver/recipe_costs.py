"""Cost of training recipes, thousands at once: a step's time by part, energy and flops.

A micro-batch passes the stages of a pipeline; each stage's pass is the rows of its layers, its
experts, and what its chips say to each other. The slowest stage sets the pace; the others' passes
of one micro-batch are the bubble. `TrainingCost` times jobs without tensor and pipeline parallelism
on any chips, expert by expert; where both can, they agree (tests).

Assumed: as in `TrainingCost`; stages of a pipeline overlap hops as exchanges; two batches are two
micro-batches, so that a micro-batch's exchanges hide behind another's computing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from emulator.arrays import Float64s, Int64s
from emulator.fabric.collectives import Operation
from emulator.memory.training_memory import (
    GRADIENT_BYTES,
    sharded_parameters,
    stage_parameters,
    trained_model,
)
from emulator.power.draw import full_rate_watts, limit_watts
from emulator.power.system_power import SystemPower
from emulator.specs.calibration import Calibration
from emulator.specs.model import ModelSpec
from emulator.specs.overlap import Overlap
from emulator.specs.pipeline_stages import PipelineStages, tensor_share
from emulator.specs.recipe_columns import RECOMPUTES, RecipeColumns
from emulator.specs.shipped_fits import calibration_for
from emulator.specs.system import SystemSpec
from emulator.specs.training_recipe import (
    PipelineSchedule,
    Recompute,
    Sharding,
    TrainingRecipe,
)
from emulator.timing.model_flops import training_flops_per_token
from emulator.timing.optimizer_work import optimizer_work
from emulator.timing.roofline import DMA, TENSOR, busy_ns, engine_rates
from emulator.ultraserver.pass_costs import PassCosts, RowCosts
from emulator.ultraserver.recipe_links import HIDDEN_BYTES, RecipeLinks, TalkTime
from emulator.ultraserver.step_cost import COLLECTIVES
from emulator.ultraserver.step_parts import DISPATCH_COMBINE, THROTTLE, TP_COLLECTIVES
from emulator.ultraserver.step_rows import together_ns
from emulator.ultraserver.training_cost import GRADIENTS, OPTIMIZER
from emulator.ultraserver.training_phases import Pass, directions
from emulator.units import NS_PER_S

BUBBLE: Final = "bubble"
HOPS: Final = "pipeline_hops"
PARTS: Final = (
    *(each.value for each in Pass),
    DISPATCH_COMBINE,
    TP_COLLECTIVES,
    HOPS,
    BUBBLE,
    GRADIENTS,
    OPTIMIZER,
    THROTTLE,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecipeCosts:
    """Steps of recipes, [recipes] each.

    `parts_ns` [PARTS, recipes] sum to the duration: of the slowest stage, exposed communication
    only. `flops` and `model_flops` are of all chips: HFU and MFU over their peak.
    """

    columns: RecipeColumns
    duration_ns: Float64s
    parts_ns: Float64s
    chip_watts: Float64s  # mean of all chips
    flops: Float64s
    model_flops: Float64s

    @property
    def tokens_per_s(self) -> Float64s:
        """Of all chips together."""
        rate: Float64s = self.columns.step_tokens / self.duration_ns * NS_PER_S
        return rate

    def of(self, place: int) -> "RecipeCosts":
        """One recipe's."""
        own = np.arange(len(self.columns)) == place
        return RecipeCosts(
            columns=self.columns.where(own),
            duration_ns=self.duration_ns[own],
            parts_ns=self.parts_ns[:, own],
            chip_watts=self.chip_watts[own],
            flops=self.flops[own],
            model_flops=self.model_flops[own],
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _PassTimes:
    """One pass over a micro-batch in every stage, [recipes, stages] each; talk is exposed.

    Times are of the fullest chip, joules and flops of the mean one.
    """

    compute_ns: Float64s
    exchange_ns: Float64s
    tensor_ns: Float64s
    hop_ns: Float64s
    links_free_ns: Float64s
    throttle_ns: Float64s
    joules: Float64s  # above idle
    flops: Float64s

    @property
    def duration_ns(self) -> Float64s:
        """Of the whole pass."""
        talk_ns: Float64s = self.exchange_ns + self.tensor_ns + self.hop_ns
        return self.compute_ns + talk_ns + self.throttle_ns


class RecipeCostModel:
    """Costs of jobs of `model` on `chips` of `system` (`job_chips`); calibration as `TrainingCost`.

    Costs that recipes share are kept between calls, for micro-batches of `sequences`.
    """

    def __init__(
        self,
        system: SystemSpec,
        model: ModelSpec,
        chips: int,
        *,
        calibration: Calibration | None = None,
        sequences: Sequence[int] = (),
    ) -> None:
        self.system = system
        self.model = model
        self.chips = chips
        self.sequences = sequences
        self.calibration = (calibration or calibration_for(system.chip.name)).in_training()
        self._links: dict[str, RecipeLinks] = {}
        self._passes: dict[object, PassCosts] = {}
        self._tables: dict[object, RowCosts] = {}
        self._watts = full_rate_watts(system.chip)
        idle = system.chip.idle_watts.value
        cap = limit_watts(system.chip, SystemPower(system).chip_cap_watts)
        self._spare_watts = cap - idle

    def costs(self, columns: RecipeColumns) -> RecipeCosts:
        """Of recipes on the model's chips; HBM is not checked."""
        assert columns.chips == self.chips, columns.chips
        return _Family(self, columns).costs()

    def links(self, trained: ModelSpec, precision: str) -> RecipeLinks:
        """The links, by weights in a precision."""
        if precision not in self._links:
            known = next(iter(self._links.values()), None)
            self._links[precision] = (
                RecipeLinks(self.system, trained, self.chips, self.calibration)
                if known is None
                else known.of_model(trained)
            )
        return self._links[precision]

    def rows(
        self, trained: ModelSpec, base: TrainingRecipe, sequences: Int64s, *, beside: bool
    ) -> PassCosts:
        """Rows of micro-batches of `sequences`; `beside` exchanges, on the computing cores."""
        key = (base.precision, base.tp, base.sequence_tokens, base.lnc, beside, *sequences.tolist())
        if key not in self._passes:
            calibration = self.calibration.beside_exchanges() if beside else self.calibration
            self._passes[key] = PassCosts(self.system, trained, base, sequences, calibration)
        return self._passes[key]

    def table(self, rows: PassCosts, each: Pass, recompute: Recompute) -> RowCosts:
        """A rank's own rows by size of micro-batch, [sizes, rows]; nothing is recomputed of what is
        kept.
        """
        if each is Pass.BACKWARD:
            recompute = Recompute.NONE  # the same under all
        key = (id(rows), each, recompute)
        if key not in self._tables:
            found = rows.ranks(each, recompute)
            if each is Pass.RECOMPUTE and recompute is Recompute.NONE:
                found = found.times(np.zeros((found.flops.shape[1],) * 2))
            self._tables[key] = found
        return self._tables[key]

    def throttled_ns(self, joules: Float64s, free_ns: Float64s) -> Float64s:
        """By which passes that want so many joules above idle are stretched."""
        wanted_ns: Float64s = joules / self._spare_watts * NS_PER_S
        return np.maximum(wanted_ns - free_ns, 0.0)

    def talk_joules(self, talk: TalkTime) -> Float64s:
        """Above idle, of busy links and moved bytes."""
        hbm_ns = talk.hbm_bytes / self.system.chip.memory_bytes_per_s * NS_PER_S
        busy: Float64s = self._watts[COLLECTIVES] * talk.link_ns + self._watts["dma"] * hbm_ns
        return busy / NS_PER_S


class _Family:
    """Recipes alike in all but `RecipeColumns`' arrays: [recipes, stages] throughout."""

    def __init__(self, costs: RecipeCostModel, columns: RecipeColumns) -> None:
        base = columns.base
        self._of = costs
        self._columns = columns
        self._base = base
        self._model = trained_model(costs.model, base)
        self._stages = PipelineStages.of(
            self._model, pp=base.pp, virtual_stages=base.virtual_stages
        )
        self._links = costs.links(self._model, base.precision)
        self._exchanges = self._model.experts > 0 and bool((columns.ep > 1).any())
        sizes = np.unique([*costs.sequences, *columns.sequences.tolist()])
        self._size = np.searchsorted(sizes, columns.sequences)
        beside = base.overlap is Overlap.TWO_BATCH and self._exchanges
        self._rows = costs.rows(self._model, base, sizes, beside=beside)
        self._micro = columns.micro_batches.astype(np.float64)

    def costs(self) -> RecipeCosts:
        """All of a step."""
        columns, recipes = self._columns, np.arange(len(self._columns))
        passes = {each: self._pass(each) for each in Pass}
        micro_ns = _total(one.duration_ns for one in passes.values())  # [recipes, stages]
        slowest = micro_ns.argmax(axis=1)

        def at(by_stage: Float64s) -> Float64s:
            total: Float64s = self._micro * by_stage[recipes, slowest]
            return total

        parts = dict.fromkeys(PARTS, np.zeros(len(columns)))
        for each, one in passes.items():
            parts[each.value] = at(one.compute_ns)
        parts[DISPATCH_COMBINE] = at(_total(one.exchange_ns for one in passes.values()))
        parts[TP_COLLECTIVES] = at(_total(one.tensor_ns for one in passes.values()))
        parts[HOPS] = at(_total(one.hop_ns for one in passes.values()))
        parts[BUBBLE] = self._bubble_ns(passes, micro_ns)
        parts[GRADIENTS], talk_joules = self._gradients(passes)
        parts[OPTIMIZER], update_joules, update_throttle_ns = self._update()
        parts[THROTTLE] = (
            at(_total(one.throttle_ns for one in passes.values())) + update_throttle_ns
        )
        parts_ns = np.stack([parts[name] for name in PARTS])
        duration_ns = parts_ns.sum(axis=0)
        joules = self._micro * _total(one.joules for one in passes.values()).mean(axis=1)
        flops = self._micro * _total(one.flops for one in passes.values()).mean(axis=1)
        per_token = training_flops_per_token(self._model, self._base.sequence_tokens)
        watts = (joules + talk_joules + update_joules) / duration_ns * NS_PER_S
        return RecipeCosts(
            columns=columns,
            duration_ns=duration_ns,
            parts_ns=parts_ns,
            chip_watts=self._of.system.chip.idle_watts.value + watts,
            flops=columns.chips * flops,
            model_flops=columns.step_tokens.astype(np.float64) * per_token,
        )

    def _pass(self, each: Pass) -> _PassTimes:
        """A pass over one micro-batch; nothing where nothing is recomputed."""
        own, experts = self._own(each), self._experts(each)
        done = own + experts
        again = self._columns.recompute[:, None] != RECOMPUTES.index(Recompute.NONE)
        launched = again | (each is not Pass.RECOMPUTE)
        compute_ns = done.compute_ns + self._rows.launch_ns * launched
        exchange, tensor, hop = self._exchange(each), self._tensor(each), self._hop(each)
        talk_joules = self._of.talk_joules(exchange + tensor + hop)
        shown = self._exposed(compute_ns, exchange, tensor, hop)
        exchange_ns, tensor_ns, hop_ns = shown
        free_ns = compute_ns + exchange_ns + tensor_ns + hop_ns
        talk_ns = exchange.duration_ns + tensor.duration_ns + hop.duration_ns
        return _PassTimes(
            compute_ns=compute_ns,
            exchange_ns=exchange_ns,
            tensor_ns=tensor_ns,
            hop_ns=hop_ns,
            links_free_ns=np.maximum(free_ns - talk_ns, 0.0),
            throttle_ns=self._of.throttled_ns(done.joules + talk_joules, free_ns),
            joules=own.joules + self._mean_experts * experts.joules + talk_joules,
            flops=own.flops + self._mean_experts * experts.flops,
        )

    def _exposed(
        self, compute_ns: Float64s, exchange: TalkTime, tensor: TalkTime, hop: TalkTime
    ) -> tuple[Float64s, Float64s, Float64s]:
        """What of exchanges, a rank's collectives and hops does not hide behind computing."""
        exchange_ns, tensor_ns, hop_ns = (
            np.broadcast_to(talk.duration_ns, compute_ns.shape) for talk in (exchange, tensor, hop)
        )
        if self._base.overlap is Overlap.NONE:
            return exchange_ns, tensor_ns, hop_ns
        if self._base.overlap is Overlap.TWO_BATCH:
            hides = exchange_ns + hop_ns
            shown = _shown(hides, compute_ns * (self._micro[:, None] > 1))
            return exchange_ns * shown, tensor_ns, hop_ns * shown
        shown = _shown(exchange_ns + tensor_ns + hop_ns, compute_ns)
        return exchange_ns * shown, tensor_ns * shown, hop_ns * shown

    def _own(self, each: Pass) -> RowCosts:
        """Rows of a rank's own."""
        table = RowCosts.stacked(
            [self._of.table(self._rows, each, recompute) for recompute in RECOMPUTES]
        )
        rows = table.taken(self._columns.recompute, self._size)  # [recipes, rows]
        return rows.times(self._rows.counts(self._stages))

    @cached_property
    def _loads(self) -> tuple[Float64s, Float64s, TalkTime]:
        """Pairs and distinct experts of a layer's fullest chip, and its exchange: [recipes]."""
        columns = self._columns
        tokens = np.ceil(columns.rank_tokens / self._base.tp)
        pairs, distinct, duration_ns, link_ns = np.zeros((4, len(columns)))
        for ep in np.unique(columns.ep).tolist():
            own = columns.ep == ep
            amounts, place = np.unique(tokens[own], return_inverse=True)
            found = self._links.experts(ep, columns.stage_chips, amounts)
            pairs[own], distinct[own] = found.pairs[place], found.distinct[place]
            duration_ns[own] = found.exchange.duration_ns[place]
            link_ns[own] = found.exchange.link_ns[place]
        return pairs, distinct, TalkTime(duration_ns=duration_ns, link_ns=link_ns)

    @cached_property
    def _mean_experts(self) -> Float64s:
        """The mean chip's pairs over the fullest one's: [recipes, 1]."""
        if not self._model.experts:
            return np.ones((1, 1))
        tokens = np.ceil(self._columns.rank_tokens / self._base.tp)
        mean: Float64s = tokens * self._model.experts_per_token / self._loads[0]
        return mean[:, None]

    def _experts(self, each: Pass) -> RowCosts:
        """Routed experts of all layers, on the fullest chip."""
        layers, recipes = self._stages.moe_layers, len(self._columns)
        ns, joules, flops = np.zeros((3, recipes, 1))
        for place in np.unique(self._columns.recompute).tolist() if self._model.experts else ():
            if each is Pass.RECOMPUTE and RECOMPUTES[place] is Recompute.NONE:
                continue
            own = self._columns.recompute == place
            pairs, distinct = (loads[own] for loads in self._loads[:2])
            done = self._rows.experts(each, RECOMPUTES[place], pairs, distinct)
            launched_ns = self._launches_ns(each, RECOMPUTES[place], self._columns.ep[own])
            ns[own, 0] = done.compute_ns + launched_ns
            joules[own, 0], flops[own, 0] = done.joules, done.flops
        return RowCosts(compute_ns=ns * layers, joules=joules * layers, flops=flops * layers)

    def _launches_ns(self, each: Pass, recompute: Recompute, ep: Int64s) -> Float64s:
        """Of a layer's experts on a chip, by the chips that hold all of them."""
        once_ns = self._of.calibration.expert_launch_ns.value
        return directions(each, recompute) * once_ns * np.ceil(self._model.experts / ep)

    def _happens(self, each: Pass) -> Float64s:
        """1 where a pass's layers are run as a whole, [recipes, 1]: FULL recomputing alone is."""
        full = self._columns.recompute == RECOMPUTES.index(Recompute.FULL)
        ran = full if each is Pass.RECOMPUTE else np.ones_like(full)
        happens: Float64s = ran[:, None].astype(np.float64)
        return happens

    def _exchange(self, each: Pass) -> TalkTime:
        if not self._model.experts:
            return TalkTime(duration_ns=np.zeros((1, 1)), link_ns=np.zeros((1, 1)))
        _, _, one = self._loads
        both = TalkTime(duration_ns=one.duration_ns[:, None], link_ns=one.link_ns[:, None])
        return both.times(self._happens(each) * self._stages.moe_layers)

    def _tensor(self, each: Pass) -> TalkTime:
        """Rows gathered before a layer's products and scattered after them; gathered once more for
        the gradients of weights (sequence parallelism).
        """
        stages, tp = self._stages, self._base.tp
        rows = self._columns.rank_tokens.astype(np.float64)
        sizes = HIDDEN_BYTES * self._model.hidden * rows
        gather = self._links.tensor(Operation.ALL_GATHER, tp, sizes[:, None])
        scatter = self._links.tensor(Operation.REDUCE_SCATTER, tp, sizes[:, None])
        blocks = stages.layers + stages.dense_layers
        ends = stages.last if each is not Pass.RECOMPUTE else 0 * stages.last
        gathers = blocks + ends + (blocks if each is Pass.BACKWARD else 0)
        happens = self._happens(each)
        return gather.times(happens * gathers) + scatter.times(happens * (blocks + ends))

    def _hop(self, each: Pass) -> TalkTime:
        """A chip's own rows to the next stage, or their gradients back, of each virtual stage."""
        rows = np.ceil(self._columns.rank_tokens / self._base.tp)
        hop = self._links.hop(self._base.pp, rows[:, None] * HIDDEN_BYTES * self._model.hidden)
        count = 0 if each is Pass.RECOMPUTE else self._base.virtual_stages
        return hop.times(np.full((1, self._base.pp), float(count)))

    def _bubble_ns(self, passes: dict[Pass, _PassTimes], micro_ns: Float64s) -> Float64s:
        """Waiting of the slowest stage: for the others at the start and the end of a step.

        DUALPIPE's is (stages / 2 - 1)(both + backward - 3 weights), where `both` is a forward and a
        backward pass side by side (arXiv 2412.19437, table 2), and gradients of weights are
        half of a backward pass.
        """
        pp = self._base.pp
        if self._base.schedule is PipelineSchedule.DUALPIPE:
            back_ns = passes[Pass.BACKWARD].duration_ns.mean(axis=1)
            again_ns = passes[Pass.RECOMPUTE].duration_ns.mean(axis=1)
            bubble_ns = micro_ns.mean(axis=1) + again_ns + back_ns - 3 * back_ns / 2
            at_both_ends: Float64s = max(pp / 2 - 1, 0.0) * bubble_ns
            return at_both_ends
        others_ns = micro_ns.sum(axis=1) - micro_ns.max(axis=1)
        waiting: Float64s = others_ns / self._base.virtual_stages
        return waiting

    def _gradients(self, passes: dict[Pass, _PassTimes]) -> tuple[Float64s, Float64s]:
        """Exposed collectives of gradients and weights, and joules of a chip's links: [recipes].

        As `TrainingCost`: reduced by the last micro-batch, or by each where gradients are sharded;
        weights are gathered after the update, or in every pass where they are sharded.
        """
        sharding = self._columns.sharding[:, None]
        each = np.where(sharding >= Sharding.GRADIENTS, self._micro[:, None], 1.0)
        dense = self._dense(Operation.REDUCE_SCATTER, GRADIENT_BYTES)
        gathered = self._dense(Operation.ALL_GATHER, 0)
        copies = self._copies(Operation.REDUCE_SCATTER)
        back = self._copies(Operation.ALL_GATHER)
        in_passes = (sharding >= Sharding.WEIGHTS).astype(np.float64)
        forward, backward = passes[Pass.FORWARD], passes[Pass.BACKWARD]
        reduced = dense + copies
        in_forward = gathered.times(in_passes)
        exposed_ns = self._micro[:, None] * self._unhidden(in_forward, forward)
        exposed_ns = exposed_ns + each * self._unhidden(in_forward + reduced, backward)
        rest = self._micro[:, None] - each
        exposed_ns = exposed_ns + rest * self._unhidden(in_forward, backward)
        after = gathered.times(1 - in_passes) + back
        total = in_forward.times(2 * self._micro[:, None]) + reduced.times(each) + after
        joules = self._of.talk_joules(total).mean(axis=1)
        return (exposed_ns + after.duration_ns).max(axis=1), joules

    def _unhidden(self, talk: TalkTime, beside: _PassTimes) -> Float64s:
        if self._base.overlap is Overlap.NONE:
            return talk.duration_ns
        hidden: Float64s = np.maximum(talk.duration_ns - beside.links_free_ns, 0.0)
        return hidden

    def _dense(self, operation: Operation, parameter_bytes: int) -> TalkTime:
        """Of all but routed experts; stored weights unless `parameter_bytes`: [1, stages]."""
        share = tensor_share(self._model, self._base.tp)
        parameters, stored = stage_parameters(share, self._stages)
        sizes = (parameter_bytes * parameters if parameter_bytes else stored).astype(np.float64)
        return self._links.replicas(
            operation, self._base.tp, self._base.pp, sizes[None], self._stages.layers
        )

    def _copies(self, operation: Operation) -> TalkTime:
        """Of routed experts, [recipes, stages]."""
        columns, stages, model = self._columns, self._stages, self._model
        duration_ns, link_ns, hbm_bytes = np.zeros((3, len(columns), len(stages.layers)))
        if model.experts:
            gradients = operation is Operation.REDUCE_SCATTER
            one = GRADIENT_BYTES * model.expert_parameters if gradients else model.expert_bytes
            for ep in np.unique(columns.ep).tolist():
                slots = stages.moe_layers * -(-model.experts // ep)
                talk = self._links.copies(
                    operation, ep, self._base.pp, (slots * float(one))[None], stages.layers
                )
                duration_ns[columns.ep == ep] = talk.duration_ns
                link_ns[columns.ep == ep] = talk.link_ns
                hbm_bytes[columns.ep == ep] = talk.hbm_bytes
        return TalkTime(duration_ns=duration_ns, link_ns=link_ns, hbm_bytes=hbm_bytes)

    def _update(self) -> tuple[Float64s, Float64s, Float64s]:
        """AdamW of the fullest chip: nanoseconds, joules above idle, throttling: [recipes]."""
        own = sharded_parameters(self._model, self._columns).max(axis=1).astype(np.float64)
        per_weight = self._model.weight_bytes / self._model.parameters
        work = optimizer_work(own, weight_bytes=per_weight * own)
        chip, calibration = self._of.system.chip, self._of.calibration
        engine_ns = np.array(
            np.broadcast_arrays(*busy_ns(work, engine_rates(chip, self._model.dtype)), own)[:-1]
        )
        watts = full_rate_watts(chip)
        names = ("tensor", "vector", "scalar", "gpsimd", "dma")
        joules = sum(watts[name] * ns for name, ns in zip(names, engine_ns, strict=True)) / NS_PER_S
        engine_ns[TENSOR] /= calibration.tensor_share.value
        engine_ns[DMA] /= calibration.memory_share.value
        free_ns = together_ns(engine_ns, calibration.turn_taking.value)
        return free_ns, joules, self._of.throttled_ns(joules, free_ns)


def _shown(talk_ns: Float64s, compute_ns: Float64s) -> Float64s:
    """The part of communication that computing does not hide."""
    shown: Float64s = np.maximum(talk_ns - compute_ns, 0.0) / np.where(talk_ns > 0, talk_ns, 1.0)
    return shown


def _total(arrays: Iterable[Float64s]) -> Float64s:
    total: Float64s = np.sum(list(arrays), axis=0)
    return total

"""Time, energy and flops of a chip's rows in each pass over a micro-batch, of many at once.

The rows are those of `training_phases`, counted for one chip of a tensor-parallel rank
(`tensor_share`) and timed under a calibration as a serving step's.
"""

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from emulator.arrays import Bools, Float64s, Int64s
from emulator.fabric.all_to_all import AllToAll
from emulator.memory.training_memory import training_cores
from emulator.specs.batch import StepBatch
from emulator.specs.calibration import Calibration
from emulator.specs.model import ModelSpec
from emulator.specs.partition import Partition
from emulator.specs.pipeline_stages import PipelineStages, tensor_share
from emulator.specs.placement import ExpertPlacement
from emulator.specs.system import SystemSpec
from emulator.specs.training_recipe import Recompute, TrainingRecipe
from emulator.timing.expert_distribution import ExpertDistribution
from emulator.timing.launch import step_launch_ns
from emulator.timing.rank_totals import RankTotals, rank_totals
from emulator.ultraserver.machine_layout import MachineLayout
from emulator.ultraserver.step_cost import StepCostModel
from emulator.ultraserver.step_rows import ColumnCalibrations, row_times
from emulator.ultraserver.step_terms import PhaseTerms
from emulator.ultraserver.step_work import rows_work
from emulator.ultraserver.training_phases import Pass, TrainingExperts, TrainingRanks
from emulator.units import NS_PER_S

_OF_OWN_TOKENS = "router"
_OF_LAST_STAGE = ("lm_head", "sampling")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowCosts:
    """Of rows, once each, on one chip: computing, joules above idle, flops; all [..., rows]."""

    compute_ns: Float64s
    joules: Float64s
    flops: Float64s

    def times(self, counts: Float64s | Int64s) -> "RowCosts":
        """Summed over rows that occur [rows, stages] times: [..., stages]."""
        return RowCosts(
            compute_ns=self.compute_ns @ counts,
            joules=self.joules @ counts,
            flops=self.flops @ counts,
        )

    def __add__(self, other: "RowCosts") -> "RowCosts":
        return RowCosts(
            compute_ns=self.compute_ns + other.compute_ns,
            joules=self.joules + other.joules,
            flops=self.flops + other.flops,
        )

    @classmethod
    def stacked(cls, parts: "list[RowCosts]") -> "RowCosts":
        """Several in a new first axis."""
        return cls(
            compute_ns=np.stack([part.compute_ns for part in parts]),
            joules=np.stack([part.joules for part in parts]),
            flops=np.stack([part.flops for part in parts]),
        )

    def taken(self, *places: Int64s) -> "RowCosts":
        """Some by their places in the first axes."""
        return RowCosts(
            compute_ns=self.compute_ns[places],
            joules=self.joules[places],
            flops=self.flops[places],
        )


class PassCosts:
    """Rows of `trained` on a chip of a rank of `base.tp`, in micro-batches of `sequences` [sizes].

    Only `base`'s tp, sequence_tokens and lnc count.
    """

    def __init__(
        self,
        system: SystemSpec,
        trained: ModelSpec,
        base: TrainingRecipe,
        sequences: Int64s,
        calibration: Calibration,
    ) -> None:
        self._base = base
        self._calibration = calibration
        partition = Partition(chips=1, ep=1, lnc=training_cores(system, base).lnc)
        self._model = tensor_share(trained, base.tp)
        self._layout = MachineLayout(
            system=system,
            model=self._model,
            partition=partition,
            placement=ExpertPlacement.even(
                layers=trained.moe_layers, experts=trained.experts, chips=1, ep=1
            ),
            distribution=ExpertDistribution.uniform(trained),
            all_to_all=AllToAll(system, 1),
            physical=np.zeros(1, dtype=np.int64),
            chips_up=np.ones(1, dtype=np.bool_),
        )
        self._power = StepCostModel(system, self._model, partition, calibration=calibration)
        self._sequences = sequences
        self.launch_ns = step_launch_ns(system.chip)

    def counts(self, stages: PipelineStages) -> Float64s:
        """Occurrences of each row in every stage: [rows, stages]."""
        of_part = {"dense": stages.dense_layers, "router": stages.moe_layers}
        of_part |= dict.fromkeys(_OF_LAST_STAGE, stages.last)
        rows = [
            (stages.window_layers if row.window else stages.full_layers)
            if row.part == "attention"
            else of_part[row.part]
            for row in self._forward.rows
        ]
        return np.array(rows, dtype=np.float64)

    def ranks(self, each: Pass, recompute: Recompute) -> RowCosts:
        """A rank's own rows: [sizes, rows]; recomputing has no ends."""
        phases = TrainingRanks(self._layout, each=each, recompute=recompute)
        whole, own = self._totals
        terms, of_own = phases.terms(whole), phases.terms(own)
        rows = phases.rows
        on_own = np.array([row.part == _OF_OWN_TOKENS for row in rows])
        joined = _rows_of_either(terms, of_own, on_own)
        is_layer = each is not Pass.RECOMPUTE or recompute is Recompute.FULL
        layers = [is_layer and row.part == "attention" for row in rows]
        expert_layers = [is_layer and row.part == "router" for row in rows]
        counted = np.array(
            [each is not Pass.RECOMPUTE or row.part not in _OF_LAST_STAGE for row in rows]
        )
        costs = self._costs(joined, np.array(layers), np.array(expert_layers))
        return RowCosts(
            compute_ns=costs.compute_ns.T * counted,
            joules=costs.joules.T * counted,
            flops=costs.flops.T * counted,
        )

    def experts(
        self, each: Pass, recompute: Recompute, pairs: Float64s, distinct: Float64s
    ) -> RowCosts:
        """A layer's routed experts of a chip under loads [loads]: [loads]."""
        shape = self._forward.shape
        phase = TrainingExperts(self._layout, shape, each=each, recompute=recompute)
        terms = phase.unexchanged(pairs, distinct)
        return self._costs(terms, np.zeros(1), np.zeros(1)).taken(np.array(0))

    @cached_property
    def _forward(self) -> TrainingRanks:
        return TrainingRanks(self._layout, each=Pass.FORWARD, recompute=Recompute.NONE)

    @cached_property
    def _totals(self) -> tuple[RankTotals, RankTotals]:
        """Of a rank's tokens, and of a chip's own part of them."""
        tokens, tp = self._base.sequence_tokens, self._base.tp
        sizes = len(self._sequences)

        def totals(length: int) -> RankTotals:
            batch = StepBatch(
                ranks=sizes,
                rank=np.repeat(np.arange(sizes), self._sequences),
                new_tokens=np.full(int(self._sequences.sum()), length),
                context_tokens=np.zeros(int(self._sequences.sum()), dtype=np.int64),
                logit_rows=self._sequences * length,
            )
            return rank_totals(batch, self._model, self._forward.shape)

        return totals(tokens), totals(-(-tokens // tp))

    def _costs(self, terms: PhaseTerms, layers: Float64s, expert_layers: Float64s) -> RowCosts:
        rows, columns = terms.ramp_ns.shape
        times = row_times(
            terms,
            ColumnCalibrations(calibrations=(self._calibration,)),
            slow=np.ones(columns),
            layers=layers[:, None],
            expert_layers=expert_layers[:, None],
            link_share=1.0,
            collective_ns=np.zeros(1),
        )
        idle = self._layout.system.chip.idle_watts.value
        joules, flops = np.empty((rows, columns)), np.empty((rows, columns))
        for row, once in enumerate(np.eye(rows)):
            work = rows_work(terms, once)
            joules[row] = self._power.wanted_watts(work, NS_PER_S) - idle  # in a second
            flops[row] = work.flops.sum(axis=0)
        return RowCosts(compute_ns=times.compute_ns, joules=joules, flops=flops)


def _rows_of_either(first: PhaseTerms, second: PhaseTerms, of_second: Bools) -> PhaseTerms:
    """Each row of one or the other."""
    return PhaseTerms(
        **{
            field.name: np.where(
                of_second[:, None], getattr(second, field.name), getattr(first, field.name)
            )
            for field in fields(PhaseTerms)
        }
    )

"""Passes of a micro-batch as phases: a serving step's terms, and training's additions.

A forward pass is a step of prompts with logits of every token and writes of kept activations;
recomputing is the same once more, or the selected parts of it (`recomputed_work`); a backward pass
has the same rows and exchanges, with the work of `backward_work`. Ranks are single chips.
"""

from dataclasses import replace
from enum import StrEnum

from emulator.arrays import Float64s
from emulator.specs.saved_activations import SavedActivations
from emulator.specs.training_recipe import Recompute
from emulator.timing import backward_work, matrix_time
from emulator.timing.gradient_shape import GradientShape
from emulator.timing.issue_shape import IssueShape
from emulator.timing.rank_totals import RankTotals
from emulator.timing.recomputed_work import recomputed_pairs, recomputed_work
from emulator.timing.roofline import DMA
from emulator.timing.work import EngineWork
from emulator.ultraserver.expert_phase import ExpertPhaseModel
from emulator.ultraserver.machine_layout import MachineLayout
from emulator.ultraserver.rank_phase import RankPhases
from emulator.ultraserver.segments import RowKind
from emulator.ultraserver.step_terms import PhaseTerms


class Pass(StrEnum):
    """The passes over a micro-batch, in their order."""

    FORWARD = "forward"
    RECOMPUTE = "recompute"
    BACKWARD = "backward"


def directions(each: Pass, recompute: Recompute) -> int:
    """Products that a pass makes with each weight: a backward pass those of both gradients."""
    if each is Pass.RECOMPUTE:
        return int(recompute is Recompute.FULL)
    return 2 if each is Pass.BACKWARD else 1


class TrainingRanks(RankPhases):
    """Each chip's own work in one kind of pass, under one way to recompute."""

    def __init__(self, layout: MachineLayout, *, each: Pass, recompute: Recompute) -> None:
        super().__init__(layout)
        self._each = each
        self._recompute = recompute
        self._gradients = GradientShape.of(
            layout.model, layout.system.chip, cores=self._cores.cores
        )
        self._saved = SavedActivations.of(layout.model)
        self._kept = SavedActivations.of(layout.model, recompute)

    def _row(self, row: RowKind, totals: RankTotals) -> PhaseTerms:
        if self._each is Pass.BACKWARD:
            return self._backward_row(row, totals)
        if self._each is Pass.RECOMPUTE and self._recompute is Recompute.SELECTIVE:
            return self._phase(recomputed_work(self._model, totals, row.part), totals, 0)
        terms = super()._row(row, totals)
        moved_bytes = self._kept_bytes(row) * totals.tokens
        engine_ns = terms.engine_ns.copy()  # [engines, 1, ranks]
        engine_ns[DMA] += moved_bytes / self._rates.hbm_bytes
        return replace(terms, engine_ns=engine_ns, hbm_bytes=terms.hbm_bytes + moved_bytes)

    def _kept_bytes(self, row: RowKind) -> int:
        """Bytes that a token's forward row writes for later, and that recomputing reads first.

        Without keys and values, which the forward row writes anyway.
        """
        written = self._model.kv_bytes_per_token_layer
        if self._each is Pass.RECOMPUTE:
            saved, read = self._saved, self._saved.layer_input
        else:
            saved, read = self._kept, 0
        if row.part == "attention":
            if self._each is Pass.FORWARD and self._recompute is Recompute.FULL:
                return saved.attention
            return read + saved.attention - written
        return {"dense": saved.dense, "router": saved.router}.get(row.part, 0)

    def _backward_row(self, row: RowKind, totals: RankTotals) -> PhaseTerms:
        """Two products after each of the forward row's, so twice as many waits and launches."""
        model, shape = self._model, (self.split, self.shape, self._gradients)
        match row.part:
            case "attention":
                work = backward_work.attention_backward(model, totals, *shape, window=row.window)
                latent = model.latent is not None
                count = matrix_time.LATENT_SEQUENCES if latent else matrix_time.ATTENTION_SEQUENCES
                return self._phase(work, totals, 2 * count, sums=1, starts=1)
            case "dense":
                work = backward_work.dense_backward(model, totals, *shape)
                return self._phase(work, totals, 2 * matrix_time.FEED_FORWARD_SEQUENCES, sums=1)
            case "router":
                work = backward_work.router_backward(model, totals, *shape)
                shared = model.shared_experts > 0
                count = matrix_time.ROUTER_SEQUENCES
                count += matrix_time.FEED_FORWARD_SEQUENCES if shared else 0
                return self._phase(work, totals, 2 * count, sums=1 if shared else 0)
            case "lm_head":
                work = backward_work.lm_head_backward(model, totals, *shape)
                return self._phase(work, totals, 2 * matrix_time.LM_HEAD_SEQUENCES)
        return self._phase(backward_work.loss_backward(model, totals), totals, 0)


class TrainingExperts(ExpertPhaseModel):
    """The routed experts in one kind of pass; exchanges are those of serving."""

    def __init__(
        self, layout: MachineLayout, shape: IssueShape, *, each: Pass, recompute: Recompute
    ) -> None:
        super().__init__(layout, shape)
        self._each = each
        self._selected = each is Pass.RECOMPUTE and recompute is Recompute.SELECTIVE
        self._gradients = GradientShape.of(
            layout.model, layout.system.chip, cores=self._cores.cores
        )
        kept = Recompute.NONE if each is Pass.RECOMPUTE else recompute
        self._kept_pair_bytes = SavedActivations.of(layout.model, kept).expert_pair
        if self._selected:
            self._sequences = 0
        if each is Pass.BACKWARD:
            self._sequences = 2 * matrix_time.FEED_FORWARD_SEQUENCES

    def _work(self, pairs: Float64s, distinct: Float64s) -> EngineWork:
        if self._each is Pass.BACKWARD:
            return backward_work.expert_backward(
                self._model, pairs, distinct, self._shape, self._gradients
            )
        if self._selected:
            return recomputed_pairs(self._model, pairs)
        work = super()._work(pairs, distinct)
        return replace(work, hbm_bytes=work.hbm_bytes + self._kept_pair_bytes * pairs)

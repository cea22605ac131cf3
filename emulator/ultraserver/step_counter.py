"""From a batch to terms: counts what a step of one model on one partition asks for.

Chips that exchange tokens meet at every layer with routed experts. Such a layer lasts as long as
attention on its slowest rank, then dispatch, then the chip with the most expert work, then combine.
Expert-parallel groups do not wait for each other before the step's end. A rank without requests in
a group that has some runs one dummy token through attention, so that the group's collectives
complete (vLLM's data-parallel ranks do so too); its token goes to no expert and makes no logits.
"""

import numpy as np
from numpy.typing import NDArray

from emulator.fabric.all_to_all import AllToAll
from emulator.specs.batch import StepBatch
from emulator.specs.expert_loads import ExpertLoads
from emulator.specs.model import ModelSpec
from emulator.specs.partition import Partition
from emulator.specs.placement import ExpertPlacement
from emulator.specs.system import SystemSpec
from emulator.timing.expert_distribution import ExpertDistribution
from emulator.timing.launch import step_launch_ns
from emulator.timing.rank_totals import rank_totals
from emulator.ultraserver.expert_phase import ExpertPhaseModel
from emulator.ultraserver.half_batches import half_batches, half_loads
from emulator.ultraserver.rank_phase import RankPhases
from emulator.ultraserver.segments import segment_of_layer, segments_of
from emulator.ultraserver.step_terms import PhaseTerms, StepTerms

Bools = NDArray[np.bool_]
Int64s = NDArray[np.int64]
Float64s = NDArray[np.float64]


class StepCounter:
    """Counts steps of `model`; `chips_up` are bool[chips], `physical` the system's chips."""

    def __init__(  # noqa: PLR0913  what `StepCostModel` was given, passed on
        self,
        system: SystemSpec,
        model: ModelSpec,
        partition: Partition,
        *,
        placement: ExpertPlacement,
        distribution: ExpertDistribution,
        all_to_all: AllToAll,
        chips_up: Bools,
        physical: Int64s,
        draft: bool = False,
    ) -> None:
        self._model = model
        self._partition = partition
        self._chips_up = chips_up
        self._launch_ns = step_launch_ns(system.chip)
        self._ranks = RankPhases(system, model, partition, physical, all_to_all, draft=draft)
        segments, tail = segments_of(model)
        self._runs = np.array([segment.times for segment in (*segments, tail)], dtype=np.float64)
        self._segment_of_layer = segment_of_layer(model)
        rows = self._ranks.rows
        self._parts = tuple(row.part for row in rows)
        self._layers = np.array([row.part == "attention" for row in rows], dtype=np.float64)
        self._expert_layers = np.array([row.part == "router" for row in rows], dtype=np.float64)
        self._experts = (
            ExpertPhaseModel(
                system,
                model,
                partition,
                placement,
                distribution,
                all_to_all,
                self._ranks.shape,
            )
            if model.moe_layers
            else None
        )

    @property
    def exchanges(self) -> bool:
        """Whether tokens go to the experts of other chips and come back."""
        return self._experts is not None and self._experts.exchanges

    def terms(
        self,
        batch: StepBatch,
        loads: ExpertLoads | None,
        slow: Float64s,
        *,
        drafts: tuple[StepTerms, ...] = (),
        two_batch: bool = False,
    ) -> StepTerms:
        """The terms of a step that has tokens; `slow` is [chips].

        With `two_batch` those of its halves too, where tokens are exchanged and it has halves.
        """
        halves = half_batches(batch) if two_batch and self.exchanges else None
        if halves is None:
            return self._terms(batch, loads, slow, drafts=drafts)
        part = None if loads is None else half_loads(loads)
        first, second = (self._terms(half, part, slow) for half in halves)
        return self._terms(batch, loads, slow, drafts=drafts, halves=(first, second))

    def _terms(
        self,
        batch: StepBatch,
        loads: ExpertLoads | None,
        slow: Float64s,
        *,
        drafts: tuple[StepTerms, ...] = (),
        halves: tuple[StepTerms, StepTerms] | None = None,
    ) -> StepTerms:
        tokens = batch.tokens_by_rank()
        dummy = self._dummy_tokens(tokens)
        totals = rank_totals(batch, self._model, self._ranks.shape, dummy=dummy)
        experts, kinds = self._expert_terms(tokens, loads)
        return StepTerms(
            parts=self._parts,
            rank=self._ranks.terms(totals),
            layers=self._layers,
            expert_layers=self._expert_layers,
            times=self._ranks.times,
            runs=self._runs,
            segment_of_layer=self._segment_of_layer,
            kind_of_layer=kinds,
            experts=experts,
            dispatch_share=1.0 if self._experts is None else self._experts.dispatch_share,
            slow=slow,
            tp=self._partition.tp,
            ranks_per_domain=self._ranks_per_domain,
            requests=totals.requests,
            prefills=totals.prefills,
            busy=tokens > 0,
            launch_ns=self._launch_ns,
            halves=halves,
            drafts=drafts,
        )

    def _expert_terms(
        self, tokens: Int64s, loads: ExpertLoads | None
    ) -> tuple[PhaseTerms | None, Int64s]:
        """With the row of each MoE layer."""
        if self._experts is None:
            return None, np.zeros(0, dtype=np.int64)
        if loads is not None:
            return self._experts.counted(loads), np.arange(self._model.moe_layers)
        by_chip = np.repeat(tokens / self._partition.tp, self._partition.tp)
        return self._experts.expected(by_chip), self._experts.kind_of_layer

    def _dummy_tokens(self, tokens: Int64s) -> Int64s:
        """One for each rank that is there, has no request, and shares experts with one that has."""
        if self._experts is None:
            return np.zeros_like(tokens)
        rank_is_up = self._chips_up.reshape(-1, self._partition.tp).all(axis=1)
        domain_tokens = tokens.reshape(-1, self._ranks_per_domain).sum(axis=1)
        busy_domain = np.repeat(domain_tokens > 0, self._ranks_per_domain)  # [ranks]
        dummy: Int64s = (rank_is_up & (tokens == 0) & busy_domain).astype(np.int64)
        return dummy

    @property
    def _ranks_per_domain(self) -> int:
        """Ranks that wait for each other in every layer: those that share an expert group."""
        group, tp = self._partition.expert_group, self._partition.tp
        if group % tp == 0:
            return group // tp
        return 1 if tp % group == 0 else self._partition.ranks

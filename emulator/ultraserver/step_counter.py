"""Counts the work of a batch on one partition: from a batch to terms.

A layer with routed experts lasts as long as attention on its slowest rank, then dispatch, then the
chip with the most expert work, then combine. Expert-parallel groups meet only at the step's end. An
idle rank in a busy group runs one dummy token through attention, so that the group's collectives
complete (as vLLM's data-parallel ranks do), without experts or logits.
"""

from dataclasses import replace

import numpy as np

from emulator.arrays import Float64s, Int64s
from emulator.specs.batch import StepBatch
from emulator.specs.expert_loads import ExpertLoads
from emulator.timing.launch import step_launch_ns
from emulator.timing.rank_totals import rank_totals
from emulator.ultraserver.expert_phase import ExpertPhaseModel
from emulator.ultraserver.half_batches import half_batches, half_loads
from emulator.ultraserver.machine_layout import MachineLayout
from emulator.ultraserver.rank_phase import RankPhases
from emulator.ultraserver.segments import segment_of_layer, segments_of
from emulator.ultraserver.step_terms import PhaseTerms, StepTerms


class StepCounter:
    """Counts steps of a model, or of its `draft` module."""

    def __init__(self, layout: MachineLayout, *, draft: bool = False) -> None:
        model = layout.model
        self._model = model
        self._partition = layout.partition
        self._chips_up = layout.chips_up
        self.launch_ns = step_launch_ns(layout.system.chip)
        self.phases = RankPhases(layout, draft=draft)
        segments, tail = segments_of(model)
        self.runs = np.array([segment.times for segment in (*segments, tail)], dtype=np.float64)
        self.segment_of_layer = segment_of_layer(model)
        rows = self.phases.rows
        self.parts = tuple(row.part for row in rows)
        self.layers = np.array([row.part == "attention" for row in rows], dtype=np.float64)
        self.expert_layers = np.array([row.part == "router" for row in rows], dtype=np.float64)
        self.experts = ExpertPhaseModel(layout, self.phases.shape) if model.moe_layers else None

    @property
    def exchanges(self) -> bool:
        """Whether tokens go to the experts of other chips and come back."""
        return self.experts is not None and self.experts.exchanges

    @property
    def dispatch_share(self) -> float:
        """Bytes of a dispatched row over those of a combined one; 1 without experts."""
        return 1.0 if self.experts is None else self.experts.dispatch_share

    @property
    def kind_of_layer(self) -> Int64s:
        """The kind of each MoE layer under expected loads: [MoE layers]."""
        nothing = np.zeros(0, dtype=np.int64)
        return nothing if self.experts is None else self.experts.kind_of_layer

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

        `two_batch`: also those of its halves, if it exchanges tokens and can be halved.
        """
        halves = half_batches(batch) if two_batch and self.exchanges else None
        whole = replace(self._counted(batch, loads, slow), drafts=drafts)
        if halves is None:
            return whole
        part = None if loads is None else half_loads(loads)
        first, second = (self._counted(half, part, slow) for half in halves)
        return replace(whole, halves=(first, second))

    def _counted(self, batch: StepBatch, loads: ExpertLoads | None, slow: Float64s) -> StepTerms:
        """The terms of one batch, without halves and drafts."""
        tokens = batch.tokens_by_rank()
        totals = rank_totals(
            batch, self._model, self.phases.shape, dummy=self._dummy_tokens(tokens)
        )
        experts, kinds, slower = self._expert_terms(tokens, loads)
        return StepTerms(
            parts=self.parts,
            rank=self.phases.terms(totals),
            layers=self.layers,
            expert_layers=self.expert_layers,
            times=self.phases.times,
            runs=self.runs,
            segment_of_layer=self.segment_of_layer,
            kind_of_layer=kinds,
            experts=experts,
            dispatch_share=self.dispatch_share,
            stores_slower=slower,
            slow=slow,
            tp=self._partition.tp,
            ranks_per_domain=self.ranks_per_domain,
            requests=totals.requests,
            prefills=totals.prefills,
            busy=tokens > 0,
            launch_ns=self.launch_ns,
        )

    def _expert_terms(
        self, tokens: Int64s, loads: ExpertLoads | None
    ) -> tuple[PhaseTerms | None, Int64s, Float64s]:
        """With the row of each MoE layer, and `stores_slower` of each row."""
        if self.experts is None:
            return None, np.zeros(0, dtype=np.int64), np.zeros(0)
        if loads is not None:  # whose bytes go straight to their receivers
            layers = self._model.moe_layers
            return self.experts.counted(loads), np.arange(layers), np.ones(layers)
        by_chip = np.repeat(tokens / self._partition.tp, self._partition.tp)
        slower = self.experts.stores_slower(by_chip)
        return self.experts.expected(by_chip), self.experts.kind_of_layer, slower

    def _dummy_tokens(self, tokens: Int64s) -> Int64s:
        """One for each rank that is up, idle, and shares experts with a busy one."""
        if self.experts is None:
            return np.zeros_like(tokens)
        rank_is_up = self._chips_up.reshape(-1, self._partition.tp).all(axis=1)
        domain_tokens = tokens.reshape(-1, self.ranks_per_domain).sum(axis=1)
        busy_domain = np.repeat(domain_tokens > 0, self.ranks_per_domain)  # [ranks]
        dummy: Int64s = (rank_is_up & (tokens == 0) & busy_domain).astype(np.int64)
        return dummy

    @property
    def ranks_per_domain(self) -> int:
        """Ranks that wait for each other in every layer: those that share an expert group."""
        group, tp = self._partition.expert_group, self._partition.tp
        if group % tp == 0:
            return group // tp
        return 1 if tp % group == 0 else self._partition.ranks

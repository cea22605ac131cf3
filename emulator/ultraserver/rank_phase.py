"""Terms of each rank's own work in a layer, before and after the routed experts.

Attention, then a dense network or the router with shared experts; partial sums are added up over a
chip's logical cores and the rank's chips.
"""

from copy import copy
from dataclasses import dataclass, replace
from math import ceil, log2
from typing import Final, Self

import numpy as np

from emulator.arrays import Float64s, Int64s
from emulator.fabric.all_reduce import RankAllReduce
from emulator.fabric.core_all_reduce import CoreAllReduce
from emulator.specs.partition import Partition
from emulator.specs.system import SystemSpec
from emulator.timing import matrix_time
from emulator.timing.attention_work import attention_work
from emulator.timing.clock_ramp import ramp_loss_ns
from emulator.timing.core_attention import EXCHANGES
from emulator.timing.dma_time import exposed_start_ns
from emulator.timing.feed_forward_work import (
    dense_work,
    joining_work,
    lm_head_work,
    router_work,
    sampling_work,
)
from emulator.timing.head_split import head_split
from emulator.timing.issue_shape import IssueShape
from emulator.timing.launch import kernel_launch_ns
from emulator.timing.rank_totals import RankTotals
from emulator.timing.roofline import TENSOR, busy_ns, engine_rates
from emulator.timing.work import LOGIT_BYTES, EngineWork, is_busy
from emulator.ultraserver.machine_layout import MachineLayout
from emulator.ultraserver.segments import RowKind, rows_of, times_of
from emulator.ultraserver.step_terms import PhaseTerms

HIDDEN_BYTES_PER_ELEMENT: Final = 2  # assumed: hidden rows travel in BF16, whatever the dtype
_NETWORK_DOUBLING: Final = 6.0
"""Doublings over links that one over network cards is worth, in starting a collective. *Assumed*: a
thread of the host hands each step's data to the card; chosen by measured rows of H100 alone.
"""


class RankPhases:
    """Terms of every rank of one partition; equal ones give equal terms."""

    def __init__(self, layout: MachineLayout, *, draft: bool = False) -> None:
        system, model, partition = layout.system, layout.model, layout.partition
        self._model = model
        self._tp = partition.tp
        self._doublings = _doublings(system, partition.tp)
        self._cores = CoreAllReduce(system.chip, partition.lnc)
        self._chips = RankAllReduce(
            system, tp=partition.tp, physical=layout.physical, all_to_all=layout.all_to_all
        )
        cores = self._cores.cores
        self.split = head_split(model, tp=partition.tp, cores=cores)
        self.shape = IssueShape.of(
            model,
            system.chip,
            tp=partition.tp,
            cores=cores,
            expert_tp=partition.expert_tp,
            split=partition.attention_split,
        )
        self._matrix = system.chip.matrix
        self._rates = engine_rates(system.chip, model.dtype)
        self._start_ns = exposed_start_ns(system.chip)
        self._launch_ns = kernel_launch_ns(system.chip)
        self._sums_experts = sums_experts_in_rank(partition)
        self.rows = rows_of(model, draft=draft)
        self.times = times_of(model, self.rows)
        sizes = (partition.tp, partition.lnc, partition.expert_tp, self._doublings)
        division = (sizes, partition.attention_split, self._sums_experts)
        self._figures = (model, system.chip, division, self.rows, self._chips)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RankPhases) and self._figures == other._figures

    def __hash__(self) -> int:
        return hash(self._figures)

    def one_of_each_kind(self) -> tuple[Self, Int64s]:
        """The same for one rank of each kind, and every rank's kind: int64[ranks].

        Ranks of a kind have collectives that take equally long.
        """
        chips, kind_of_rank = self._chips.one_of_each_kind()
        only = copy(self)
        only._chips = chips
        only._figures = (*self._figures[:-1], chips)
        return only, kind_of_rank

    def terms(self, totals: RankTotals) -> PhaseTerms:
        """All rows of a step, once each: [rows, ranks]."""
        return PhaseTerms.joined([self._row(row, totals) for row in self.rows], axis=-2)

    def _row(self, row: RowKind, totals: RankTotals) -> PhaseTerms:
        model, split, shape = self._model, self.split, self.shape
        match row.part:
            case "attention":
                work = attention_work(model, totals, split, shape, window=row.window)
                sequences = (
                    matrix_time.LATENT_SEQUENCES
                    if model.latent
                    else matrix_time.ATTENTION_SEQUENCES
                )
                own = self._phase(work, totals, sequences, reduces=1, sums=1, starts=1)
                return self._with_attention_apart(own, totals)
            case "dense":
                work = dense_work(model, totals, split, shape)
                sequences = matrix_time.FEED_FORWARD_SEQUENCES
                return self._phase(work, totals, sequences, reduces=1, sums=1)
            case "router":
                return self._router(totals)
            case "joining":
                return self._phase(joining_work(model, totals, split, shape), totals, 1, reduces=1)
            case "lm_head":
                return self._lm_head(totals)
        return self._phase(sampling_work(model, totals), totals, 0)

    def _with_attention_apart(self, own: PhaseTerms, totals: RankTotals) -> PhaseTerms:
        """`own` with the exchanges of queries and outputs, where cores divide requests or keys."""
        if not self.shape.decodes.is_apart:
            return own
        moving_ns = self._cores.into_core_ns(
            self.shape.decodes.exchanged_bytes * totals.decode_tokens
        )
        started_ns = EXCHANGES * self._cores.start_ns * totals.any_decodes
        return replace(
            own,
            core_ns=own.core_ns + moving_ns + started_ns,
            core_moving_ns=own.core_moving_ns + moving_ns,
        )

    def _router(self, totals: RankTotals) -> PhaseTerms:
        """The rank's chips gather the experts' outputs, or add up partial sums of shared or
        column-divided experts on the way.
        """
        model = self._model
        shared = model.shared_experts > 0
        sequences = matrix_time.ROUTER_SEQUENCES
        sequences += matrix_time.FEED_FORWARD_SEQUENCES if shared else 0
        reduces = shared or self._sums_experts
        return self._phase(
            router_work(model, totals, self.split, self.shape),
            totals,
            sequences,
            reduces=1 if reduces else 0,
            gathers=0 if reduces else 1,
            sums=1 if shared else 0,
        )

    def _lm_head(self, totals: RankTotals) -> PhaseTerms:
        """Embedded rows are summed, logits gathered, over the chips that divide the vocabulary."""
        model = self._model
        logit_bytes = totals.logit_rows * model.vocab * LOGIT_BYTES
        work = lm_head_work(model, totals, self.split, self.shape)
        return self._phase(
            work, totals, matrix_time.LM_HEAD_SEQUENCES, reduces=1, gathered_bytes=logit_bytes
        )

    def _phase(
        self,
        work: EngineWork,
        totals: RankTotals,
        sequences: int,
        *,
        reduces: int = 0,
        gathers: int = 0,
        sums: int = 0,
        starts: int = 0,
        gathered_bytes: Float64s | None = None,
    ) -> PhaseTerms:
        """One row: `work`, and collectives of the hidden rows over chips and logical cores."""
        ranks = totals.tokens.shape
        busy = busy_ns(work, self._rates)
        engine_ns = np.broadcast_to(busy.reshape(len(busy), -1), (len(busy), *ranks))
        present = is_busy(totals.tokens)
        hidden_bytes = totals.tokens * self._model.hidden * HIDDEN_BYTES_PER_ELEMENT
        talk = _Talk.none(ranks)
        if self._tp > 1:
            if reduces or gathers:
                talk = talk + self._hidden_talk(hidden_bytes, reduces=reduces, gathers=gathers)
            if gathered_bytes is not None:
                talk = talk + self._gather_talk(gathered_bytes)
        return PhaseTerms(
            engine_ns=engine_ns[:, None],
            ramp_ns=ramp_loss_ns(self._matrix, engine_ns[TENSOR])[None],
            core_ns=(sums * self._cores.duration_ns(hidden_bytes))[None],
            core_moving_ns=(sums * self._cores.moving_ns(hidden_bytes))[None],
            fill_drain_ns=sequences * self._matrix.fill_drain_ns.value * present[None],
            dma_start_ns=starts * self._start_ns * present[None],
            launch_ns=sequences * self._launch_ns * present[None],
            link_ns=talk.link_ns[None],
            latency_ns=(talk.total_ns - talk.link_ns)[None],
            collectives=talk.collectives[None],
            flops=np.broadcast_to(work.flops, (len(work.flops), *ranks))[:, None],
            hbm_bytes=np.broadcast_to(work.hbm_bytes, ranks)[None],
            link_bytes=(talk.payload_bytes * ((self._tp - 1) / self._tp))[None],
        )

    def _hidden_talk(self, hidden_bytes: Float64s, *, reduces: int, gathers: int) -> "_Talk":
        """All-reduces (each a reduce-scatter and an all-gather for the links), and all-gathers."""
        phases = 2 * reduces + gathers
        total_ns = np.zeros_like(hidden_bytes)
        if reduces:
            total_ns = total_ns + reduces * self._chips.all_reduce_ns(hidden_bytes)
        if gathers:
            total_ns = total_ns + gathers * self._chips.all_gather_ns(hidden_bytes)
        return _Talk(
            link_ns=np.minimum(phases * self._chips.moving_ns(hidden_bytes), total_ns),
            total_ns=total_ns,
            payload_bytes=phases * hidden_bytes,
            collectives=(reduces + gathers) * self._doublings * is_busy(hidden_bytes),
        )

    def _gather_talk(self, payload_bytes: Float64s) -> "_Talk":
        total_ns = self._chips.all_gather_ns(payload_bytes)
        return _Talk(
            link_ns=np.minimum(self._chips.moving_ns(payload_bytes), total_ns),
            total_ns=total_ns,
            payload_bytes=payload_bytes,
            collectives=self._doublings * is_busy(payload_bytes),
        )


def _doublings(system: SystemSpec, tp: int) -> float:
    """Of a rank's chips, a doubling over network cards weighing more than one over links."""
    units = ceil(tp * system.units / system.chips.count)
    return log2(tp) + (_NETWORK_DOUBLING - 1) * log2(units)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Talk:
    """Collectives of each rank's chips, all [ranks]."""

    link_ns: Float64s
    total_ns: Float64s
    payload_bytes: Float64s
    collectives: Float64s

    @classmethod
    def none(cls, ranks: tuple[int, ...]) -> "_Talk":
        """No collective."""
        nothing = np.zeros(ranks)
        return cls(link_ns=nothing, total_ns=nothing, payload_bytes=nothing, collectives=nothing)

    def __add__(self, other: "_Talk") -> "_Talk":
        return _Talk(
            link_ns=self.link_ns + other.link_ns,
            total_ns=self.total_ns + other.total_ns,
            payload_bytes=self.payload_bytes + other.payload_bytes,
            collectives=self.collectives + other.collectives,
        )


def sums_experts_in_rank(partition: Partition) -> bool:
    """Whether a rank's chips divide a group's experts and already have the rank's rows.

    Each chip then computes its experts on all rows, without dispatch, and one all-reduce adds the
    partial outputs (as TensorRT-LLM and SGLang do with tensor-parallel attention).
    """
    return partition.expert_group > 1 and partition.tp % partition.expert_group == 0

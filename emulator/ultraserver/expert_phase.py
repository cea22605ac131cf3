"""What routed experts ask for: the exchange of tokens both ways, and each chip's work between them.

A token's row goes once to each chip that has a part of one of its experts. Where `expert_tp` chips
divide an expert's columns, each of them needs the row and answers with a partial sum, so that the
exchange is an all-gather and a reduce-scatter over those chips. Inside one rank nothing is
exchanged; see `sums_experts_in_rank`.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from emulator.fabric.all_to_all import AllToAll
from emulator.fabric.core_all_reduce import CoreAllReduce
from emulator.specs.expert_loads import ExpertLoads
from emulator.specs.model import ModelSpec
from emulator.specs.partition import Partition
from emulator.specs.placement import ExpertPlacement
from emulator.specs.system import SystemSpec
from emulator.timing.clock_ramp import ramp_loss_ns
from emulator.timing.expert_distribution import ExpertDistribution
from emulator.timing.feed_forward_work import expert_work
from emulator.timing.issue_shape import IssueShape
from emulator.timing.launch import kernel_launch_ns
from emulator.timing.matrix_time import FEED_FORWARD_SEQUENCES
from emulator.timing.roofline import TENSOR, busy_ns, engine_rates
from emulator.timing.routing import ExpectedRouting
from emulator.timing.work import is_busy
from emulator.ultraserver.rank_phase import HIDDEN_BYTES_PER_ELEMENT, sums_experts_in_rank
from emulator.ultraserver.step_terms import PhaseTerms

Int64s = NDArray[np.int64]
Float64s = NDArray[np.float64]

EXCHANGES_PER_LAYER: Final = 2  # dispatch and combine


class ExpertPhaseModel:
    """Counts the routed experts of one model on one placement and fabric.

    `exchanges` says whether tokens go to other chips at all.

    The placement is of blocks of `expert_tp` chips, which have an expert together.
    """

    def __init__(
        self,
        system: SystemSpec,
        model: ModelSpec,
        partition: Partition,
        placement: ExpertPlacement,
        distribution: ExpertDistribution,
        all_to_all: AllToAll,
        shape: IssueShape,
    ) -> None:
        self._model = model
        self._partition = partition
        self._all_to_all = all_to_all
        self._shape = shape
        self._matrix = system.chip.matrix
        self._launch_ns = kernel_launch_ns(system.chip)
        self._cores = CoreAllReduce(system.chip, partition.lnc)
        self._rates = engine_rates(system.chip, model.dtype)
        self._expected = ExpectedRouting(distribution, placement)
        group = np.arange(partition.chips) // partition.expert_group
        self._same_group = (group[:, None] == group).astype(np.float64)  # [chips, chips]
        self._token_bytes = model.hidden * HIDDEN_BYTES_PER_ELEMENT
        self.exchanges = not sums_experts_in_rank(partition) and partition.expert_group > 1
        # What a token of each chip sends to each chip, on average: [kinds, chips, chips]
        needed = self._on_each_chip(self._expected.chance_needed)[:, None, :]
        self._bytes_per_token = self._token_bytes * needed * self._same_group

    @property
    def kind_of_layer(self) -> Int64s:
        """Which row of `expected` each MoE layer is: [MoE layers]."""
        return self._expected.kind_of_layer

    def _on_each_chip(self, by_block: Float64s) -> Float64s:
        """[..., blocks] -> [..., chips]."""
        return np.repeat(by_block, self._partition.expert_tp, axis=-1)

    def expected(self, tokens: Float64s) -> PhaseTerms:
        """With expected loads, when each chip dispatches `tokens` [chips]; rows are kinds."""
        group_tokens = self._same_group @ tokens  # [chips]
        block_tokens = group_tokens[:: self._partition.expert_tp]
        return self._terms(
            pairs=self._on_each_chip(self._expected.pairs(block_tokens)),
            distinct=self._on_each_chip(self._expected.distinct(block_tokens)),
            sent_bytes=tokens[:, None] * self._bytes_per_token,
        )

    def counted(self, loads: ExpertLoads) -> PhaseTerms:
        """With loads that were counted, a row for each MoE layer.

        Raises ValueError for another model's or partition's.
        """
        shape = (self._model.moe_layers, self._partition.chips)
        if loads.pairs.shape != shape:
            raise ValueError(f"loads of {loads.pairs.shape} layers and chips for {shape}")
        return self._terms(
            pairs=loads.pairs.astype(np.float64),
            distinct=loads.distinct.astype(np.float64),
            sent_bytes=loads.sent.astype(np.float64) * self._token_bytes,
        )

    def _terms(self, *, pairs: Float64s, distinct: Float64s, sent_bytes: Float64s) -> PhaseTerms:
        """`sent_bytes` is [kinds, chips, chips]; combine sends back along the same pairs: the
        transposed matrix, and so the same time.
        """
        work = expert_work(
            self._model, pairs, distinct, self._shape, expert_tp=self._partition.expert_tp
        )
        engine_ns = busy_ns(work, self._rates)  # [engines, kinds, chips]
        link_ns, latency_ns, link_bytes = self._exchange(sent_bytes)
        return PhaseTerms(
            engine_ns=engine_ns,
            ramp_ns=ramp_loss_ns(self._matrix, engine_ns[TENSOR]),
            core_ns=self._cores.duration_ns(pairs * self._token_bytes),
            core_moving_ns=self._cores.moving_ns(pairs * self._token_bytes),
            fill_drain_ns=FEED_FORWARD_SEQUENCES
            * self._matrix.fill_drain_ns.value
            * is_busy(pairs),
            dma_start_ns=np.zeros(pairs.shape),
            launch_ns=FEED_FORWARD_SEQUENCES * self._launch_ns * is_busy(pairs),
            link_ns=link_ns,
            latency_ns=latency_ns,
            collectives=(link_ns.max(axis=1, keepdims=True) + latency_ns > 0).astype(np.float64),
            flops=np.broadcast_to(work.flops, (len(work.flops), *pairs.shape)),
            hbm_bytes=work.hbm_bytes,
            link_bytes=link_bytes,
        )

    def _exchange(self, sent_bytes: Float64s) -> tuple[Float64s, Float64s, Float64s]:
        """One exchange of each kind: links busy, the rest of its duration, bytes out of each chip.

        All [kinds, chips]; link and latency together are the exchange's duration on its busiest
        chip, which everybody waits for.
        """
        if not self.exchanges:
            nothing = np.zeros(sent_bytes.shape[:2])
            return nothing, nothing, nothing
        dispatch = self._all_to_all.exchange_layers(sent_bytes)
        rest_ns = dispatch.duration_ns - dispatch.link_busy_ns.max(axis=1)
        own = np.einsum("kcc->kc", sent_bytes)
        return (
            dispatch.link_busy_ns,
            np.repeat(np.maximum(rest_ns, 0.0)[:, None], sent_bytes.shape[1], axis=1),
            sent_bytes.sum(axis=2) - own,
        )

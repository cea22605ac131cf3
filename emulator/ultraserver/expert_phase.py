"""Terms of the routed experts: the exchange of tokens both ways, and each chip's work.

A token's row goes once to each chip with a part of one of its experts. `expert_tp` chips that
divide an expert's columns all-gather rows and reduce-scatter partial sums. Inside one rank there is
no exchange; see `sums_experts_in_rank`.
"""

from dataclasses import replace
from functools import lru_cache
from typing import Final

import numpy as np

from emulator.arrays import Float64s, Int64s
from emulator.fabric.all_to_all import AllToAll, LayerExchanges
from emulator.fabric.core_all_reduce import CoreAllReduce
from emulator.specs.expert_loads import ExpertLoads
from emulator.specs.partition import Partition
from emulator.specs.placement import ExpertPlacement
from emulator.specs.system import SystemSpec
from emulator.timing.activation_traffic import ACTIVATION_BYTES
from emulator.timing.clock_ramp import ramp_loss_ns
from emulator.timing.expert_distribution import ExpertDistribution
from emulator.timing.feed_forward_work import expert_work
from emulator.timing.issue_shape import IssueShape
from emulator.timing.launch import kernel_launch_ns
from emulator.timing.matrix_time import FEED_FORWARD_SEQUENCES
from emulator.timing.roofline import TENSOR, busy_ns, engine_rates
from emulator.timing.routing import ExpectedRouting
from emulator.timing.work import EngineWork, is_busy
from emulator.ultraserver.machine_layout import MachineLayout
from emulator.ultraserver.rank_phase import HIDDEN_BYTES_PER_ELEMENT, sums_experts_in_rank
from emulator.ultraserver.step_terms import PhaseTerms
from emulator.ultraserver.token_exchange import TokenExchange

QUANTISED_BYTES_PER_ELEMENT: Final = 1 + 1 / 32


class ExpertPhaseModel:
    """Counts the routed experts of one model on one placement and fabric.

    `routing`: what is expected; `exchanges`: whether tokens go to other chips; `exchange`: how.
    """

    _sequences: int = FEED_FORWARD_SEQUENCES

    def __init__(self, layout: MachineLayout, shape: IssueShape) -> None:
        system, model, partition = layout.system, layout.model, layout.partition
        self._model = model
        self._partition = partition
        self._shape = shape
        self._matrix = system.chip.matrix
        self._launch_ns = kernel_launch_ns(system.chip)
        self._cores = CoreAllReduce(system.chip, partition.lnc)
        self._rates = engine_rates(system.chip, model.dtype)
        self._token_bytes = model.hidden * HIDDEN_BYTES_PER_ELEMENT
        self.exchanges = not sums_experts_in_rank(partition) and partition.expert_group > 1
        self.routing, self.exchange = _routed(
            system,
            replace(partition, lnc=1),  # of any LNC
            layout.placement,
            layout.distribution,
            layout.all_to_all,
            row_bytes=self._token_bytes,
            stores_slower=layout.stores_slower,
        )

    @property
    def dispatch_share(self) -> float:
        """Bytes of a dispatched row over those of a combined one.

        Rows for 8-bit experts are quantised, with a scale of one byte for 32 elements, or of four
        for 128 (DeepEP's FP8 dispatch and BF16 combine).
        """
        quantised = QUANTISED_BYTES_PER_ELEMENT / HIDDEN_BYTES_PER_ELEMENT
        return quantised if self._shape.expert.rate.quantised else 1.0

    @property
    def kind_of_layer(self) -> Int64s:
        """Row of `expected` for each MoE layer: [MoE layers]."""
        return self.routing.kind_of_layer

    @property
    def pairs_in_sbuf(self) -> float:
        """Pairs whose rows fit in the memory beside a chip's engines; see `activation_traffic`."""
        width = self._model.expert_intermediate / self._partition.expert_tp
        return self._shape.beside_bytes / (ACTIVATION_BYTES * (self._model.hidden + width))

    def unexchanged(self, pairs: Float64s, distinct: Float64s) -> PhaseTerms:
        """Terms of one layer on chips with these loads, [chips], without the exchange: one row."""
        return self._terms(pairs=pairs[None], distinct=distinct[None], exchanged=None)

    def _on_each_chip(self, by_block: Float64s) -> Float64s:
        """[..., blocks] -> [..., chips]."""
        return np.repeat(by_block, self._partition.expert_tp, axis=-1)

    def expected(self, tokens: Float64s) -> PhaseTerms:
        """Terms under expected loads of `tokens` [chips] that chips dispatch; rows are kinds."""
        group_tokens = self.exchange.same_group @ tokens  # [chips]
        block_tokens = group_tokens[:: self._partition.expert_tp]
        return self._terms(
            pairs=self._on_each_chip(self.routing.pairs(block_tokens)),
            distinct=self._on_each_chip(self.routing.distinct(block_tokens)),
            exchanged=self.exchange.of_tokens(tokens) if self.exchanges else None,
        )

    def counted(self, loads: ExpertLoads) -> PhaseTerms:
        """Terms under counted loads, a row for each MoE layer.

        Raises ValueError for another model's or partition's loads.
        """
        self._check(loads)
        return self._terms(
            pairs=loads.pairs.astype(np.float64),
            distinct=loads.distinct.astype(np.float64),
            exchanged=self._counted_exchange(loads),
        )

    def links(self, tokens: Float64s) -> tuple[Float64s, Float64s, Float64s]:
        """See `_links`: of an exchange of `tokens` [chips] under expected loads."""
        exchanged = self.exchange.of_tokens(tokens) if self.exchanges else None
        return _links(exchanged, (len(self.routing.pairs_per_token), len(tokens)))

    def stores_slower(self, tokens: Float64s) -> Float64s:
        """Of an exchange of `tokens` [chips] under expected loads, see `StepTerms`: [kinds]."""
        return (
            self.exchange.slower(tokens)
            if self.exchanges
            else np.ones(len(self.routing.pairs_per_token))
        )

    def counted_links(self, loads: ExpertLoads) -> tuple[Float64s, Float64s, Float64s]:
        """See `_links`: under counted loads; raises ValueError as `counted`."""
        self._check(loads)
        return _links(self._counted_exchange(loads), loads.pairs.shape)

    def _check(self, loads: ExpertLoads) -> None:
        shape = (self._model.moe_layers, self._partition.chips)
        if loads.pairs.shape != shape:
            raise ValueError(f"loads of {loads.pairs.shape} layers and chips for {shape}")

    def _counted_exchange(self, loads: ExpertLoads) -> tuple[LayerExchanges, Float64s] | None:
        if not self.exchanges:
            return None
        return self.exchange.of_bytes(loads.sent.astype(np.float64) * self._token_bytes)

    def _work(self, pairs: Float64s, distinct: Float64s) -> EngineWork:
        return expert_work(
            self._model, pairs, distinct, self._shape, expert_tp=self._partition.expert_tp
        )

    def _terms(
        self,
        *,
        pairs: Float64s,
        distinct: Float64s,
        exchanged: tuple[LayerExchanges, Float64s] | None,
    ) -> PhaseTerms:
        """`exchanged` is a combine; dispatch, its transpose, takes equally long for its bytes."""
        work = self._work(pairs, distinct)
        sequences = self._sequences
        engine_ns = busy_ns(work, self._rates)  # [engines, kinds, chips]
        link_ns, latency_ns, link_bytes = _links(exchanged, pairs.shape)
        return PhaseTerms(
            engine_ns=engine_ns,
            ramp_ns=ramp_loss_ns(self._matrix, engine_ns[TENSOR]),
            core_ns=self._cores.duration_ns(pairs * self._token_bytes),
            core_moving_ns=self._cores.moving_ns(pairs * self._token_bytes),
            fill_drain_ns=sequences * self._matrix.fill_drain_ns.value * is_busy(pairs),
            dma_start_ns=np.zeros(pairs.shape),
            launch_ns=sequences * self._launch_ns * is_busy(pairs),
            link_ns=link_ns,
            latency_ns=latency_ns,
            collectives=is_busy(link_ns.max(axis=1, keepdims=True) + latency_ns),
            flops=np.broadcast_to(work.flops, (len(work.flops), *pairs.shape)),
            hbm_bytes=work.hbm_bytes,
            link_bytes=link_bytes,
        )


@lru_cache(maxsize=1)
def _routed(
    system: SystemSpec,
    partition: Partition,
    placement: ExpertPlacement,
    distribution: ExpertDistribution,
    all_to_all: AllToAll,
    *,
    row_bytes: int,
    stores_slower: float,
) -> tuple[ExpectedRouting, TokenExchange]:
    """In a sweep, formats of weights and LNCs follow each other on the same chips."""
    routing = ExpectedRouting(distribution, placement)
    exchange = TokenExchange(
        system,
        partition,
        all_to_all,
        needed=np.repeat(routing.chance_needed, partition.expert_tp, axis=1),
        row_bytes=row_bytes,
        stores_slower=stores_slower,
    )
    if system.units > 1:
        exchange.may_forward(distribution, placement)
    return routing, exchange


def _links(
    exchanged: tuple[LayerExchanges, Float64s] | None, shape: tuple[int, ...]
) -> tuple[Float64s, Float64s, Float64s]:
    """Link time, the exchange's remaining time, bytes out of each chip: all [kinds, chips]."""
    if exchanged is None:
        nothing = np.zeros(shape)
        return nothing, nothing, nothing
    exchange, link_bytes = exchanged
    rest_ns = np.maximum(exchange.duration_ns - exchange.link_busy_ns.max(axis=1), 0.0)
    return exchange.link_busy_ns, np.repeat(rest_ns[:, None], shape[1], axis=1), link_bytes

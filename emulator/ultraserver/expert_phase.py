"""What routed experts cost: the exchange of tokens both ways, and each chip's work between them."""

from dataclasses import dataclass
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
from emulator.timing.expert_distribution import ExpertDistribution
from emulator.timing.feed_forward_work import expert_work
from emulator.timing.roofline import ENGINES, busy_ns, engine_rates, overlapped_ns
from emulator.timing.routing import ExpectedRouting
from emulator.ultraserver.rank_phase import HIDDEN_BYTES_PER_ELEMENT

Int64s = NDArray[np.int64]
Float64s = NDArray[np.float64]

_DMA: Final = ENGINES.index("dma")
EXCHANGES_PER_LAYER: Final = 2  # dispatch and combine


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExpertPhases:
    """The routed experts of a step, by kinds of layers that are alike.

    `layers` [kinds] says how many layers each row stands for. `exchange_ns` [kinds] is both ways
    together, `expert_ns` [kinds, chips] what each chip computes in between; `busy_ns` [engines,
    chips] and `link_ns` [chips] are of all layers together.
    """

    layers: Int64s
    exchange_ns: Float64s
    expert_ns: Float64s
    busy_ns: Float64s
    link_ns: Float64s


class ExpertPhaseModel:
    """Costs the routed experts of one model on one placement and fabric."""

    def __init__(
        self,
        system: SystemSpec,
        model: ModelSpec,
        partition: Partition,
        placement: ExpertPlacement,
        distribution: ExpertDistribution,
        all_to_all: AllToAll,
    ) -> None:
        self._model = model
        self._partition = partition
        self._all_to_all = all_to_all
        self._cores = CoreAllReduce(system.chip, partition.lnc)
        self._rates = engine_rates(system.chip, model.dtype)
        self._expected = ExpectedRouting(distribution, placement)
        group = np.arange(partition.chips) // partition.ep
        self._same_group = (group[:, None] == group).astype(np.float64)  # [chips, chips]
        self._token_bytes = model.hidden * HIDDEN_BYTES_PER_ELEMENT
        # What a token of each chip sends to each chip, on average: [kinds, chips, chips]
        needed = self._expected.chance_needed[:, None, :]
        self._bytes_per_token = self._token_bytes * needed * self._same_group

    def expected(self, tokens: Float64s, slow: Float64s) -> ExpertPhases:
        """With expected loads, when each chip dispatches `tokens` [chips]."""
        group_tokens = self._same_group @ tokens  # [chips]
        return self._phases(
            layers=self._expected.layers_of_kind,
            pairs=self._expected.pairs(group_tokens),
            distinct=self._expected.distinct(group_tokens),
            sent_bytes=tokens[:, None] * self._bytes_per_token,
            slow=slow,
        )

    def counted(self, loads: ExpertLoads, slow: Float64s) -> ExpertPhases:
        """With loads that were counted; raises ValueError for another model's or partition's."""
        shape = (self._model.moe_layers, self._partition.chips)
        if loads.pairs.shape != shape:
            raise ValueError(f"loads of {loads.pairs.shape} layers and chips for {shape}")
        return self._phases(
            layers=np.ones(shape[0], dtype=np.int64),
            pairs=loads.pairs.astype(np.float64),
            distinct=loads.distinct.astype(np.float64),
            sent_bytes=loads.sent.astype(np.float64) * self._token_bytes,
            slow=slow,
        )

    def _phases(
        self,
        *,
        layers: Int64s,
        pairs: Float64s,
        distinct: Float64s,
        sent_bytes: Float64s,
        slow: Float64s,
    ) -> ExpertPhases:
        """`sent_bytes` is [kinds, chips, chips]; combine sends back along the same pairs: the
        transposed matrix, and so the same time.
        """
        work = expert_work(self._model, pairs, distinct)
        busy = busy_ns(work, self._rates)  # [engines, kinds, chips]
        row_bytes = pairs * self._token_bytes
        expert_ns = slow * (overlapped_ns(busy) + self._cores.duration_ns(row_bytes))
        busy[_DMA] += self._cores.moving_ns(row_bytes)
        dispatch = self._all_to_all.exchange_layers(sent_bytes)
        return ExpertPhases(
            layers=layers,
            exchange_ns=EXCHANGES_PER_LAYER * dispatch.duration_ns,
            expert_ns=expert_ns,
            busy_ns=slow * np.einsum("ekc,k->ec", busy, layers),
            link_ns=EXCHANGES_PER_LAYER * (layers @ dispatch.link_busy_ns),
        )

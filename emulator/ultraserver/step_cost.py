"""What one step costs: its nanoseconds, its busy engines, its watts and joules.

The one place where counted work, the roofline, the fabric and power meet. Pure: the same batch
costs the same, and no clock is read. A layer of a rank lasts as long as its busiest engine, then
come the exposed exchanges of dispatch and combine, in BF16 both ways; they end for all together.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from emulator.errors import HbmExhausted
from emulator.fabric.all_to_all import AllToAll
from emulator.power.draw import chip_watts
from emulator.specs.batch import StepBatch
from emulator.specs.model import ModelSpec
from emulator.specs.partition import Partition, check_partition
from emulator.specs.system import SystemSpec
from emulator.timing.roofline import (
    ENGINES,
    busy_ns,
    engine_rates,
    exposed_start_ns,
    overlapped_ns,
)
from emulator.timing.routing import ROUTING, chance_token_needs_chip
from emulator.timing.work import attention_work, ends_work, expert_work, rank_totals
from emulator.units import GB, NS_PER_S

Int64s = NDArray[np.int64]
Float64s = NDArray[np.float64]

COLLECTIVES: Final = "collectives"
EXCHANGED_BYTES_PER_ELEMENT: Final = 2  # assumed: BF16 both ways, whatever the model's dtype
EXCHANGES_PER_LAYER: Final = 2
# Assumed: 8,192 batched tokens' widest activations (0.1 GB), logits of 1,024 rows (0.6 GB), and
# exchange buffers, DMA rings and the runtime's scratchpads, rounded up.
ACTIVATION_RESERVE_BYTES: Final = 4 * GB


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepCost:
    """One step of all ranks; it lasts as long as its slowest rank.

    Ranks meet at every exchange. As the layers of a step are alike, its slowest rank is the slowest
    in each of them; a wait of that rank for another's LM head is left out.

    `rank_ns` is what each rank needs alone, shared exchanges included; `engine_ns` how long each
    engine of each chip is busy in the step, by name; `chip_watts` the average over the step.
    """

    duration_ns: int
    rank_ns: Int64s  # [ranks]
    engine_ns: dict[str, Int64s]  # each [chips]
    chip_watts: Float64s  # [chips]
    chip_joules: float


class StepCostModel:
    """The cost of steps of one model on one partition of a system.

    Raises ConfigError when the system has too few chips or the experts do not spread evenly.
    """

    def __init__(self, system: SystemSpec, model: ModelSpec, partition: Partition) -> None:
        check_partition(partition, system, {model.name: model.experts})
        self.system = system
        self.model = model
        self.partition = partition
        self.routing = ROUTING
        chips = partition.chips
        self._rates = engine_rates(system.chip, model.dtype)
        self._all_to_all = AllToAll(system, chips)
        # A token goes once to each chip that holds one of its experts, whatever their number there;
        # to its own for free.
        sent_bytes = model.hidden * EXCHANGED_BYTES_PER_ELEMENT
        expected_bytes = sent_bytes * chance_token_needs_chip(model, partition.ep)
        self._bytes_per_token = np.full((chips, chips), expected_bytes)  # [ranks, chips]

    def cost(self, batch: StepBatch) -> StepCost:
        """Costs the step that runs `batch`; a step without requests takes no time.

        Raises ValueError when the batch was made for another number of ranks.
        """
        if batch.ranks != self.partition.ranks:
            raise ValueError(f"{batch.ranks} ranks in a batch for {self.partition.ranks}")
        model, layers = self.model, self.model.layers
        totals = rank_totals(batch)
        tokens = float(totals.tokens.sum())
        if not tokens:
            return self._idle_cost()
        layer_work = attention_work(model, totals) + expert_work(model, tokens, self.partition.ep)
        layer_busy_ns = busy_ns(layer_work, self._rates)  # [engines, ranks]
        ends_busy_ns = busy_ns(ends_work(model, totals), self._rates)

        # Combine sends back along the same pairs: the transposed matrix, and so the same time.
        dispatch = self._all_to_all.exchange(totals.tokens[:, None] * self._bytes_per_token)
        exchanges = EXCHANGES_PER_LAYER * layers
        exposed_ns = layers * exposed_start_ns(self.system.chip) + exchanges * dispatch.duration_ns
        rank_ns = layers * overlapped_ns(layer_busy_ns) + exposed_ns + overlapped_ns(ends_busy_ns)
        return self._finished(
            rank_ns=rank_ns,
            engine_busy_ns=layers * layer_busy_ns + ends_busy_ns,
            link_busy_ns=exchanges * dispatch.link_busy_ns,
        )

    def _finished(
        self, *, rank_ns: Float64s, engine_busy_ns: Float64s, link_busy_ns: Float64s
    ) -> StepCost:
        """Adds power and rounds: a step's time up to whole ns, busy times down."""
        whole_rank_ns = np.ceil(rank_ns).astype(np.int64)
        duration_ns = int(whole_rank_ns.max())
        busy = {**dict(zip(ENGINES, engine_busy_ns, strict=True)), COLLECTIVES: link_busy_ns}
        watts = chip_watts(self.system.chip, {name: ns / duration_ns for name, ns in busy.items()})
        return StepCost(
            duration_ns=duration_ns,
            rank_ns=whole_rank_ns,
            engine_ns={name: ns.astype(np.int64) for name, ns in busy.items()},
            chip_watts=watts,
            chip_joules=float(watts.sum()) * duration_ns / NS_PER_S,
        )

    def _idle_cost(self) -> StepCost:
        chips = self.partition.chips
        return StepCost(
            duration_ns=0,
            rank_ns=np.zeros(self.partition.ranks, dtype=np.int64),
            engine_ns={name: np.zeros(chips, dtype=np.int64) for name in (*ENGINES, COLLECTIVES)},
            chip_watts=np.full(chips, self.idle_chip_watts),
            chip_joules=0.0,
        )

    @property
    def idle_chip_watts(self) -> float:
        """What one chip draws when it does nothing."""
        return self.system.chip.idle_watts.value

    @property
    def provisioned_watts(self) -> float:
        """The partition's share of the system's power budget, by its chips; IT power, no PUE."""
        share = self.partition.chips / self.system.chips.value
        return self.system.provisioned_watts.value * share

    def facility_watts(self, chip_watts_sum: float) -> float:
        """Watts at the meter when the partition's chips draw `chip_watts_sum` together.

        Each chip's share of hosts, switches and conversion is added, then cooling, by the PUE.
        """
        overhead = self.system.overhead_watts_per_chip.value * self.partition.chips
        return (chip_watts_sum + overhead) * self.system.pue.value

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token, on the chip of its rank."""
        return self.model.kv_bytes_per_token

    @property
    def weight_bytes_per_chip(self) -> int:
        """A rank's replica of attention, router, embedding and LM head, and the chip's experts."""
        model = self.model
        experts = model.layers * (model.experts // self.partition.ep)
        parameters = model.replica_parameters() + experts * model.expert_parameters
        return parameters * model.weight_bytes_per_param

    def hbm_free_bytes_per_chip(self, *, reserve_bytes: int = ACTIVATION_RESERVE_BYTES) -> int:
        """HBM of one chip left for the KV pool; taken as spread evenly over the stacks.

        `reserve_bytes` is for activations and the runtime. Raises HbmExhausted, with the usage
        table, when the weights do not fit.
        """
        chip = self.system.chip
        microcode = chip.microcode_bytes_per_core.count * chip.neuron_cores.count
        available = chip.hbm_bytes - microcode - reserve_bytes
        weights = self.weight_bytes_per_chip
        if weights > available:
            rows = {"chip": chip.hbm_bytes, "microcode": microcode, "reserve": reserve_bytes}
            raise HbmExhausted(
                owner=f"weights of {self.model.name}",
                wanted_bytes=weights,
                free_bytes=max(0, available),
                table="\n".join(f"{owner:<10}{held:>20,} bytes" for owner, held in rows.items()),
            )
        return available - weights

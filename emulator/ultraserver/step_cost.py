"""What one step costs: its nanoseconds, its busy engines, its watts and joules.

The one place where counted work, the roofline, the fabric and power meet. Pure: the same batch
costs the same, and no clock is read.

Chips that exchange tokens meet at every layer with routed experts. Such a layer lasts as long as
attention on its slowest rank, then dispatch, then the chip with the most expert work, then combine.
Expert-parallel groups do not wait for each other before the step's end. A rank without requests in
a group that has some runs one dummy token through attention, so that the group's collectives
complete (vLLM's data-parallel ranks do so too); its token goes to no expert and makes no logits.
"""

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from emulator.fabric.all_to_all import AllToAll
from emulator.power.draw import chip_watts
from emulator.specs.batch import StepBatch
from emulator.specs.expert_loads import ExpertLoads
from emulator.specs.model import ModelSpec
from emulator.specs.partition import Partition, check_partition
from emulator.specs.placement import ExpertPlacement
from emulator.specs.system import SystemSpec
from emulator.timing.expert_distribution import ExpertDistribution
from emulator.timing.rank_totals import RankTotals, rank_totals
from emulator.timing.roofline import ENGINES
from emulator.ultraserver.expert_phase import ExpertPhaseModel, ExpertPhases
from emulator.ultraserver.rank_phase import RankPhases, segments_of
from emulator.units import NS_PER_S

Bools = NDArray[np.bool_]
Int64s = NDArray[np.int64]
Float64s = NDArray[np.float64]

COLLECTIVES: Final = "collectives"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepCost:
    """One step of all ranks; it lasts as long as its slowest group of chips.

    `rank_ns` is what each rank needs when nobody but the experts of its group keeps it waiting;
    `engine_ns` how long each engine of each chip is busy in the step, by name; `chip_watts` the
    average over the step.
    """

    duration_ns: int
    rank_ns: Int64s  # [ranks]
    engine_ns: dict[str, Int64s]  # each [chips]
    chip_watts: Float64s  # [chips]
    chip_joules: float


class StepCostModel:
    """The cost of steps of one model on one partition of a system.

    Args:
        placement: of the model's experts; spread evenly and in order without it.
        distribution: of tokens over experts, where no loads were counted; uniform without it.
        all_to_all: the fabric with its faults; whole without it.
        chips_up: bool[chips], which chips take part; a rank with a chip that does not is not there,
            and runs no dummy token. Every chip goes on drawing power.
        physical: int64[chips], the system's chip at each position, where spares have moved in;
            `first_chip` and those after it without it. A negative number is a vacant position.

    Immutable: `with_placement` and `with_machine` make another one. Raises ConfigError for a
    partition that does not fit the system or the model's heads.
    """

    def __init__(
        self,
        system: SystemSpec,
        model: ModelSpec,
        partition: Partition,
        *,
        placement: ExpertPlacement | None = None,
        distribution: ExpertDistribution | None = None,
        all_to_all: AllToAll | None = None,
        chips_up: Bools | None = None,
        physical: Int64s | None = None,
    ) -> None:
        check_partition(partition, system, {model.name: (model.heads, model.heads)})
        self.system = system
        self.model = model
        self.partition = partition
        chips, first = partition.chips, partition.first_chip
        self.placement = placement or ExpertPlacement.even(
            layers=model.moe_layers, experts=model.experts, chips=chips, ep=partition.ep
        )
        self.distribution = distribution or ExpertDistribution.uniform(model)
        self._all_to_all = all_to_all or AllToAll(system, chips, first_chip=first)
        self._chips_up = np.ones(chips, dtype=np.bool_) if chips_up is None else chips_up
        home = first + np.arange(chips, dtype=np.int64)
        self._physical = home if physical is None else np.where(physical < 0, home, physical)
        self._phases = RankPhases(system, model, partition, self._physical, self._all_to_all)
        self._segments, self._tail = segments_of(model)
        self._experts = (
            ExpertPhaseModel(
                system, model, partition, self.placement, self.distribution, self._all_to_all
            )
            if model.moe_layers
            else None
        )

    @property
    def routing(self) -> str:
        """What is assumed of routing where no loads were counted."""
        if not self.model.experts:
            return "none (dense)"
        return f"{self.distribution.name} (expected value)"

    def with_placement(self, placement: ExpertPlacement) -> Self:
        """The same with experts in other slots."""
        return self._with(placement, self._all_to_all, self._chips_up, self._physical)

    def with_machine(
        self, *, all_to_all: AllToAll, chips_up: Bools, physical: Int64s | None = None
    ) -> Self:
        """The same on a fabric and with chips that have failed or been replaced."""
        return self._with(self.placement, all_to_all, chips_up, physical)

    def _with(
        self,
        placement: ExpertPlacement,
        all_to_all: AllToAll,
        chips_up: Bools,
        physical: Int64s | None,
    ) -> Self:
        return type(self)(
            self.system,
            self.model,
            self.partition,
            placement=placement,
            distribution=self.distribution,
            all_to_all=all_to_all,
            chips_up=chips_up,
            physical=physical,
        )

    def cost(
        self,
        batch: StepBatch,
        loads: ExpertLoads | None = None,
        slow_factor: Float64s | None = None,
    ) -> StepCost:
        """Costs the step that runs `batch`; a step without requests takes no time.

        `loads` are where its tokens went; without them, expected values. `slow_factor` [chips] is
        how many times as long each chip's engines take. Raises ValueError when batch, loads or
        factors were made for another number of ranks, chips or layers.
        """
        partition = self.partition
        if batch.ranks != partition.ranks:
            raise ValueError(f"{batch.ranks} ranks in a batch for {partition.ranks}")
        slow = np.ones(partition.chips) if slow_factor is None else slow_factor
        if slow.shape != (partition.chips,):
            raise ValueError(f"{slow.shape} slow factors for {partition.chips} chips")
        tokens = batch.tokens_by_rank()
        if not tokens.any():
            return self._idle_cost()
        totals = rank_totals(batch, self.model, dummy=self._dummy_tokens(tokens))
        rank_slow = slow.reshape(-1, partition.tp).max(axis=1)
        if self._experts is None:
            experts = None
        elif loads is not None:
            experts = self._experts.counted(loads, slow)
        else:
            experts = self._experts.expected(self._by_chip(tokens / partition.tp), slow)
        return self._together(totals, experts, slow=slow, rank_slow=rank_slow)

    def _dummy_tokens(self, tokens: Int64s) -> Int64s:
        """One for each rank that is there, has no request, and shares experts with one that has."""
        if self._experts is None:
            return np.zeros_like(tokens)
        rank_is_up = self._chips_up.reshape(-1, self.partition.tp).all(axis=1)
        domain_tokens = tokens.reshape(-1, self._ranks_per_domain).sum(axis=1)
        busy_domain = np.repeat(domain_tokens > 0, self._ranks_per_domain)  # [ranks]
        dummy: Int64s = (rank_is_up & (tokens == 0) & busy_domain).astype(np.int64)
        return dummy

    @property
    def _ranks_per_domain(self) -> int:
        """Ranks that wait for each other in every layer: those that share an expert group."""
        ep, tp = self.partition.ep, self.partition.tp
        if ep % tp == 0:
            return ep // tp
        return 1 if tp % ep == 0 else self.partition.ranks

    def _by_chip(self, by_rank: Float64s) -> Float64s:
        """[..., ranks] -> [..., chips]."""
        return np.repeat(by_rank, self.partition.tp, axis=-1)

    def _together(
        self,
        totals: RankTotals,
        experts: ExpertPhases | None,
        *,
        slow: Float64s,
        rank_slow: Float64s,
    ) -> StepCost:
        """Puts the phases of a step one after the other, and waits where chips meet."""
        ends = self._phases.ends(totals, rank_slow)
        tail = self._phases.segment(self._tail, totals, rank_slow) + ends
        alone = tail
        domain_ns = self._slowest(tail.duration_ns)  # [domains]
        for segment in self._segments:
            phase = self._phases.segment(segment, totals, rank_slow)
            alone = alone + phase.times(segment.times)
            domain_ns = domain_ns + segment.times * self._slowest(phase.duration_ns)
        busy_ns = slow * self._by_chip(alone.busy_ns)  # [engines, chips]
        link_ns = self._by_chip(alone.link_ns)
        rank_ns = alone.duration_ns
        if experts is not None:
            shared_ns = self._shared_ns(experts)
            domain_ns = domain_ns + shared_ns
            rank_ns = rank_ns + np.repeat(shared_ns, self._ranks_per_domain)
            busy_ns, link_ns = busy_ns + experts.busy_ns, link_ns + experts.link_ns
        return self._finished(
            duration_ns=float(domain_ns.max()),
            rank_ns=rank_ns,
            engine_busy_ns=busy_ns,
            link_busy_ns=link_ns,
            slow=slow,
        )

    def _slowest(self, by_rank: Float64s) -> Float64s:
        """The longest of each domain's ranks: [ranks] -> [domains]."""
        longest: Float64s = by_rank.reshape(-1, self._ranks_per_domain).max(axis=1)
        return longest

    def _shared_ns(self, experts: ExpertPhases) -> Float64s:
        """Exchanges and each domain's slowest chip, all layers together: [domains]."""
        chips_per_domain = self._ranks_per_domain * self.partition.tp
        slowest = experts.expert_ns.reshape(len(experts.layers), -1, chips_per_domain).max(axis=2)
        layer_ns: Float64s = experts.exchange_ns[:, None] + slowest  # [kinds, domains]
        return experts.layers @ layer_ns

    def _finished(
        self,
        *,
        duration_ns: float,
        rank_ns: Float64s,
        engine_busy_ns: Float64s,
        link_busy_ns: Float64s,
        slow: Float64s,
    ) -> StepCost:
        """Adds power and rounds: times up to whole ns, busy times down.

        A slow chip draws for the work that it does, not for how long it takes (assumed: it is held
        back, as a throttled chip is, and does each operation once).
        """
        whole_ns = int(np.ceil(duration_ns))
        busy = {**dict(zip(ENGINES, engine_busy_ns, strict=True)), COLLECTIVES: link_busy_ns}
        at_full_rate = dict(zip(ENGINES, engine_busy_ns / slow, strict=True))
        shares = {**at_full_rate, COLLECTIVES: link_busy_ns}
        watts = chip_watts(self.system.chip, {name: ns / whole_ns for name, ns in shares.items()})
        return StepCost(
            duration_ns=whole_ns,
            rank_ns=np.ceil(rank_ns).astype(np.int64),
            engine_ns={name: ns.astype(np.int64) for name, ns in busy.items()},
            chip_watts=watts,
            chip_joules=float(watts.sum()) * whole_ns / NS_PER_S,
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
        """The partition's share of the system's power budget, by its chips and spares; no PUE."""
        share = (self.partition.chips + self.partition.spares) / self.system.chips.value
        return self.system.provisioned_watts.value * share

    def facility_watts(self, chip_watts_sum: float) -> float:
        """Watts at the meter when the partition's chips and spares draw `chip_watts_sum` together.

        Each chip's share of hosts, switches and conversion is added, then cooling, by the PUE.
        """
        chips = self.partition.chips + self.partition.spares
        overhead = self.system.overhead_watts_per_chip.value * chips
        return (chip_watts_sum + overhead) * self.system.pue.value

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token, on the chip of its rank."""
        return self.model.kv_bytes_per_token

"""The emulated machine between two steps: health, seats, expert placement.

Pure state of the timed model: HBM, experts, links. A fault or a repair makes a new health; `apply`
carries out its recovery, and live processes follow.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from emulator.arrays import Bools, Float64s, Int64s
from emulator.fabric.all_to_all import AllToAll
from emulator.fabric.link_health import LinkHealth
from emulator.fabric.routes import find_routes
from emulator.fabric.tiers import tiers_there
from emulator.faults.departure import Departure, departure, home_on
from emulator.faults.recovery_time import RecoveryRates, recovery_ns
from emulator.faults.seats import block_size
from emulator.faults.survival import SurvivalPlan, WeightBytes, survival
from emulator.memory.chip_contents import HbmTerms
from emulator.memory.hbm_layout import HbmLayout, Holdings, lay_out
from emulator.memory.model_memory import ModelMemory
from emulator.specs.batch import StepBatch
from emulator.specs.calibration import Calibration
from emulator.specs.expert_loads import ExpertLoads
from emulator.specs.fault import Fault, FaultKind
from emulator.specs.hbm_usage import HbmOwner
from emulator.specs.health import Health
from emulator.specs.model import ModelSpec
from emulator.specs.overlap import Overlap
from emulator.specs.partition import Partition
from emulator.specs.placement import EMPTY, ExpertPlacement
from emulator.specs.seating import VACANT, Seating
from emulator.specs.system import SystemSpec
from emulator.timing.expert_distribution import ExpertDistribution
from emulator.ultraserver.handover_cost import (
    HandoverCost,
    experts_moved,
    kv_sent,
    weights_read,
    weights_stowed,
)
from emulator.ultraserver.step_cost import StepCost, StepCostModel


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPlan:
    """A recovery, and the emulated time from the faults to the next step."""

    recovery: SurvivalPlan
    duration_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _LentSeat:
    """The position of a leased chip: its slots of a layer, and its HBM before the lease."""

    chip: int
    capacity: int
    held: Holdings


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepCosting:
    """Step costs on the machine as it was at one moment; see `StepCostModel.cost`."""

    model: StepCostModel
    slow_factor: Float64s  # [positions]

    def cost(self, batch: StepBatch, loads: ExpertLoads | None = None) -> StepCost:
        """Time and energy of a step."""
        return self.model.cost(batch, loads, slow_factor=self.slow_factor)


class Machine:
    """A partition of `system` that serves `model` with experts in `placement`.

    `distribution`: of tokens over experts, unless routers are computed; `draft_tokens`: guesses of
    each decode, found for nothing, or made by a further layer (`draft_module`) or by `draft_model`;
    other options are those of `StepCostModel`. Raises ConfigError for an LNC that the chip lacks;
    HbmExhausted, with the usage table and a fitting partition, when the model does not fit.
    """

    def __init__(  # noqa: PLR0913  a keyword for each thing in which machines differ
        self,
        system: SystemSpec,
        model: ModelSpec,
        partition: Partition,
        placement: ExpertPlacement,
        *,
        distribution: ExpertDistribution | None = None,
        calibration: Calibration | None = None,
        overlap: Overlap = Overlap.NONE,
        draft_tokens: int = 0,
        draft_module: bool = False,
        draft_model: ModelSpec | None = None,
        terms: HbmTerms | None = None,
        rates: RecoveryRates | None = None,
    ) -> None:
        self.system = system
        self.model = model
        self.partition = partition
        self.placement = placement
        self.health = Health.whole(system, partition)
        self.seating = Seating.home(partition)
        self.hbm: HbmLayout = lay_out(
            ModelMemory.with_drafts(
                model, by_layer=draft_module, drafter=draft_model, ep=partition.ep
            ),
            system,
            partition,
            slots=placement.slots,
            terms=terms,
        )
        self._slots = placement.slots
        self._lent: dict[int, _LentSeat] = {}
        self._rates = rates or RecoveryRates()
        self.ranks_up: Bools = np.ones(partition.ranks, dtype=np.bool_)
        self.others_serve = False
        """Whether other machines take its requests, so that all of its chips may leave."""
        self._fabric = self._all_to_all()
        self.cost_model = StepCostModel(
            system,
            model,
            partition,
            placement=placement,
            distribution=distribution,
            all_to_all=self._fabric,
            calibration=calibration,
            overlap=overlap,
            draft_tokens=draft_tokens,
            draft_module=draft_module,
            draft_model=draft_model,
        )

    @property
    def kv_tokens_per_rank(self) -> int:
        """Tokens whose KV fits on every rank."""
        return min(self.hbm.kv_tokens_per_rank)

    def take_kv(self, tokens: int) -> None:
        """Allocate a KV pool of `tokens` for every rank; raises HbmExhausted."""
        self.hbm.take_kv([tokens] * self.partition.ranks)

    def costing(self) -> StepCosting:
        """Step costs on the present machine, for use after it has changed."""
        return StepCosting(model=self.cost_model, slow_factor=self._slow_factor())

    def after(self, faults: Iterable[Fault]) -> Health:
        """The health after `faults`; raises ConfigError for an impossible one."""
        health = self.health
        for fault in faults:
            health = health.after(fault, self.system, self.partition)
        return health

    def recovery_plan(
        self,
        health: Health,
        kinds: Iterable[FaultKind] = (),
        *,
        prepared: Collection[int] = (),
        silence_ns: int = 0,
    ) -> RecoveryPlan:
        """The plan for `health`: `kinds` are detected first, silent chips after `silence_ns`.

        The `prepared` chips were leased, and have read the weights of their old seats.
        """
        recovery = survival(
            self.placement,
            health,
            self.partition,
            self.system,
            seating=self.seating,
            capacity=self.capacity(),
            reachable=self._reachable(health),
            weights=self._weight_bytes(),
            lent=self._lent_positions(health),
        )
        seats = self._lent.items()
        home = {position: seat.chip for position, seat in seats if seat.chip in prepared}
        ready = [position for position, chip in recovery.restored if home.get(position) == chip]
        if ready:
            reload_bytes = recovery.reload_bytes.copy()
            reload_bytes[ready] -= self._weight_bytes().replica_bytes
            recovery = replace(recovery, reload_bytes=reload_bytes)
        return RecoveryPlan(
            recovery=recovery,
            duration_ns=recovery_ns(
                recovery, kinds, self.partition, self.system, self._rates, silence_ns=silence_ns
            ),
        )

    @property
    def hang_ns(self) -> int:
        """Emulated time after which a chip without an answer is given up."""
        return round(self._rates.hang_ns.value)

    def notice_ns(self, kinds: Iterable[FaultKind]) -> int:
        """Emulated time until all of these faults are noticed, starting together."""
        return self._rates.detection_ns(kinds)

    def apply(self, health: Health, recovery_plan: RecoveryPlan) -> None:
        """Apply the plan for `health`; leased chips give up their HBM, returned ones regain it."""
        recovery = recovery_plan.recovery
        lent = self._lent_positions(health)
        for position in sorted(self._lent.keys() - lent):
            self.hbm.take_back(position, self._lent.pop(position).held)
        capacity = self.capacity()
        for position in sorted(lent - self._lent.keys()):
            self._lent[position] = _LentSeat(
                chip=int(self.seating.chip_of_position[position]),
                capacity=int(capacity[position]),
                held=self.hbm.lend_out(position, {}),
            )
        self.health = health
        self.seating = recovery.seating
        self.ranks_up = recovery.ranks_up
        self._fabric = self._all_to_all()
        self.cost_model = self.cost_model.with_machine(
            all_to_all=self._fabric,
            chips_up=self.chips_up,
            physical=self.seating.system_chips(self.partition),
        )
        self.place_experts(recovery.placement)

    def place_experts(self, placement: ExpertPlacement) -> None:
        """Set `placement`, which must fit; the fullest layer sets a position's slots."""
        self.placement = placement
        for position, slots in enumerate(self._slots_held().tolist()):
            if position in self._lent:
                continue
            self.hbm.hold_expert_copies(position, slots * self.hbm.memory.expert_layers)
        self.cost_model = self.cost_model.with_placement(placement)

    def capacity(self) -> Int64s:
        """Slots of a layer that fit in each position's memory, int64[positions]."""
        held = self._slots_held()
        spare = [self.hbm.spare_slots(position) for position in range(self.partition.chips)]
        room = held + np.array(spare, dtype=np.int64)
        # A second copy of an expert on one chip is of no use.
        capacity: Int64s = np.minimum(room, np.maximum(held, self.model.experts))
        for position, seat in self._lent.items():
            capacity[position] = seat.capacity
        return capacity

    @property
    def lent_positions(self) -> tuple[int, ...]:
        """Positions whose chips are lent out, ascending."""
        return tuple(sorted(self._lent))

    def lent_position(self, chip: int) -> int | None:
        """The position that `chip` left for its lease; None when it is not leased."""
        return next((at for at, seat in self._lent.items() if seat.chip == chip), None)

    def _lent_positions(self, health: Health) -> frozenset[int]:
        seats = self.seating.chip_of_position
        leaving = np.flatnonzero((seats != VACANT) & health.lent[seats])
        away = {position for position, seat in self._lent.items() if health.lent[seat.chip]}
        return frozenset(away.union(leaving.tolist()))

    def departure(
        self, chips: Collection[int], stand_in: ExpertPlacement | None = None
    ) -> Departure:
        """Expert placement after `chips`, all seated, leave; changes nothing.

        Experts of a `stand_in` fit on any chip. Raises ConfigError, with the figures, when the
        machine cannot continue without them.
        """
        seats = self.seating.chip_of_position
        return departure(
            self.placement if stand_in is None else stand_in,
            self.partition,
            leaving=np.flatnonzero(np.isin(seats, list(chips))).tolist(),
            seating=self.seating,
            ranks_up=self.ranks_up,
            capacity=self._room_for(stand_in),
            others_serve=self.others_serve,
        )

    def home_on(
        self, home: ExpertPlacement, stand_in: ExpertPlacement | None = None
    ) -> ExpertPlacement:
        """Expert placement on the present chips; `home` when all are there. See `departure`."""
        return home_on(
            home,
            self.partition,
            seating=self.seating,
            ranks_up=self.ranks_up,
            capacity=self._room_for(stand_in),
        )

    def _room_for(self, stand_in: ExpertPlacement | None) -> Int64s:
        if stand_in is None:
            return self.capacity()
        return np.full(self.partition.chips, stand_in.experts, dtype=np.int64)

    def hold_training(self, positions: Collection[int], needs: Mapping[HbmOwner, int]) -> None:
        """Give a training state, bytes of a chip by owner, the HBM of leased positions.

        Without `needs` only microcode remains. Raises HbmExhausted when it does not fit.
        """
        for position in positions:
            assert position in self._lent, position
            self.hbm.lend_out(position, needs)

    def reclaim(self, positions: Collection[int]) -> None:
        """Allocate HBM for serving at leased positions again, to read weights into."""
        for position in positions:
            self.hbm.take_back(position, self._lent[position].held)

    def recallable(
        self, health: Health, recovery: SurvivalPlan, *, kept_out: Collection[int] = ()
    ) -> tuple[int, ...]:
        """Leased chips whose absence closes blocks in `recovery`, without those `kept_out`.

        Only blocks in which a rank was up, or all when none was; empty while chips are leaving, and
        of a machine that has left as a whole.
        """
        lent = (seat.chip for seat in self._lent.values() if health.lent[seat.chip])
        away = [chip for chip in lent if chip not in kept_out]
        leaving = self._lent_positions(health) - self._lent.keys()
        has_left = self.others_serve and not self.ranks_up.any()
        if not away or leaving or has_left:
            return ()
        whole = self.recovery_plan(health.returning(away)).recovery
        if not recovery.survivable and whole.survivable:
            return tuple(sorted(away))
        per_block = block_size(self.partition) // self.partition.tp
        was, now, could = (
            ranks.reshape(-1, per_block).any(axis=1)
            for ranks in (self.ranks_up, recovery.ranks_up, whole.ranks_up)
        )
        blocks = np.flatnonzero(was & ~now & could) * per_block * self.partition.tp
        wanted = {
            seat.chip
            for position, seat in self._lent.items()
            if position - position % block_size(self.partition) in blocks and seat.chip in away
        }
        return tuple(sorted(wanted))

    def reading(self, chips: Collection[int]) -> HandoverCost:
        """Cost for `chips` to read a seat's weights again, without experts."""
        numbers = np.array(sorted(chips), dtype=np.int64) + self.partition.first_chip
        read_bytes = np.full(len(numbers), self._weight_bytes().replica_bytes, dtype=np.int64)
        return weights_read(self.system, numbers, read_bytes, self._rates)

    def moving(self, payload_bytes: Float64s) -> HandoverCost:
        """Cost when positions exchange payload_bytes[sender, receiver]."""
        return experts_moved(self.system, payload_bytes, self._fabric)

    def sending_kv(self, *, from_rank: int, to_rank: int, tokens: int) -> HandoverCost:
        """Cost of a request's KV from rank to rank, on the links as they are."""
        layout = self.cost_model.layout
        return kv_sent(layout, from_rank=from_rank, to_rank=to_rank, tokens=tokens)

    @property
    def block_positions(self) -> int:
        """Positions of a block: the fewest that are whole ranks and whole expert groups."""
        return block_size(self.partition)

    def renewal(self, positions: Collection[int]) -> HandoverCost:
        """Cost for seated chips in `positions` to read other weights, experts included."""
        wanted = np.array(sorted(positions), dtype=np.int64)
        wanted = wanted[self.chips_up[wanted]]
        weights = self._weight_bytes()
        experts = (self.placement.expert_of_slot != EMPTY).sum(axis=(0, 2))[wanted]  # [positions]
        read_bytes = weights.replica_bytes + experts * weights.expert_bytes
        chips = self.seating.system_chips(self.partition)[wanted]
        return weights_read(self.system, chips, read_bytes, self._rates)

    def stowing(self, position_bytes: Int64s) -> HandoverCost:
        """Cost for seated chips to copy bytes, int64[positions], to or from their hosts' memory."""
        seated = np.flatnonzero(self.chips_up)
        chips = self.seating.system_chips(self.partition)[seated]
        return weights_stowed(self.system, chips, position_bytes[seated], self._rates)

    def _slots_held(self) -> Int64s:
        """Slots of a layer with allocated memory, by position; at least those of the start."""
        filled = (self.placement.expert_of_slot != EMPTY).sum(axis=2).max(axis=0, initial=0)
        held: Int64s = np.maximum(filled, self._slots)
        return held

    @property
    def chips_up(self) -> Bools:
        """Positions with a chip, bool[positions]."""
        up: Bools = self.seating.chip_of_position != VACANT
        return up

    def _all_to_all(self) -> AllToAll:
        first = self.partition.first_chip
        lent = np.flatnonzero(self.health.lent & self.health.works)
        standby = np.union1d(self.seating.standby(self.health), lent)
        return AllToAll(
            self.system,
            self.partition.chips,
            physical=self.seating.system_chips(self.partition),
            relays=first + standby,
            links=LinkHealth.of(self.health, self.system, self.partition),
        )

    def _reachable(self, health: Health) -> Bools:
        chips = self.partition.first_chip + np.arange(len(health.lost))
        links = LinkHealth.of(health, self.system, self.partition)
        return find_routes(self.system, chips, links).reachable()

    def link_capacity_bytes_per_s(self) -> Float64s:
        """Peak send rate of each chip's links, all tiers together: float64[chips], spares last."""
        links = LinkHealth.of(self.health, self.system, self.partition)
        chips = self.partition.first_chip + np.arange(len(self.health.lost))
        rates = [links.bytes_per_s(self.system, tier) for tier in tiers_there(self.system)]
        capacity: Float64s = np.sum(rates, axis=0)[chips]
        return capacity

    def _slow_factor(self) -> Float64s:
        """Slow factor by position; 1 for a vacant one."""
        seats = self.seating.chip_of_position
        return np.where(seats == VACANT, 1.0, self.health.slow_factor[seats])

    def _weight_bytes(self) -> WeightBytes:
        return WeightBytes.of(self.model, tp=self.partition.tp)

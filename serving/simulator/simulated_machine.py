"""The machine of a simulated engine: what faults, repairs and hand-overs do to it.

These are the live engine's own parts, without processes: `LiveMachine` recovers, `ChipLeases` hands
chips over and takes them back, the `Ledger` counts their joules.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import numpy as np

from emulator.arrays import Bools
from emulator.fabric.tiers import rack_of, tray_of
from emulator.memory.chip_contents import HbmTerms
from emulator.memory.training_memory import smallest_training_chips
from emulator.specs.batch import StepBatch
from emulator.specs.training_recipe import TrainingRecipe
from emulator.ultraserver.machine import Machine
from emulator.ultraserver.step_cost import StepCost, StepCostModel
from emulator.ultraserver.synthetic_tokens import NoTokens
from emulator.units import NS_PER_S
from serving.engine.chip_leases import ChipLeases, TrainingHbm, WarmUp
from serving.engine.expert_moves import DeployedExperts, ExpertMoves
from serving.engine.lease_checks import training_hbm
from serving.engine.ledger import Ledger
from serving.engine.live_machine import LiveMachine
from serving.engine.scheduler_state import RankQueues
from serving.engine.step_batch import warm_up_batch, without_ranks
from serving.simulator.job_cost import JobTerms
from serving.simulator.machine_calls import MachineCall
from serving.simulator.simulated_deployment import SimulatedDeployment
from serving.traffic.engine_limits import HBM_SHARE
from serving.wire import control_call as calls
from serving.wire.machine_state import LeaseState


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankChange:
    """Ranks that take requests from now on, and those whose requests must move.

    A rank that is `closed` keeps its requests; `up` and `closed` are [ranks].
    """

    up: Bools
    closed: Bools
    lost: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MachineStep:
    """A step after a standstill of `pause_ns`; `silent` ranks are lost and give no token.

    `batch` is what was computed: nothing on the silent ranks.
    """

    batch: StepBatch
    cost: StepCost
    pause_ns: int
    silent: tuple[int, ...]


RECOVERIES: Final = logging.getLogger(__name__)
"""What machines do after faults; a command that shows it adds a handler."""
RECOVERIES.addHandler(logging.NullHandler())


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHandovers:
    """Hand-overs of an engine's chips until a time, there and back.

    `leased_chip_s`: seconds of chips that were out, weights' reading included; `moved_requests`:
    those that were not over when their chips left; `joules`: of leaving and coming back.
    """

    handovers: int
    leased_chip_s: float
    moved_requests: int
    joules: float


class _Present:
    """The emulated present, set by the event loop."""

    def __init__(self) -> None:
        self.now_ns = 0

    @property
    def now_s(self) -> float:
        return self.now_ns / NS_PER_S


class _OneVersion:
    """`ServedVersions` of ranks that all serve the same weights."""

    waiting_blocks = 0
    closed_ranks: tuple[int, ...] = ()

    def number_of(self, rank: int) -> int:
        del rank
        return 1


class SimulatedMachine:
    """One engine's; the event loop says when calls come, and steps begin and end.

    A lease has room for a `job`; None: for one of the served model by the default recipe.
    """

    def __init__(self, deployment: SimulatedDeployment, job: JobTerms | None = None) -> None:
        model = deployment.cost_model
        layout, partition = model.layout, model.partition
        machine = machine_of(model)
        limits = deployment.limits
        machine.take_kv(limits.kv_blocks_per_rank * limits.block_tokens)
        self._ledger = Ledger(
            partition, idle_watts=model.idle_chip_watts, facility_watts=model.facility_watts
        )
        self._present = _Present()
        self._live = LiveMachine(
            machine,
            NoTokens(),
            same_model=False,
            time=self._present,
            on_change=self._changed,
            log=RECOVERIES,
        )
        chips = partition.first_chip + np.arange(partition.chips)
        self._experts = ExpertMoves(
            DeployedExperts(
                partition=partition,
                time_model=model.model,
                weights=model.model,
                eplb=None,
                distribution=layout.distribution,
                tray_of_chip=tray_of(model.system, chips),
                rack_of_chip=rack_of(model.system, chips),
            ),
            self._live,
        )
        self._leases = ChipLeases(
            self._live,
            self._experts,
            _OneVersion(),
            time=self._present,
            training_hbm=_training_hbm(deployment, job),
            warm_up=self._warm_up,
            ledger=self._ledger,
        )
        self._home = model
        self._costed: StepCostModel | None = None
        """The machine's, of which `_steady` are those of steps that go ahead."""
        self._steady: StepCostModel | None = None
        self._held_until_ns = 0  # no step computes before
        self._leased_chip_ns = 0  # until `_seen_ns`
        self._seen_ns = 0
        self._moved: dict[int, int] = {}  # requests, by lease
        self._warm_ns = 0  # the end of the last warm-up, before which no step is decided

    def _changed(self) -> None:
        self._ledger.lose(self._live.actual.lost, self._present.now_ns)
        self._experts.plan_soon()

    @property
    def next_ns(self) -> int | None:
        """When a warm-up ends, or an idle engine goes on with a hand-over; None without either."""
        return self._warm_ns if self.is_warming else self._leases.next_ns

    @property
    def is_warming(self) -> bool:
        """Whether chips that have come back compute their first step."""
        return self._warm_ns > self._present.now_ns

    @property
    def steady_costs(self) -> StepCostModel | None:
        """What steps cost until a call comes; None while more than steps concerns it: chips that
        change hands, faults, or a standstill before the next step.
        """
        live, now_ns = self._live, self._present.now_ns
        waits = self._leases.waits or self.is_warming or self._held_until_ns > now_ns
        struck = live.owes_ranks or live.silence or live.faults.pending or live.faults.recovering
        if waits or struck or live.owes_pause:
            return None
        if self._costed is not live.machine.cost_model:
            self._costed, self._steady = live.machine.cost_model, self._costs_now()
        return self._steady

    def _costs_now(self) -> StepCostModel | None:
        """Those of the deployment while nothing has changed; None of chips that are slow."""
        machine = self._live.machine
        if not machine.ranks_up.any():  # it makes no steps
            return self._home
        if (machine.costing().slow_factor != 1.0).any():
            return None
        home = self._home.layout.placement
        same = (
            machine.health.is_whole
            and np.array_equal(machine.seating.chip_of_position, np.arange(home.chips))
            and np.array_equal(machine.placement.expert_of_slot, home.expert_of_slot)
        )
        costs = self._home if same else machine.cost_model
        return None if costs.step_tables() is None else costs

    @property
    def leaves_ns(self) -> int | None:
        """When the first wait of a lease, or a warm-up, ends; None where a fault comes first, or
        nothing is known.
        """
        live = self._live
        return None if live.owes_ranks or live.faults.pending else self.next_ns

    def chip_joules(self, now_ns: int) -> float:
        """Of all chips from the start until now, spares and hand-overs included, but for steps that
        went ahead above idle power.
        """
        return float(self._ledger.chip_joules(now_ns).sum())

    @property
    def leases(self) -> tuple[LeaseState, ...]:
        """Ongoing ones."""
        return self._leases.going_on

    def lease(self, number: int) -> LeaseState:
        """One of the last leases, ended or not; raises ConfigError for an unknown number."""
        return self._leases.state(number)

    @property
    def is_leased(self) -> bool:
        """Whether all ranks are in one lease, and leave or have left."""
        ranks = self._live.machine.partition.ranks
        return any(len(lease.ranks) == ranks for lease in self.leases)

    def handovers(self, now_ns: int) -> EngineHandovers:
        """Those until now."""
        self._count_leased(now_ns)
        totals = self._leases.totals
        return EngineHandovers(
            handovers=totals.handovers,
            leased_chip_s=self._leased_chip_ns / NS_PER_S,
            moved_requests=sum(self._moved.values()),
            joules=totals.handover_joules,
        )

    def _count_leased(self, now_ns: int) -> None:
        self._leased_chip_ns += self._leases.chips_leased * (now_ns - self._seen_ns)
        self._seen_ns = now_ns

    def take(
        self,
        call: MachineCall,
        now_ns: int,
        queues: Sequence[RankQueues],
        *,
        others_serve: bool,
    ) -> None:
        """Carry out a call, whose effect `idle` or `end` shows.

        `others_serve`: all ranks may leave. Raises ConfigError and LeaseRefused for one that the
        machine refuses.
        """
        self._present.now_ns = now_ns
        self._count_leased(now_ns)
        match call:
            case calls.InjectRequest():
                self._live.inject(call.fault)
                self._ledger.lose(self._live.actual.lost, now_ns)
            case calls.HealRequest():
                self._live.heal(call.chip, call.rack)
                self._experts.bring_home()
            case calls.DrainRequest():
                if self._live.silence is None:
                    self._live.settle_pending()
                if not self.is_leased:
                    whole = len(call.chips) == self._live.machine.partition.chips
                    self._live.machine.others_serve = others_serve and whole
                self._leases.drain(call, queues)
            case calls.ResumeRequest():
                self._leases.resume(call.lease)
            case calls.TrainingNote():
                self._leases.note(call)
        self._leases.meet_recalls()
        self._hold(self._live.take_pause())

    def idle(self, now_ns: int, queues: Sequence[RankQueues]) -> RankChange:
        """Do what is due between two steps."""
        self._present.now_ns = now_ns
        silence = self._live.silence
        if silence is None or silence.until_ns <= now_ns:
            self._live.settle_pending()
        change = self._go_on(queues)
        self._hold(self._live.take_pause())
        return change

    def begin(self, batch: StepBatch, now_ns: int) -> MachineStep:
        """Begin a step that runs `batch`."""
        self._present.now_ns = now_ns
        work_ns = max(now_ns, self._held_until_ns)
        live = self._live.step((), {}, begin_ns=work_ns)
        batch = without_ranks(batch, live.lost_ranks)
        cost = live.costing.cost(batch)
        pause_ns = work_ns - now_ns + live.pause_ns
        end_ns = now_ns + pause_ns + cost.duration_ns
        self._ledger.add_step(cost, live.seating.chip_of_position, begin_ns=now_ns, end_ns=end_ns)
        return MachineStep(batch=batch, cost=cost, pause_ns=pause_ns, silent=live.lost_ranks)

    def end(
        self, step: MachineStep | None, now_ns: int, queues: Sequence[RankQueues]
    ) -> RankChange:
        """Do what is due after a step; None is one that went ahead."""
        self._present.now_ns = now_ns
        self._live.faults.finish(emulated_s=self._present.now_s)
        change = self._go_on(queues)
        silent = () if step is None else step.silent
        return replace(change, lost=tuple(sorted({*silent, *change.lost})))

    def _go_on(self, queues: Sequence[RankQueues]) -> RankChange:
        self._count_leased(self._present.now_ns)
        self._leases.advance(queues, waits=True)
        self._moved |= {lease.number: lease.moved_requests for lease in self.leases}
        return RankChange(
            up=self._live.machine.ranks_up,
            closed=~self._leases.ranks_open,
            lost=self._live.take_lost_ranks(),
        )

    def _hold(self, duration_ns: int) -> None:
        self._held_until_ns = max(self._held_until_ns, self._present.now_ns) + duration_ns

    def _warm_up(self, ranks: Sequence[int]) -> WarmUp:
        """A prompt on ranks that have just come back, in a step of its own."""
        machine = self._live.machine
        partition, seats = machine.partition, machine.seating.chip_of_position
        cost = machine.costing().cost(warm_up_batch(ranks, partition.ranks))
        begin_ns = max(self._ledger.end_ns, self._present.now_ns)
        self._warm_ns = begin_ns + cost.duration_ns
        self._ledger.add_step(cost, seats, begin_ns=begin_ns, end_ns=self._warm_ns)
        self._hold(self._live.take_pause())
        self._hold(cost.duration_ns)
        positions = [chip for rank in ranks for chip in partition.chips_of_rank(rank)]
        joules = float(cost.chip_watts[positions].sum()) * cost.duration_ns / NS_PER_S
        return WarmUp(duration_ns=cost.duration_ns, joules=joules)


def machine_of(model: StepCostModel) -> Machine:
    """The machine whose steps `model` costs."""
    return Machine(
        model.system,
        model.model,
        model.partition,
        model.layout.placement,
        distribution=model.layout.distribution,
        calibration=model.calibration,
        overlap=model.overlap,
        terms=HbmTerms(utilization=HBM_SHARE),
    )


def _training_hbm(deployment: SimulatedDeployment, job: JobTerms | None) -> TrainingHbm:
    """As a live engine's; a job on an engine of several, as a whole, may have others' chips too.

    So may one that is named, which then has the chips of several leases.
    """
    if job is not None:
        return cache(job.hbm_on)
    model = deployment.cost_model
    system, trained, partition = model.system, model.model, model.partition
    needs = training_hbm(system, trained, lnc=partition.lnc)
    if deployment.replicas.count == 1:
        return needs
    least = smallest_training_chips(system, trained, TrainingRecipe(lnc=partition.lnc)) or 0
    return lambda chips: needs(chips if chips < partition.chips else max(chips, least))

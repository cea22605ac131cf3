"""What is shown of a running engine: each view is of one moment, with one clock and one power."""

from dataclasses import asdict, dataclass

from msgspec import structs

from emulator.units import NS_PER_S
from serving.engine.chip_leases import ChipLeases
from serving.engine.deployment import Deployment
from serving.engine.engine_meters import EngineMeters
from serving.engine.engine_sleep import EngineSleep
from serving.engine.engine_steps import EngineSteps
from serving.engine.engine_telemetry import telemetry_look
from serving.engine.engine_time import EngineTime
from serving.engine.expert_moves import ExpertMoves
from serving.engine.ledger import Float64s
from serving.engine.live_machine import LiveMachine
from serving.engine.machine_report import machine_state
from serving.engine.model_versions import ModelVersions
from serving.engine.scheduler_state import SchedulerState
from serving.wire.control_call import HardwareReply
from serving.wire.machine_state import HostRatio, MachineState
from serving.wire.snapshot import Snapshot
from serving.wire.telemetry import Telemetry


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineViews:
    """Of the engine whose parts the fields are; `heard` is what its scheduler said last."""

    deployment: Deployment
    live: LiveMachine
    time: EngineTime
    meters: EngineMeters
    experts: ExpertMoves
    steps: EngineSteps
    versions: ModelVersions
    leases: ChipLeases
    sleep: EngineSleep
    kv_blocks: int
    host_ratios: tuple[HostRatio, ...]

    def note_lost(self) -> None:
        """Chips that are lost draw nothing from now on; those that are back do."""
        self.meters.ledger.lose(self.live.actual.lost, self.time.now_ns)

    def snapshot(self, heard: SchedulerState) -> Snapshot:
        """All totals."""
        at_ns, watts = self._now()
        return self._snapshot(heard, at_ns, watts)

    def state(self, heard: SchedulerState) -> MachineState:
        """The whole machine."""
        at_ns, watts = self._now()
        return self._state(heard, self._snapshot(heard, at_ns, watts), watts)

    def telemetry(self, heard: SchedulerState) -> Telemetry:
        """What changes all the time."""
        return self._telemetry(heard, self.snapshot(heard))

    def look(self, heard: SchedulerState) -> HardwareReply:
        """Everything."""
        at_ns, watts = self._now()
        snapshot = self._snapshot(heard, at_ns, watts)
        telemetry, state = self._telemetry(heard, snapshot), self._state(heard, snapshot, watts)
        return self.meters.look(at_ns, snapshot, telemetry, state)

    def _now(self) -> tuple[int, Float64s]:
        """The present, and what each chip draws then, [chips]."""
        self.note_lost()
        at_ns = self.time.now_ns
        return at_ns, self.meters.watts(at_ns, self.live.actual, self.leases.going_on)

    def _snapshot(self, heard: SchedulerState, at_ns: int, watts: Float64s) -> Snapshot:
        """The totals at `at_ns`, which no step has ended after; `watts` are of each chip, [chips].

        Nothing is counted by that, and no total falls later: a step that begins in the time since
        the last one draws at least idle power.
        """
        time, ledger, cost = self.time, self.meters.ledger, self.live.machine.cost_model
        epoch, stall, chip_watts = time.epoch, self.steps.stall(), float(watts.sum())
        return Snapshot(
            dilation=time.dilation,
            clock_epoch=epoch.index if epoch else 0,
            epoch_emulated_s=epoch.from_ns / NS_PER_S if epoch else 0.0,
            epoch_unix_s=time.unix_s(epoch) if epoch else 0.0,
            emulated_s=at_ns / NS_PER_S,
            steps=time.steps,
            busy_s=time.busy_ns / NS_PER_S,
            lag_s=time.lag_ns / NS_PER_S,
            lagging_steps=time.lagging_steps,
            compute_wall_s=time.compute_wall_s,
            pause_s=time.pause_ns / NS_PER_S,
            chip_joules=float(ledger.chip_joules(at_ns).sum()),
            facility_joules=ledger.facility_joules(at_ns),
            chips=cost.partition.chips,
            chip_watts=chip_watts,
            facility_watts=cost.facility_watts(chip_watts),
            provisioned_watts=cost.provisioned_watts,
            chips_up=int(self.live.machine.chips_up.sum()),
            ranks_up=int(self.live.machine.ranks_up.sum()),
            faults=len(self.live.faults),
            requests_moved=heard.moved_requests,
            empty_rank_steps=heard.empty_rank_steps,
            expert_imbalance=self.experts.imbalance or 0.0,
            expert_rebalances=self.experts.rebalances,
            expert_moved_bytes=self.experts.moved_bytes,
            model_version=self.versions.target.number,
            rollout_blocks_pending=self.versions.waiting_blocks,
            chips_leased=self.leases.chips_leased,
            stall_s=0.0 if stall is None else stall.left_s,
            stall_wall_s=0.0 if stall is None else stall.wall_left_s,
            **asdict(self.leases.totals),
        )

    def _state(self, heard: SchedulerState, snapshot: Snapshot, watts: Float64s) -> MachineState:
        state = machine_state(
            self.deployment,
            self.live,
            snapshot,
            self.experts.balance,
            leases=self.leases,
            watts=watts,
            queues=heard.rank_states,
            kv_blocks=self.kv_blocks,
        )
        ranks = [
            structs.replace(rank, version=self.versions.number_of(rank.rank))
            for rank in state.ranks
        ]
        return structs.replace(
            state,
            ranks=tuple(ranks),
            versions=self.versions.states(),
            sleep=self.sleep.state(),
            stall=self.steps.stall(),
            host_ratios=self.host_ratios,
        )

    def _telemetry(self, heard: SchedulerState, snapshot: Snapshot) -> Telemetry:
        return telemetry_look(
            snapshot,
            self.meters.tokens.totals,
            heard,
            ranks=self.deployment.partition.ranks,
            kv_blocks=self.kv_blocks,
            expert_imbalance=self.experts.imbalance,
            stall=self.steps.stall(),
        )

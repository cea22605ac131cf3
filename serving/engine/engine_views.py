"""What is shown of a running engine: each view is of one moment, with one clock and one power."""

from dataclasses import asdict, dataclass

from msgspec import structs

from emulator.units import NS_PER_S
from serving.engine.chip_leases import ChipLeases
from serving.engine.deployment import Deployment
from serving.engine.engine_meters import EngineMeters
from serving.engine.engine_sleep import EngineSleep
from serving.engine.engine_steps import EngineSteps
from serving.engine.engine_time import EngineTime
from serving.engine.expert_moves import ExpertMoves
from serving.engine.ledger import Float64s
from serving.engine.live_machine import LiveMachine
from serving.engine.machine_report import machine_state
from serving.engine.model_versions import ModelVersions
from serving.engine.scheduler_state import SchedulerState
from serving.wire.machine_snapshot import MachineSnapshot
from serving.wire.machine_state import HostRatio, MachineState
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

    def telemetry(self, heard: SchedulerState) -> Telemetry:
        """What changes all the time."""
        return self._telemetry(heard, *self._now())

    def state(self, heard: SchedulerState) -> MachineState:
        """The whole machine."""
        at_ns, watts = self._now()
        return self._state(heard, self._telemetry(heard, at_ns, watts), watts)

    def snapshot(self, heard: SchedulerState) -> MachineSnapshot:
        """Everything."""
        at_ns, watts = self._now()
        telemetry = self._telemetry(heard, at_ns, watts)
        return self.meters.snapshot(at_ns, telemetry, self._state(heard, telemetry, watts))

    def _now(self) -> tuple[int, Float64s]:
        """The present, and what each chip draws then, [chips]."""
        self.note_lost()
        at_ns = self.time.now_ns
        return at_ns, self.meters.watts(at_ns, self.live.actual, self.leases.going_on)

    def _telemetry(self, heard: SchedulerState, at_ns: int, watts: Float64s) -> Telemetry:
        """The figures at `at_ns`, which no step has ended after; `watts` are of each chip, [chips].

        Nothing is counted by that, and no total falls later: a step that begins in the time since
        the last one draws at least idle power.
        """
        time, ledger, machine = self.time, self.meters.ledger, self.live.machine
        cost, epoch, queues = machine.cost_model, time.epoch, heard.rank_states
        tokens, chip_watts = self.meters.tokens.totals, float(watts.sum())
        ranks = self.deployment.partition.ranks
        return Telemetry(
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
            prompt_tokens=tokens.prompt_tokens,
            output_tokens=tokens.output_tokens,
            requests_arrived=heard.arrived_requests,
            requests_running=sum(queue.running for queue in queues),
            requests_waiting=sum(queue.waiting for queue in queues),
            requests_moved=heard.moved_requests,
            empty_rank_steps=heard.empty_rank_steps,
            kv_blocks_used=sum(queue.kv_blocks_used for queue in queues),
            kv_blocks=self.kv_blocks * ranks,
            chips=cost.partition.chips,
            chips_up=int(machine.chips_up.sum()),
            chips_leased=self.leases.chips_leased,
            ranks=ranks,
            ranks_up=int(machine.ranks_up.sum()),
            chip_joules=float(ledger.chip_joules(at_ns).sum()),
            facility_joules=ledger.facility_joules(at_ns),
            chip_watts=chip_watts,
            facility_watts=cost.facility_watts(chip_watts),
            provisioned_watts=cost.provisioned_watts,
            faults=len(self.live.faults),
            expert_imbalance=self.experts.imbalance,
            expert_rebalances=self.experts.rebalances,
            expert_moved_bytes=self.experts.moved_bytes,
            model_version=self.versions.target.number,
            rollout_blocks_pending=self.versions.waiting_blocks,
            stall=self.steps.stall(),
            **asdict(self.leases.totals),
        )

    def _state(self, heard: SchedulerState, telemetry: Telemetry, watts: Float64s) -> MachineState:
        state = machine_state(
            self.deployment,
            self.live,
            telemetry,
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
            host_ratios=self.host_ratios,
        )

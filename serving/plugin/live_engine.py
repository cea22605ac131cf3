"""A running engine below vLLM: the live machine with its clock, its energy and its experts.

One call is one step: the chips compute it, the cost model times it, the clock holds it until then.
Between steps it answers the control service.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from emulator.errors import ConfigError
from emulator.fleet import Fleet, MadeUpTokens
from emulator.model import Machine, StepCost, SystemPower, ceilings_of
from emulator.sim.clock import Clock
from emulator.specs.step import RankOutput, RankStep
from emulator.units import NS_PER_S
from serving.errors import LeaseRefused
from serving.metrics.control_call import (
    FAULTS_TOLD_MAX,
    ControlReply,
    ControlRequest,
    DescribeReply,
    DescribeRequest,
    DrainRequest,
    ExpertLoadReply,
    ExpertLoadRequest,
    FaultReport,
    HardwareRequest,
    HealReport,
    HealRequest,
    InjectRequest,
    LeaseReport,
    PlacementReply,
    PlacementRequest,
    PowerReply,
    PowerRequest,
    PublishRequest,
    RecordingRequest,
    RecordRequest,
    Refusal,
    RefusalCode,
    ReliefRequest,
    ResumeRequest,
    RollbackRequest,
    StateReply,
    StateRequest,
    StepsRequest,
    TelemetryReply,
    TelemetryRequest,
    TrainingNote,
    WatchReply,
    WatchRequest,
    request_from_json,
    to_json,
)
from serving.metrics.machine_state import HostRatio, MachineState
from serving.metrics.telemetry import Telemetry
from serving.plugin.chip_leases import ChipLeases, WarmUp
from serving.plugin.deployment import Deployment
from serving.plugin.engine_description import describe_engine
from serving.plugin.engine_meters import EngineMeters
from serving.plugin.engine_sleep import EngineSleep
from serving.plugin.engine_time import EngineTime, MachineTotals
from serving.plugin.expert_moves import ExpertMoves
from serving.plugin.lease_checks import training_hbm
from serving.plugin.live_machine import LiveMachine, LiveStep
from serving.plugin.live_recording import LiveRecording
from serving.plugin.machine_report import machine_state
from serving.plugin.merge import LockstepOutput
from serving.plugin.model_versions import ModelVersions
from serving.plugin.placement_pages import placement_page
from serving.plugin.power_figures import power_report
from serving.plugin.step_energy import StepEnergy
from serving.plugin.step_report import StepReport
from serving.plugin.step_wish import StepWish
from serving.plugin.telemetry_look import telemetry_look
from serving.plugin.translate import step_batch, warm_up_step

Shown = (
    DescribeRequest
    | PlacementRequest
    | PowerRequest
    | TelemetryRequest
    | HardwareRequest
    | ExpertLoadRequest
)
"""Requests that change nothing."""


class LiveEngine:
    """Steps of one engine in emulated time.

    Invariants: every step is counted once in time and energy; the machine's health, the chips'
    processes and the ranks that take requests agree between steps.
    """

    def __init__(
        self,
        deployment: Deployment,
        machine: Machine,
        tokens: Fleet | MadeUpTokens,
        clock: Clock,
        *,
        kv_blocks: int,
        host_ratios: tuple[HostRatio, ...] = (),
    ) -> None:
        """With `host_ratios`, what this host was measured to need, the clock follows the load."""
        self._deployment = deployment
        self._kv_blocks = kv_blocks
        self._host_ratios = host_ratios
        self._time = EngineTime(clock, machine.cost_model, follows_load=bool(host_ratios))
        self._meters = EngineMeters(machine, self._time)
        self._live = LiveMachine(
            machine,
            tokens,
            same_model=deployment.same_model,
            now_s=lambda: self._time.now_s,
            on_change=self._chips_changed,
        )
        self._experts = ExpertMoves(deployment, self._live)
        self._recording = LiveRecording(lambda: self._time.now_ns, ceilings_of(machine.cost_model))
        self._versions = ModelVersions(
            deployment.weights_dir,
            self._live,
            now_ns=lambda: self._time.now_ns,
            passes=clock.dilation > 0,
            spend=self._meters.spend,
        )
        self._leases = ChipLeases(
            self._live,
            self._experts,
            self._versions,
            now_ns=lambda: self._time.now_ns,
            training_hbm=training_hbm(deployment),
            warm_up=self._warm_up,
            spend=self._meters.spend,
        )
        self._sleep = EngineSleep(self._live, self._versions, spend=self._meters.spend)
        self._wish = StepWish()
        self._last_cost: StepCost | None = None
        self._held_until_ns = 0
        self._follows_step = False
        self._heard = self._counted = LockstepOutput.make_empty()

    def _chips_changed(self) -> None:
        """Chips have come or gone: moves of experts that have not begun are void."""
        self._experts.plan_soon()

    def run(
        self,
        steps: Sequence[RankStep],
        bitmasks: Mapping[int, NDArray[np.int32]],
        *,
        continues: bool,
    ) -> tuple[dict[int, RankOutput], StepReport]:
        """Compute a step and hold it until its emulated end; `continues`: see `StepPacer`."""
        live, _ = self._step(lambda: self._live.step(steps, bitmasks), steps, continues=continues)
        report, energy = self.report(live.lost_ranks), self._step_energy(live)
        self._follows_step = True
        if self._go_on_with_leases(idle=False):
            # What leases did after the step is in the same report, but not the time that it took.
            lost_ranks = report.lost_ranks + self._live.take_lost_ranks()
            report = replace(self.report(lost_ranks), begin_s=report.begin_s, end_s=report.end_s)
        self._follows_step = False
        return live.result.outputs, replace(report, energy=energy)

    def _step_energy(self, live: LiveStep) -> StepEnergy:
        chip_joules, facility_joules = self._time.step_joules
        return StepEnergy(
            chip_joules=chip_joules,
            facility_joules=facility_joules,
            ranks=tuple(live.result.outputs),
            chip_of_position=live.seating.chip_of_position,
            tp=self._deployment.partition.tp,
        )

    def _step(
        self,
        compute: Callable[[], LiveStep],
        steps: Sequence[RankStep],
        *,
        continues: bool,
        made_up: bool = False,
    ) -> tuple[LiveStep, StepCost]:
        """Compute `steps`, count what they cost, and hold them until their emulated end.

        Tokens that are `made_up` are nobody's, and are not counted as served.
        """
        begin_ns = self._time.begin_ns(continues=continues)
        started = time.perf_counter()
        live = compute()
        outputs, loads = live.result.outputs, live.result.loads
        computed = [step for step in steps if step.rank in outputs]
        batch = step_batch(computed, outputs, self._deployment.partition.ranks)
        self._experts.after_step(live.result, batch)
        compute_wall_s = time.perf_counter() - started
        counted = loads if self._deployment.same_model else None
        cost = live.costing.cost(batch, counted)
        self._last_cost = cost
        # An attempt that broke off is charged as whole: where in it the chip was lost is not known.
        again_ns = live.repeats * cost.duration_ns
        held_ns = max(0, self._held_until_ns - begin_ns)
        pause_ns = held_ns + live.pause_ns + again_ns
        self._recording.add(
            cost,
            batch,
            costing=live.costing,
            loads=counted,
            begin_ns=begin_ns + pause_ns,
            pause_ns=pause_ns,
            chips=live.seating.chip_of_position,
            queues=self._heard.rank_states,
        )
        self._time.computed()
        self._time.finish(
            begin_ns,
            cost,
            pause_ns=pause_ns,
            compute_wall_s=compute_wall_s,
            keeps_pace=self._leases.chips_lent > 0,  # a training job goes by the dilation it got
        )
        served = sum(len(output.request_ids) for output in outputs.values())
        self._meters.after_step(
            cost,
            batch,
            live.seating.chip_of_position,
            begin_ns=begin_ns,
            output_tokens=None if made_up else served,
        )
        return live, cost

    def _warm_up(self, ranks: Sequence[int]) -> WarmUp:
        """A made-up prompt on ranks that have just come back, in a step of its own."""
        steps = [warm_up_step(rank) for rank in ranks]
        live, cost = self._step(
            lambda: self._live.warm_up(steps), steps, continues=self._follows_step, made_up=True
        )
        self._live.forget_requests(ranks)
        partition = self._deployment.partition
        positions = [chip for rank in ranks for chip in partition.chips_of_rank(rank)]
        duration_ns = cost.duration_ns * (1 + live.repeats)
        joules = float(cost.chip_watts[positions].sum()) * duration_ns / NS_PER_S
        return WarmUp(duration_ns=duration_ns, joules=joules)

    def _go_on_with_leases(self, *, idle: bool) -> bool:
        """Let groups of chips go, and come back, as far as that is due; whether anything was."""
        before = self._leases.going_on
        waits = self._time.passes or not idle
        self._leases.advance(self._heard.rank_states, waits=waits)
        self._wish_for_time()
        if self._leases.going_on == before and not self._live.owes_ranks:
            return False
        self._wish.make()  # an idle scheduler has to hear of ranks that open and close
        return True

    def _wish_for_time(self) -> None:
        """Ask for steps while something waits for emulated time, which passes without them."""
        if self._time.passes and (self._leases.waits or self._versions.is_reading):
            self._wish.wait()

    def hear(self, output: LockstepOutput) -> None:
        """Take what the scheduler says of its ranks, and of requests that had to move."""
        self._heard = output
        self._wish = output.wish
        self._hold(self._versions.advance(output))
        if self._versions.wants_step:
            self._wish.make()
        if not self._live.owes_ranks:  # or else their requests have yet to move
            before, self._counted = self._counted, output
            moved = output.moved_requests - before.moved_requests
            failed = output.failed_requests - before.failed_requests
            self._live.faults.count_requests(moved=moved, failed=failed)
            self._leases.count_moved(moved)
        self._wish_for_time()
        if not output.total_num_scheduled_tokens:
            self._go_on_with_leases(idle=self._is_idle)
            self._hold(self._live.take_pause())

    def report(self, lost_ranks: tuple[int, ...] = ()) -> StepReport:
        """The end of the last step, for the scheduler and the metrics."""
        ranks_up = tuple(self._live.machine.ranks_up.tolist())
        draining = np.flatnonzero(~self._leases.ranks_open).tolist()
        report = self._time.report(self._totals(), lost_ranks=lost_ranks, ranks_up=ranks_up)
        return replace(
            report,
            closed_ranks=tuple(sorted({*self._versions.closed_ranks, *draining})),
            renewed_ranks=self._versions.renewed_ranks,
            weights=self._versions.names,
        )

    def idle_report(self) -> StepReport:
        """The same after a step without tokens, with ranks that have come or gone meanwhile.

        Where only time is waited for, a moment of it passes here.
        """
        if self._wish.waits and not self._wish.wanted:
            self._time.rest()
        return self.report(self._live.take_lost_ranks())

    def _totals(self) -> MachineTotals:
        machine = self._live.machine
        return MachineTotals(
            chips_up=int(machine.chips_up.sum()),
            ranks_up=int(machine.ranks_up.sum()),
            faults=len(self._live.faults),
            requests_moved=self._heard.moved_requests,
            empty_rank_steps=self._heard.empty_rank_steps,
            expert_imbalance=self._experts.imbalance or 0.0,
            expert_rebalances=self._experts.rebalances,
            expert_moved_bytes=self._experts.moved_bytes,
            model_version=self._versions.target.number,
            blocks_waiting=self._versions.waiting_blocks,
            chips_lent=self._leases.chips_lent,
            **asdict(self._leases.totals),
        )

    def state(self) -> MachineState:
        """The whole machine between two steps."""
        state = machine_state(
            self._deployment,
            self._live,
            self._time.snapshot(self._totals()),
            self._experts.balance,
            leases=self._leases,
            last_cost=self._last_cost,
            queues=self._heard.rank_states,
            kv_blocks=self._kv_blocks,
        )
        ranks = [
            structs.replace(rank, version=self._versions.number_of(rank.rank))
            for rank in state.ranks
        ]
        versions, sleep = self._versions.states(), self._sleep.state()
        return structs.replace(
            state,
            ranks=tuple(ranks),
            versions=versions,
            sleep=sleep,
            host_ratios=self._host_ratios,
        )

    def _watched(self) -> WatchReply:
        """What changes all the time, without the rest of the machine."""
        snapshot = self._time.snapshot(self._totals())
        return WatchReply(
            emulated_s=self._time.now_s,
            dilation=snapshot.dilation,
            arrived_requests=self._heard.arrived_requests,
            running=sum(queue.running for queue in self._heard.rank_states),
            waiting=sum(queue.waiting for queue in self._heard.rank_states),
            leases=self._leases.states,
            versions=self._versions.states(),
        )

    def _shown(self, request: Shown) -> ControlReply:
        """What is emulated, and how it does; raises ConfigError for a layer that there is not."""
        snapshot = self._time.snapshot(self._totals())
        match request:
            case DescribeRequest():
                description = describe_engine(
                    self._deployment, dilation=snapshot.dilation, kv_blocks=self._kv_blocks
                )
                return DescribeReply(description=description)
            case PlacementRequest():
                return PlacementReply(page=placement_page(self._live.machine, request.first_layer))
            case PowerRequest():
                power = SystemPower(self._deployment.system)
                window = self._meters.tokens.window()
                return PowerReply(report=power_report(power, self.state(), snapshot, window))
            case HardwareRequest():
                return self._meters.look(self._totals(), self._telemetry(), self.state())
            case ExpertLoadRequest():
                return ExpertLoadReply(load=self._experts.load)
        return TelemetryReply(
            telemetry=self._telemetry(),
            faults=self._live.faults.records[-FAULTS_TOLD_MAX:],
            leases=self._leases.states,
            versions=self._versions.states(),
            sleep=self._sleep.state(),
        )

    def _telemetry(self) -> Telemetry:
        return telemetry_look(
            self._time.snapshot(self._totals()),
            self._meters.tokens.totals,
            self._heard,
            now_s=self._time.now_s,
            ranks=self._deployment.partition.ranks,
            kv_blocks=self._kv_blocks,
            expert_imbalance=self._experts.imbalance,
        )

    @property
    def _is_idle(self) -> bool:
        """Whether no request was left when the scheduler last spoke."""
        return not self._heard.has_requests

    def control(self, request: str) -> str:
        """Answer the control service: JSON in, JSON out; a refusal is an answer too."""
        try:
            if self._is_idle or self._wish.paused:  # no step comes in which it could be done
                self._go_on_with_leases(idle=self._is_idle)
            asked = request_from_json(request)
            return to_json(self._sleep.refusal(asked) or self._answer(asked))
        except ConfigError as error:
            return to_json(Refusal(code=RefusalCode.INVALID, message=str(error), field=error.field))
        except LeaseRefused as error:
            return to_json(Refusal(code=RefusalCode.PRECONDITION, message=str(error)))
        finally:
            # A fault or a repair may have called chips back, also where the call is refused.
            self._leases.meet_recalls()
            # What this took begins now: an idle engine may be through with it before its next step.
            self._hold(self._live.take_pause())

    def _hold(self, duration_ns: int) -> None:
        """Let the next step begin so much later than it would now."""
        if duration_ns:
            self._held_until_ns = max(self._held_until_ns, self._time.now_ns) + duration_ns

    def sleep(self, level: int) -> None:
        """Give up HBM as vLLM's sleep does; raises ConfigError when it cannot be now."""
        self._hold(self._sleep.fall_asleep(level, self._leases.going_on))

    def wake_up(self, tags: Sequence[str] | None) -> None:
        """Bring back into HBM what `tags` name, or everything."""
        self._hold(self._sleep.wake(tags))

    def discard(self, tags: Sequence[str]) -> None:
        """Give up the KV cache alone."""
        self._sleep.discard(tags)

    def _answer(self, request: ControlRequest) -> ControlReply:
        if isinstance(request, Shown):
            return self._shown(request)
        match request:
            case StateRequest():
                return StateReply(state=self.state())
            case WatchRequest():
                return self._watched()
            case InjectRequest():
                return self._inject(request)
            case HealRequest():
                healed = self._live.heal(request.chip, request.rack)
                self._experts.bring_home()
                return HealReport(healed=healed)
            case PublishRequest():
                self._wish.make()  # an idle scheduler has to hear of blocks that close
                return self._versions.publish(request.weights_dir, request.note)
            case RollbackRequest():
                self._wish.make()
                return self._versions.roll_back()
            case DrainRequest() | ResumeRequest() | TrainingNote():
                return self._answer_of_lease(request)
            case RecordRequest() | RecordingRequest() | StepsRequest() | ReliefRequest():
                return self._recording.answer(request)

    def _inject(self, request: InjectRequest) -> FaultReport:
        """Let a fault happen; raises ConfigError for one that cannot."""
        number, recovery = self._live.inject(request.fault, dry_run=request.dry_run)
        if self._is_idle:
            self._live.settle_pending()
        return FaultReport(
            accepted=number is not None,
            survivable=recovery.survivable,
            reason=recovery.reason,
            number=number,
        )

    def _answer_of_lease(
        self, request: DrainRequest | ResumeRequest | TrainingNote
    ) -> ControlReply:
        """Raises ConfigError and LeaseRefused; what can be done at once in an idle engine is."""
        match request:
            case DrainRequest():
                self._live.settle_pending()
                number, words = self._leases.drain(request, self._heard.rank_states)
            case ResumeRequest():
                number, words = self._leases.resume(request.lease), ""
            case TrainingNote():
                number, words = self._leases.note(request), ""
        if number is None:
            return LeaseReport(lease=None, reason=words)
        self._wish.make()
        if self._is_idle:
            self._go_on_with_leases(idle=True)
        lease = self._leases.state(number)
        return LeaseReport(lease=lease, reason=words or lease.reason)

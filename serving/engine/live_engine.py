"""A running engine below vLLM: the live machine with its clock, its energy and its experts.

One call is one step: the chips compute it, the cost model times it, the clock holds it until then.
Between steps it answers the control service.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ConfigError
from emulator.fleet import Fleet
from emulator.sim.clock import Clock
from emulator.specs.batch import StepBatch
from emulator.specs.step import RankOutput, RankStep
from emulator.ultraserver.ceilings import ceilings_of
from emulator.ultraserver.machine import Machine
from emulator.ultraserver.synthetic_tokens import SyntheticTokens
from emulator.units import NS_PER_S
from serving.engine.asked_roles import AskedRoles, RoleQuestion
from serving.engine.chip_leases import ChipLeases, WarmUp
from serving.engine.deployment import Deployment
from serving.engine.engine_description import describe_engine, placement_page
from serving.engine.engine_meters import EngineMeters
from serving.engine.engine_sleep import EngineSleep
from serving.engine.engine_steps import EngineSteps
from serving.engine.engine_time import EngineTime
from serving.engine.engine_views import EngineViews
from serving.engine.expert_moves import DeployedExperts, ExpertMoves
from serving.engine.kv_moves import KvMoves
from serving.engine.lease_checks import training_hbm
from serving.engine.live_machine import LiveMachine, LiveStep
from serving.engine.live_recording import LiveRecording, RecordingQuestion
from serving.engine.model_versions import ModelVersions
from serving.engine.remote_kv.remote_kv import RemoteKv
from serving.engine.scheduler_state import SchedulerState
from serving.engine.step_batch import warm_up_step
from serving.engine.step_report import StepReport
from serving.engine.wake_request import WakeRequest
from serving.errors import LeaseRefused
from serving.wire import control_call as calls
from serving.wire.engine_status import EngineStatus
from serving.wire.machine_state import HostRatio, MachineState
from serving.wire.telemetry import Telemetry


class LiveEngine:
    """Steps of one engine in emulated time.

    Invariants: every step is counted once in time and energy; the machine's health, the chips'
    processes and the ranks that take requests agree between steps.
    """

    def __init__(
        self,
        deployment: Deployment,
        machine: Machine,
        tokens: Fleet | SyntheticTokens,
        clock: Clock,
        *,
        kv_blocks: int,
        host_ratios: tuple[HostRatio, ...] = (),
        wake: WakeRequest | None = None,
        remote_kv: RemoteKv | None = None,
    ) -> None:
        """With `host_ratios`, what this host was measured to need, the clock follows the load.

        `wake` is the scheduler's; without one, steps come from elsewhere.
        """
        self._deployment = deployment
        self._kv_blocks = kv_blocks
        self._time = EngineTime(clock, follows_load=bool(host_ratios))
        self._meters = EngineMeters(machine, start_ns=self._time.start_ns)
        self._live = LiveMachine(
            machine,
            tokens,
            same_model=deployment.same_model,
            time=self._time,
            on_change=self._chips_changed,
        )
        self._experts = ExpertMoves(DeployedExperts.of(deployment), self._live)
        self._wake = wake or WakeRequest()
        self._kv = KvMoves(self._live, self._meters.ledger, remote_kv, lambda: self._versions.names)
        if remote_kv is not None:
            remote_kv.arrivals.follow(self._time, self._wake, lambda: self._heard.requests_of_ranks)
        self._recording = LiveRecording(self._time, ceilings_of(machine.cost_model))
        self._steps = EngineSteps(
            deployment,
            self._live,
            time=self._time,
            experts=self._experts,
            recording=self._recording,
            meters=self._meters,
        )
        self._versions = ModelVersions(
            deployment.weights_dir, self._live, time=self._time, ledger=self._meters.ledger
        )
        self._leases = ChipLeases(
            self._live,
            self._experts,
            self._versions,
            time=self._time,
            training_hbm=training_hbm(
                deployment.system, deployment.time_model, lnc=deployment.partition.lnc
            ),
            warm_up=self._warm_up,
            ledger=self._meters.ledger,
        )
        self._sleep = EngineSleep(self._live, self._versions, self._meters.ledger)
        self._views = EngineViews(
            deployment=deployment,
            live=self._live,
            time=self._time,
            meters=self._meters,
            experts=self._experts,
            kv=self._kv,
            steps=self._steps,
            versions=self._versions,
            leases=self._leases,
            sleep=self._sleep,
            kv_blocks=kv_blocks,
            host_ratios=host_ratios,
        )
        self._roles = AskedRoles(self._wake)
        self._follows_step, self._lease_moved = False, 0
        self._heard = SchedulerState()

    def _chips_changed(self) -> None:
        """Chips have come or gone: moves of experts that have not begun are void."""
        self._views.note_lost()
        self._experts.plan_soon()

    def begin(
        self,
        steps: Sequence[RankStep],
        bitmasks: Mapping[int, NDArray[np.int32]],
        *,
        continues: bool,
    ) -> tuple[dict[int, RankOutput], StepReport] | None:
        """Compute a step; None while its emulated end is far: see `go_on` and `EngineSteps`."""
        self._time.keep_pace(self._leases.trains)  # a job goes by the dilation it got
        self._begin_transfers(continues=continues)
        live = self._steps.begin(steps, bitmasks, self._heard.rank_states, continues=continues)
        return self._end_or_wait(live)

    def begin_work(
        self, batch: StepBatch, *, continues: bool
    ) -> tuple[dict[int, RankOutput], StepReport] | None:
        """`begin` a step of which only the work is known: it has no outputs, see `silent_ranks`."""
        self._time.keep_pace(self._leases.trains)
        live = self._steps.begin_work(batch, self._heard.rank_states, continues=continues)
        return None if live is None else self._end(live)

    def go_on(self, *, abandoned: bool = False) -> tuple[dict[int, RankOutput], StepReport] | None:
        """Go on with the step that has begun; with `abandoned` no request waits for it."""
        return self._end_or_wait(self._steps.go_on(abandoned=abandoned))

    def _end_or_wait(
        self, live: LiveStep | None
    ) -> tuple[dict[int, RankOutput], StepReport] | None:
        """End a step, if it has ended. KV between engines does not wait for one that is held."""
        if live is not None:
            return self._end(live)
        self._kv.keep_leases(self._time.now_ns)
        return None

    def _end(self, live: LiveStep) -> tuple[dict[int, RankOutput], StepReport]:
        """The step's outputs and its report, with what is due after it."""
        self._finish_faults()
        lost = {*live.lost_ranks, *self._live.take_lost_ranks()}
        self._kv.computed(self._time.computes_ns, self._time.accounted_ns, lost)
        lost_ranks = self._end_transfers(lost)
        report, energy = self.report(lost_ranks), self._meters.step_energy(live)
        self._follows_step = True
        if self._go_on_with_leases(idle=False):
            # What leases did after the step is in the same report, but not the time that it took.
            lost_ranks = self._end_transfers((*lost_ranks, *self._live.take_lost_ranks()))
            report = replace(self.report(lost_ranks), begin_s=report.begin_s, end_s=report.end_s)
        self._follows_step = False
        silent = tuple(rank for rank in live.lost_ranks if rank not in live.result.outputs)
        report = replace(self._with_news(report), energy=energy, silent_ranks=silent)
        return live.result.outputs, report

    def _begin_transfers(self, *, continues: bool) -> None:
        """Begin those of the decision just heard, with it."""
        begin_ns = self._time.accounted_ns if continues else self._time.now_ns
        self._kv.begin(self._heard.kv_transfers, begin_ns)

    def _end_transfers(
        self, lost_ranks: Collection[int], until_ns: int | None = None
    ) -> tuple[int, ...]:
        """End transfers that are over by the last step's end, or a later time; all lost ranks."""
        over_ns = self._time.accounted_ns if until_ns is None else until_ns
        return tuple(sorted({*lost_ranks, *self._kv.end(over_ns, lost_ranks)}))

    def _with_news(self, report: StepReport) -> StepReport:
        received, failed = self._kv.take_ended()
        roles = self._roles.take_changes()
        return replace(report, kv_received=received, kv_failed=failed, role_changes=roles)

    def _warm_up(self, ranks: Sequence[int]) -> WarmUp:
        """A synthetic prompt on ranks that have just come back, in a step of its own."""
        queues, continues = self._heard.rank_states, self._follows_step
        live, cost = self._steps.warm_up([*map(warm_up_step, ranks)], queues, continues=continues)
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
        self._ask_for_time()
        if self._leases.going_on == before and not self._live.owes_ranks:
            return False
        self._wake.make()  # an idle scheduler has to hear of ranks that open and close
        return True

    def _ask_for_time(self) -> None:
        """Ask for steps while something waits for emulated time, which passes without them."""
        if self._time.passes and (self._leases.waits or self._versions.is_reading):
            self._wake.wait()

    def hear(self, state: SchedulerState) -> None:
        """Take what the scheduler says of its ranks, and of requests that had to move."""
        self._heard = state
        self._steps.hold(self._versions.advance(state))
        if self._versions.wants_step:
            self._wake.make()
        self._lease_moved += self._live.credit(state.moved)
        if not self._live.owes_ranks:  # or else their requests have yet to move
            moved, self._lease_moved = self._lease_moved, 0
            self._leases.count_moved(moved)
        self._ask_for_time()
        if not state.has_tokens:
            self._go_on_with_leases(idle=self._is_idle)
            self._steps.hold(self._live.take_pause())

    def hear_meanwhile(self, state: SchedulerState) -> None:
        """Take how the scheduler stands while a step is under way."""
        self._heard = state

    def report(self, lost_ranks: tuple[int, ...] = ()) -> StepReport:
        """The end of the last step, for the scheduler and the metrics."""
        ranks_up = tuple(self._live.machine.ranks_up.tolist())
        draining = np.flatnonzero(~self._leases.ranks_open).tolist()
        self._views.note_lost()
        return self._time.report(
            lost_ranks=lost_ranks,
            ranks_up=ranks_up,
            closed_ranks=tuple(sorted({*self._versions.closed_ranks, *draining})),
            renewed_ranks=self._versions.renewed_ranks,
            weights=self._versions.names,
        )

    def status(self) -> EngineStatus:
        """The clock at the end of the last step, and the ranks that take requests."""
        return self._time.status(int(self._live.machine.ranks_up.sum()))

    def idle_report(self, *, continues: bool = False) -> StepReport:
        """The same after a step without tokens, with ranks that have come or gone meanwhile.

        Where only time is waited for, a moment of it passes here. With KV on its way the next step
        begins when the first of it is there.
        """
        self._begin_transfers(continues=continues)
        there_ns = self._kv.next_ns
        if there_ns is not None:
            self._steps.hold_until(there_ns)
        elif (remote := self._kv.remote) is not None:
            remote.rest()
            if not self._time.passes:
                self._steps.hold_until(remote.end_leases_by_wall())
        elif self._wake.waits and not self._wake.wanted:
            self._time.rest()
        lost_ranks = self._end_transfers(self._live.take_lost_ranks(), there_ns)
        return self._with_news(self.report(lost_ranks))

    def telemetry(self) -> Telemetry:
        """All totals at this moment."""
        return self._views.telemetry(self._heard)

    def state(self) -> MachineState:
        """The whole machine at this moment."""
        return self._views.state(self._heard)

    def _state_reply(self, _: calls.StateRequest) -> calls.StateReply:
        return calls.StateReply(state=self.state())

    def _watched(self, _: calls.WatchRequest) -> calls.WatchReply:
        """What changes all the time, without the rest of the machine."""
        return calls.WatchReply(
            emulated_s=self._time.now_s,
            dilation=self._time.dilation,
            arrived_requests=self._heard.arrived_requests,
            running=sum(queue.running for queue in self._heard.rank_states),
            waiting=self._heard.waiting,
            leases=self._leases.states,
            versions=self._versions.states(),
        )

    def _clock(self, _: calls.ClockRequest) -> calls.ClockState:
        return calls.ClockState(
            emulated_s=self._time.now_s, dilation=self._time.dilation, unix_s=time.time()
        )

    def _described(self, _: calls.DescribeRequest) -> calls.DescribeReply:
        described = describe_engine(
            self._deployment, dilation=self._time.dilation, kv_blocks=self._kv_blocks
        )
        return calls.DescribeReply(description=described)

    def _placement(self, request: calls.PlacementRequest) -> calls.PlacementReply:
        """Raises ConfigError for a layer that there is not."""
        return calls.PlacementReply(page=placement_page(self._live.machine, request.first_layer))

    def _power(self, _: calls.PowerRequest) -> calls.PowerReply:
        return calls.PowerReply(report=self._views.snapshot(self._heard).power)

    def _expert_load(self, _: calls.ExpertLoadRequest) -> calls.ExpertLoadReply:
        return calls.ExpertLoadReply(load=self._experts.load)

    def _telemetry_reply(self, request: calls.TelemetryRequest) -> calls.TelemetryReply:
        faults, after = self._live.faults, request.events_after
        return calls.TelemetryReply(
            telemetry=self.telemetry(),
            fault_event_number=faults.event_number,
            fault_events=() if after is None else faults.events_after(after),
            leases=self._leases.states,
            versions=self._versions.states(),
            sleep=self._sleep.state(),
        )

    def _snapshot(self, _: calls.SnapshotRequest) -> calls.SnapshotReply:
        return calls.SnapshotReply(snapshot=self._views.snapshot(self._heard))

    @property
    def _is_idle(self) -> bool:
        """Whether no request was left when the scheduler last spoke, and no step is under way."""
        return not self._heard.has_requests and not self._steps.under_way

    def control(self, request: str) -> str:
        """Answer the control service: JSON in, JSON out; a refusal is an answer too."""
        with self._time.one_moment(continues=self._wake.continues):
            return self._answer(request)

    def _answer(self, request: str) -> str:
        try:
            self._finish_faults()
            self._go_on_between_steps()
            asked = calls.request_from_json(request)
            return calls.to_json(self._sleep.refusal(asked) or _ANSWERS[type(asked)](self, asked))
        except ConfigError as error:
            return calls.to_json(
                calls.Refusal(code=calls.RefusalCode.INVALID, message=str(error), field=error.field)
            )
        except LeaseRefused as error:
            return calls.to_json(
                calls.Refusal(code=calls.RefusalCode.PRECONDITION, message=str(error))
            )
        finally:
            # A fault or a repair may have called chips back, also where the call is refused.
            self._leases.meet_recalls()
            # What this took begins now: an idle engine may be through with it before its next step.
            self._steps.hold(self._live.take_pause())
            self._finish_faults()

    def _go_on_between_steps(self) -> None:
        """Do what is due where no step comes in which it could be done."""
        self._live.look_after_processes()
        if self._steps.under_way:
            return
        silence = self._live.silence
        if self._is_idle and (silence is None or silence.until_ns <= self._time.now_ns):
            self._live.settle_pending()
        if self._is_idle or self._wake.paused:
            self._go_on_with_leases(idle=self._is_idle)

    def _finish_faults(self) -> None:
        """Faults whose recovery is over are, also where no step shows it."""
        is_over = not self._time.passes or self._steps.held_until_ns <= self._time.now_ns
        if is_over and not self._steps.under_way:
            self._live.faults.finish(emulated_s=self._time.now_s)

    def sleep(self, level: int) -> None:
        """Give up HBM as vLLM's sleep does; raises ConfigError when it cannot be now."""
        self._steps.hold(self._sleep.fall_asleep(level, self._leases.going_on))

    def wake_up(self, tags: Sequence[str] | None) -> None:
        """Bring back into HBM what `tags` name, or everything."""
        self._steps.hold(self._sleep.wake(tags))

    def discard(self, tags: Sequence[str]) -> None:
        """Give up the KV cache alone."""
        self._sleep.discard(tags)

    def _publish(self, request: calls.PublishRequest) -> calls.ControlReply:
        if self._deployment.settings.engine == "fast":
            words = "the fast engine serves one version of the weights; --engine default has more"
            return calls.Refusal(code=calls.RefusalCode.PRECONDITION, message=words)
        self._wake.make()  # an idle scheduler has to hear of blocks that close
        return self._versions.publish(request.weights_dir, request.note)

    def _roll_back(self, _: calls.RollbackRequest) -> calls.ControlReply:
        self._wake.make()
        return self._versions.roll_back()

    def _record(self, request: RecordingQuestion) -> calls.ControlReply:
        return self._recording.answer(request)

    def _inject(self, request: calls.InjectRequest) -> calls.FaultReport:
        """Let a fault happen; raises ConfigError for one that cannot."""
        stall_ns = self._live.stall_ns(request.fault)
        number, recovery = self._live.inject(request.fault, dry_run=request.dry_run)
        self._views.note_lost()
        # Where time passes, the next look at an idle engine goes on with it: chips that start take
        # seconds, and whoever asked for the fault need not wait for them.
        at_once = self._live.silence is None and not self._live.has_processes
        if number is not None and self._is_idle and (at_once or not self._time.passes):
            self._live.settle_pending()
        stall_s = stall_ns / NS_PER_S
        return calls.FaultReport(
            accepted=number is not None,
            survivable=recovery.survivable,
            reason=recovery.reason,
            number=number,
            stall_s=stall_s,
            stall_wall_s=stall_s * self._time.dilation,
        )

    def _heal(self, request: calls.HealRequest) -> calls.HealReport:
        """Repair, and do not wait any more for chips that answer again."""
        left_ns = self._live.silence_left_ns()
        healed = self._live.heal(request.chip, request.rack)
        if self._live.silence is None:
            self._steps.silence_over(max(0, left_ns - self._live.silence_left_ns()))
        self._experts.bring_home()
        return calls.HealReport(healed=healed)

    def _rank_roles(self, request: RoleQuestion) -> calls.RolesReport:
        return self._roles.answer(request, self._heard.rank_roles)

    def _drain(self, request: calls.DrainRequest) -> calls.LeaseReport:
        """Raises ConfigError and LeaseRefused, here and in the next two."""
        if self._live.silence is None:  # or else it is met when the chip is given up
            self._live.settle_pending()
        return self._lease_report(*self._leases.drain(request, self._heard.rank_states))

    def _resume(self, request: calls.ResumeRequest) -> calls.LeaseReport:
        return self._lease_report(self._leases.resume(request.lease))

    def _note(self, request: calls.TrainingNote) -> calls.LeaseReport:
        return self._lease_report(self._leases.note(request))

    def _lease_report(self, number: int | None, words: str = "") -> calls.LeaseReport:
        """A lease that changes, of which an idle engine does at once what can be done."""
        if number is None:
            return calls.LeaseReport(lease=None, reason=words)
        self._wake.make()
        if self._is_idle:
            self._go_on_with_leases(idle=True)
        lease = self._leases.state(number)
        return calls.LeaseReport(lease=lease, reason=words or lease.reason)


_ANSWERS: Final[
    Mapping[type[calls.ControlRequest], Callable[[LiveEngine, Any], calls.ControlReply]]
] = {
    calls.StateRequest: LiveEngine._state_reply,
    calls.WatchRequest: LiveEngine._watched,
    calls.ClockRequest: LiveEngine._clock,
    calls.DescribeRequest: LiveEngine._described,
    calls.PlacementRequest: LiveEngine._placement,
    calls.PowerRequest: LiveEngine._power,
    calls.SnapshotRequest: LiveEngine._snapshot,
    calls.ExpertLoadRequest: LiveEngine._expert_load,
    calls.TelemetryRequest: LiveEngine._telemetry_reply,
    calls.InjectRequest: LiveEngine._inject,
    calls.HealRequest: LiveEngine._heal,
    calls.RolesRequest: LiveEngine._rank_roles,
    calls.SetRoleRequest: LiveEngine._rank_roles,
    calls.PublishRequest: LiveEngine._publish,
    calls.RollbackRequest: LiveEngine._roll_back,
    calls.DrainRequest: LiveEngine._drain,
    calls.ResumeRequest: LiveEngine._resume,
    calls.TrainingNote: LiveEngine._note,
    calls.RecordRequest: LiveEngine._record,
    calls.RecordingRequest: LiveEngine._record,
    calls.StepsRequest: LiveEngine._record,
    calls.WhatIfRequest: LiveEngine._record,
}
"""What answers each request of the control service."""

"""A running engine below vLLM: the live machine with its clock, its energy and its experts.

One call is one step: the chips compute it, the cost model times it, the clock holds it until then.
Between steps it answers the control service.
"""

import time
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ConfigError
from emulator.fleet import Fleet, MadeUpTokens
from emulator.model import Machine, StepCost, ceilings_of
from emulator.sim.clock import Clock
from emulator.specs.step import RankOutput, RankStep
from serving.metrics.control_call import (
    ControlReply,
    ControlRequest,
    FaultReport,
    HealReport,
    HealRequest,
    InjectRequest,
    RecordingRequest,
    RecordRequest,
    Refusal,
    RefusalCode,
    ReliefRequest,
    StateReply,
    StateRequest,
    StepsRequest,
    request_from_json,
    to_json,
)
from serving.metrics.machine_state import MachineState
from serving.plugin.deployment import Deployment
from serving.plugin.engine_time import EngineTime, MachineTotals
from serving.plugin.expert_moves import ExpertMoves
from serving.plugin.live_machine import LiveMachine
from serving.plugin.live_recording import LiveRecording
from serving.plugin.machine_report import machine_state
from serving.plugin.merge import LockstepOutput
from serving.plugin.step_report import StepReport
from serving.plugin.translate import step_batch


def start_tokens(
    deployment: Deployment, machine: Machine, *, kv_blocks: int, block_tokens: int
) -> Fleet | MadeUpTokens:
    """Start what makes the tokens: the chips, or for `--weights none` nothing but a generator."""
    if not deployment.settings.computes:
        return MadeUpTokens(deployment.weights_dir, deployment.partition.ranks)
    placement = deployment.placement_of(deployment.weights)
    # A chip keeps room for what may come to it: as much as its HBM has, or, for a stand-in, all.
    slots_max = (
        int(machine.capacity().max()) if deployment.same_model else deployment.weights.experts
    )
    fleet = Fleet(
        weights_dir=deployment.weights_dir,
        placement=placement,
        tp=deployment.partition.tp,
        kv_blocks=kv_blocks,
        block_tokens=block_tokens,
        slots_max=slots_max,
        ray_address=deployment.settings.ray_address,
    )
    fleet.start()
    return fleet


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
    ) -> None:
        self._deployment = deployment
        self._kv_blocks = kv_blocks
        self._time = EngineTime(clock, machine.cost_model)
        self._live = LiveMachine(
            machine,
            tokens,
            same_model=deployment.same_model,
            now_s=lambda: self._time.now_s,
            on_change=self._chips_changed,
        )
        self._experts = ExpertMoves(deployment, self._live)
        self._recording = LiveRecording(lambda: self._time.now_ns, ceilings_of(machine.cost_model))
        self._last_cost: StepCost | None = None
        self._held_until_ns = 0
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
        begin_ns = self._time.begin_ns(continues=continues)
        started = time.perf_counter()
        live = self._live.step(steps, bitmasks)
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
        self._time.finish(begin_ns, cost, pause_ns=pause_ns, compute_wall_s=compute_wall_s)
        return outputs, self.report(live.lost_ranks)

    def hear(self, output: LockstepOutput) -> None:
        """Take what the scheduler says of its ranks, and of requests that had to move."""
        self._heard = output
        if self._live.owes_ranks:  # their requests have yet to move
            return
        before, self._counted = self._counted, output
        moved = output.moved_requests - before.moved_requests
        failed = output.failed_requests - before.failed_requests
        self._live.faults.count_requests(moved=moved, failed=failed)

    def report(self, lost_ranks: tuple[int, ...] = ()) -> StepReport:
        """The end of the last step, for the scheduler and the metrics."""
        ranks_up = tuple(self._live.machine.ranks_up.tolist())
        return self._time.report(self._totals(), lost_ranks=lost_ranks, ranks_up=ranks_up)

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
        )

    def state(self) -> MachineState:
        """The whole machine between two steps."""
        return machine_state(
            self._deployment,
            self._live,
            self._time.snapshot(self._totals()),
            self._experts.balance,
            last_cost=self._last_cost,
            queues=self._heard.rank_states,
            kv_blocks=self._kv_blocks,
        )

    @property
    def _is_idle(self) -> bool:
        """Whether no request was left when the scheduler last spoke."""
        return not any(queue.running or queue.waiting for queue in self._heard.rank_states)

    def control(self, request: str) -> str:
        """Answer the control service: JSON in, JSON out; a refusal is an answer too."""
        try:
            return to_json(self._answer(request_from_json(request)))
        except ConfigError as error:
            return to_json(Refusal(code=RefusalCode.INVALID, message=str(error)))
        finally:
            # What this took begins now: an idle engine may be through with it before its next step.
            taken_ns = self._live.take_pause()
            if taken_ns:
                self._held_until_ns = max(self._held_until_ns, self._time.now_ns) + taken_ns

    def _answer(self, request: ControlRequest) -> ControlReply:
        match request:
            case StateRequest():
                return StateReply(state=self.state())
            case InjectRequest():
                number, recovery = self._live.inject(request.fault, dry_run=request.dry_run)
                if self._is_idle:
                    self._live.settle_pending()
                return FaultReport(
                    accepted=number is not None,
                    survivable=recovery.survivable,
                    reason=recovery.reason,
                    number=number,
                )
            case HealRequest():
                healed = self._live.heal(request.chip, request.rack)
                self._experts.bring_home()
                return HealReport(healed=healed)
            case RecordRequest() | RecordingRequest() | StepsRequest() | ReliefRequest():
                return self._recording.answer(request)

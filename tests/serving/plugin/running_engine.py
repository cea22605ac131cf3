"""A live engine in this process, under a virtual clock, with the control service's calls."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from emulator.sim.clock import Clock, VirtualClock
from emulator.specs.fault import Fault, FaultKind
from emulator.specs.sampling import SamplingSpec
from emulator.specs.step import NewRequest, RankOutput, RankStep, Scheduled
from serving.engine.live_engine import LiveEngine
from serving.engine.scheduler_state import SchedulerState
from serving.engine.step_report import StepReport
from serving.engine.wake_request import WakeRequest
from serving.wire.control_call import (
    ControlReply,
    ControlRequest,
    FaultReport,
    InjectRequest,
    StateReply,
    StateRequest,
    reply_from_json,
    to_json,
)
from serving.wire.machine_state import MachineState
from serving.wire.telemetry import Telemetry
from tests.serving.plugin.live_parts import KV_BLOCKS, LiveParts, live_parts


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownReport(StepReport):
    """A step's report, with the engine's totals at that time."""

    snapshot: Telemetry


def shown(engine: LiveEngine, report: StepReport) -> ShownReport:
    named = {each.name: getattr(report, each.name) for each in fields(report)}
    return ShownReport(**named, snapshot=engine.telemetry())


class Running:
    def __init__(self, clock: Clock | None = None, **settings: Any) -> None:
        self.parts: LiveParts = live_parts(**settings)
        self.wake = WakeRequest()
        self.engine = LiveEngine(
            self.parts.deployment,
            self.parts.machine,
            self.parts.tokens,
            clock or VirtualClock(),
            kv_blocks=KV_BLOCKS,
            wake=self.wake,
        )
        self._count = 0

    def step(self, *ranks: int) -> ShownReport:
        """One prompt on each of `ranks`, which ends with the step."""
        self._count += 1
        steps = [prompt_step(rank, f"{self._count}-{rank}") for rank in ranks]
        return shown(self.engine, self.run(steps)[1])

    def run(self, steps: Sequence[RankStep]) -> tuple[dict[int, RankOutput], StepReport]:
        """Compute a step and wait for its emulated end."""
        done = self.engine.begin(steps, {}, continues=True)
        while done is None:
            done = self.engine.go_on()
        return done

    def ask(self, request: ControlRequest) -> ControlReply:
        return reply_from_json(self.engine.control(to_json(request)))

    def state(self) -> MachineState:
        reply = self.ask(StateRequest())
        assert isinstance(reply, StateReply)
        return reply.state

    def inject(self, fault: Fault) -> FaultReport:
        reply = self.ask(InjectRequest(fault=fault))
        assert isinstance(reply, FaultReport)
        return reply


def prompt_step(rank: int, name: str) -> RankStep:
    return RankStep(
        rank=rank,
        new=[
            NewRequest(
                request_id=name,
                token_ids=list(range(300, 310)),
                prompt_tokens=10,
                sampling=SamplingSpec(temperature=0.0),
                block_ids=[1],
            )
        ],
        scheduled=[Scheduled(request_id=name, first_position=0, new_tokens=10)],
        finished=[],
    )


def lose(chip: int) -> Fault:
    return Fault(kind=FaultKind.LOSE_CHIP, chip=chip)


def heard(**counts: Any) -> SchedulerState:
    return SchedulerState(**counts)

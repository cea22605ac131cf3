"""A running engine's recording of steps, and what the control service asks about it.

There is one at a time. Who begins one replaces the one before, so that a client which has gone
keeps nobody out; each has a number, so that nobody is handed another's steps.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ConfigError
from emulator.specs.batch import StepBatch
from emulator.specs.expert_loads import ExpertLoads
from emulator.ultraserver.ceilings import Ceilings
from emulator.ultraserver.machine import StepCosting
from emulator.ultraserver.step_cost import StepCost
from serving.engine.step_recording import STEPS_DEFAULT, StepRecording
from serving.wire.control_call import (
    ControlReply,
    RecordingRequest,
    RecordingState,
    RecordRequest,
    ReliefReply,
    ReliefRequest,
    StepsReply,
    StepsRequest,
)
from serving.wire.step_record import Queues

RecordingQuestion = RecordRequest | RecordingRequest | StepsRequest | ReliefRequest


class LiveRecording:
    """Takes every step; keeps those of the recording that is on. `now_ns` is the emulated time."""

    def __init__(self, now_ns: Callable[[], int], ceilings: Ceilings) -> None:
        self._now_ns = now_ns
        self._ceilings = ceilings
        self._recording: StepRecording | None = None
        self._begun = 0
        self._begin_ns = 0
        self._end_ns: int | None = None

    def add(
        self,
        cost: StepCost,
        batch: StepBatch,
        *,
        costing: StepCosting,
        loads: ExpertLoads | None,
        begin_ns: int,
        pause_ns: int,
        chips: NDArray[np.int64],
        queues: Sequence[Queues],
    ) -> None:
        """Keep a step if a recording is on; see `StepRecording.add`."""
        if self._recording is None or not self._recording.on:
            return
        self._recording.add(
            cost,
            batch,
            costing=costing,
            loads=loads,
            begin_ns=begin_ns,
            pause_ns=pause_ns,
            chips=chips,
            queues=queues,
        )

    def answer(self, request: RecordingQuestion) -> ControlReply:
        """Answer the control service; raises ConfigError for a recording that is not there."""
        match request:
            case RecordRequest(ends=None):
                self._begin(STEPS_DEFAULT if request.steps_max is None else request.steps_max)
                return self._state(self._begun)
            case RecordRequest(ends=number):
                assert number is not None
                recording = self._of(number)
                if recording.on:
                    recording.on = False
                    self._end_ns = self._now_ns()
                return self._state(number)
            case RecordingRequest():
                return self._state(request.recording)
            case StepsRequest():
                page = self._of(request.recording).page(request.first_step)
                return StepsReply(page=page)
            case ReliefRequest():
                relief = self._of(request.recording).relief(request.sample, request.factor)
                return ReliefReply(relief=relief)

    def _begin(self, steps_max: int) -> None:
        self._recording = StepRecording(self._begun + 1, steps_max)
        self._begun += 1
        self._begin_ns, self._end_ns = self._now_ns(), None

    def _of(self, number: int) -> StepRecording:
        recording = self._recording
        if recording is None or recording.number != number:
            expected = "a recording that has begun"
            if recording is not None:
                expected = f"{recording.number}, which has replaced those before it"
            raise ConfigError(field="recording", value=number, expected=expected)
        return recording

    def _state(self, number: int) -> RecordingState:
        recording = self._of(number)
        return RecordingState(
            recording=number,
            on=recording.on,
            steps=recording.count,
            dropped=recording.dropped,
            samples=recording.samples,
            begin_ns=self._begin_ns,
            now_ns=self._now_ns() if self._end_ns is None else self._end_ns,
            ceilings=self._ceilings,
        )

"""A running engine's recording of steps, and what the control service asks about it.

There is one at a time. Who begins one replaces the one before, so that a client which has gone
keeps nobody out; each has a number, so that nobody is handed another's steps.
"""

from emulator.errors import ConfigError
from emulator.ultraserver.ceilings import Ceilings
from serving.engine.engine_time import EngineTime
from serving.engine.step_recording import STEPS_DEFAULT, StepRecording
from serving.wire import control_call as calls

RecordingQuestion = (
    calls.RecordRequest | calls.RecordingRequest | calls.StepsRequest | calls.WhatIfRequest
)


class LiveRecording:
    """`current` is the newest recording, which takes every step while it is on."""

    def __init__(self, time: EngineTime, ceilings: Ceilings) -> None:
        self._time = time
        self._ceilings = ceilings
        self.current: StepRecording | None = None
        self._begun = 0
        self._begin_ns = 0
        self._end_ns: int | None = None

    def answer(self, request: RecordingQuestion) -> calls.ControlReply:
        """Answer the control service; raises ConfigError for a recording that is not there."""
        match request:
            case calls.RecordRequest(ends=None):
                self._begin(STEPS_DEFAULT if request.steps_max is None else request.steps_max)
                return self._state(self._begun)
            case calls.RecordRequest(ends=number):
                assert number is not None
                recording = self._of(number)
                if recording.on:
                    recording.on = False
                    self._end_ns = self._time.now_ns
                return self._state(number)
            case calls.RecordingRequest():
                return self._state(request.recording)
            case calls.StepsRequest():
                page = self._of(request.recording).page(request.first_step)
                return calls.StepsReply(page=page)
            case calls.WhatIfRequest():
                what_if = self._of(request.recording).what_if(request.sample, request.factor)
                return calls.WhatIfReply(what_if=what_if)

    def _begin(self, steps_max: int) -> None:
        self.current = StepRecording(self._begun + 1, steps_max)
        self._begun += 1
        self._begin_ns, self._end_ns = self._time.now_ns, None

    def _of(self, number: int) -> StepRecording:
        recording = self.current
        if recording is None or recording.number != number:
            expected = "a recording that has begun"
            if recording is not None:
                expected = f"{recording.number}, which has replaced those before it"
            raise ConfigError("recording", number, expected)
        return recording

    def _state(self, number: int) -> calls.RecordingState:
        recording = self._of(number)
        return calls.RecordingState(
            recording=number,
            on=recording.on,
            steps=recording.count,
            dropped=recording.dropped,
            samples=recording.samples,
            begin_ns=self._begin_ns,
            now_ns=self._time.now_ns if self._end_ns is None else self._end_ns,
            ceilings=self._ceilings,
        )

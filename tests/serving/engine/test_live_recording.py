"""A running engine records its steps, between which it says what it has."""

import pytest

from emulator.specs.fault import Fault, FaultKind
from serving.engine.scheduler_state import RankQueues
from serving.wire.control_call import (
    RecordingRequest,
    RecordingState,
    RecordRequest,
    Refusal,
    StepsReply,
    StepsRequest,
    WhatIfReply,
    WhatIfRequest,
)
from serving.wire.step_record import StepPhase, StepRecord
from tests.serving.plugin.running_engine import Running, heard

pytestmark = pytest.mark.long


def recording(running: Running, request: RecordRequest | RecordingRequest) -> RecordingState:
    reply = running.ask(request)
    assert isinstance(reply, RecordingState)
    return reply


def steps_of(running: Running, number: int) -> tuple[StepRecord, ...]:
    reply = running.ask(StepsRequest(recording=number, first_step=0))
    assert isinstance(reply, StepsReply)
    return reply.page.steps


def test_steps_are_recorded_from_the_begin_to_the_end_and_not_else() -> None:
    running = Running(model="qwen3-30b-a3b")
    running.step(0)
    begun = recording(running, RecordRequest())
    reports = [running.step(0, 1), running.step(2)]
    ended = recording(running, RecordRequest(ends=begun.recording))
    running.step(3)

    assert (begun.on, begun.steps, ended.on, ended.steps) == (True, 0, False, 2)
    steps = steps_of(running, begun.recording)
    assert [step.prefill_tokens for step in steps] == [(10, 10, 0, 0), (0, 0, 10, 0)]
    assert {step.phase for step in steps} == {StepPhase.PREFILL}
    times = [(step.begin_ns / 1e9, step.end_ns / 1e9) for step in steps]
    assert times == [
        (pytest.approx(report.begin_s), pytest.approx(report.end_s)) for report in reports
    ]
    assert recording(running, RecordingRequest(recording=1)).now_ns == ended.now_ns
    assert steps[-1].end_ns == ended.now_ns
    assert steps[0].chips == (0, 1, 2, 3)


def test_what_the_ranks_said_when_the_step_was_decided_is_in_its_record() -> None:
    running = Running()
    number = recording(running, RecordRequest()).recording
    queues = tuple(
        RankQueues(running=rank, waiting=10 * rank, kv_blocks_used=100 * rank) for rank in range(4)
    )
    running.engine.hear(heard(rank_states=queues))
    running.step(0)

    (step,) = steps_of(running, number)
    assert step.requests_running == (0, 1, 2, 3)
    assert step.requests_waiting == (0, 10, 20, 30)
    assert step.kv_blocks_used == (0, 100, 200, 300)


def test_a_recovery_is_a_pause_before_the_step_and_a_spare_takes_the_seat() -> None:
    running = Running(spares=1)
    number = recording(running, RecordRequest()).recording
    whole = running.step(0, 1, 2, 3)
    running.inject(Fault(kind=FaultKind.HANG_CHIP, chip=1))
    running.step(0, 1, 2, 3)
    running.step(0, 1, 2, 3)

    first, met, after = steps_of(running, number)
    assert (first.pause_ns, after.pause_ns) == (0, 0)
    assert first.end_ns == round(whole.end_s * 1e9)
    (record,) = running.state().faults
    assert record.recovery is not None
    assert met.pause_ns >= record.recovery.emulated_ns
    assert met.begin_ns == first.end_ns + met.pause_ns
    assert after.begin_ns == met.end_ns
    assert after.chips == (0, 4, 2, 3)


@pytest.mark.parametrize("settings", [{}, {"model": "qwen3-30b-a3b", "tp": 2}])
def test_a_sampled_step_costs_again_what_it_cost(settings: dict[str, object]) -> None:
    running = Running(**settings)
    number = recording(running, RecordRequest()).recording
    running.step(0, 1)
    running.step(1)

    durations = {step.step: step.duration_ns for step in steps_of(running, number)}
    for sample in range(2):
        reply = running.ask(WhatIfRequest(recording=number, sample=sample, factor=2.0))
        assert isinstance(reply, WhatIfReply)
        assert reply.what_if.duration_ns == durations[reply.what_if.step]
        assert 0 < min(reply.what_if.what_if_ns.values()) < reply.what_if.duration_ns


def test_a_ring_of_two_keeps_the_last_two_and_counts_what_it_dropped() -> None:
    running = Running()
    number = recording(running, RecordRequest(steps_max=2)).recording
    for rank in (0, 1, 2):
        running.step(rank)

    state = recording(running, RecordingRequest(recording=number))
    assert (state.steps, state.dropped, state.samples) == (3, 1, 3)
    assert [step.step for step in steps_of(running, number)] == [1, 2]


def test_questions_about_no_recording_or_another_s_are_refused() -> None:
    running = Running()
    assert isinstance(running.ask(StepsRequest(recording=1, first_step=0)), Refusal)
    recording(running, RecordRequest())
    recording(running, RecordRequest())
    for request in (
        RecordRequest(ends=1),
        RecordRequest(steps_max=0),
        StepsRequest(recording=1, first_step=0),
        WhatIfRequest(recording=2, sample=0, factor=2.0),
    ):
        assert isinstance(running.ask(request), Refusal)
    assert recording(running, RecordingRequest(recording=2)).on

"""The ring of steps and the sample to cost again."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from emulator.errors import ConfigError
from emulator.specs.batch import StepBatch
from emulator.ultraserver.what_if import what_if_ns
from serving.engine import step_recording
from serving.engine.step_recording import SAMPLES_PER_PHASE, STEPS_MAX, StepRecording
from serving.wire.step_record import StepPhase
from tests.serving.telemetry.recorded_steps import DECODE, PREFILL, a_cost_model, costing, queues

COSTING = costing()
COSTS: Mapping[int, Any] = {id(work): a_cost_model().cost(work) for work in (DECODE, PREFILL)}


def recorded(*works: StepBatch, steps_max: int = 100) -> StepRecording:
    recording = StepRecording(1, steps_max)
    for number, work in enumerate(works):
        recording.add(
            COSTS[id(work)],
            work,
            costing=COSTING,
            loads=None,
            begin_ns=10**9 * number,
            pause_ns=0,
            chips=np.arange(2),
            queues=queues(),
        )
    return recording


def test_records_come_in_the_order_of_their_steps() -> None:
    records = recorded(DECODE, PREFILL, DECODE).records()

    assert [record.step for record in records] == [0, 1, 2]
    assert [record.begin_ns for record in records] == [0, 10**9, 2 * 10**9]
    assert [record.phase for record in records] == [
        StepPhase.DECODE,
        StepPhase.PREFILL,
        StepPhase.DECODE,
    ]


def test_a_full_ring_drops_its_first_steps_and_says_how_many() -> None:
    recording = recorded(*[DECODE] * 7, steps_max=3)

    assert (recording.count, len(recording), recording.dropped) == (7, 3, 4)
    assert [record.step for record in recording.records()] == [4, 5, 6]
    assert recording.page(2).steps[0].step == 4


def test_pages_are_bounded_and_together_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = recorded(*[DECODE] * 7)
    whole = recording.page(0)
    assert (len(whole.steps), whole.next_step) == (7, 7)
    # A step of two chips and ranks: six engines, watts, flops, two kinds of bytes and the chip's
    # number are 22 numbers, five for each rank are 10 more: a page is full with the second step.
    monkeypatch.setattr(step_recording, "PAGE_NUMBERS_MAX", 33)
    page = recording.page(0)
    assert ([step.step for step in page.steps], page.next_step) == ([0, 1], 2)

    assert recording.page(6).next_step == 7
    assert recording.page(7) == step_recording.StepPage(steps=(), next_step=7)
    assert recording.records() == whole.steps


def test_a_recording_that_is_over_takes_no_more_steps() -> None:
    recording = recorded(DECODE)
    recording.on = False
    recording.add(
        COSTS[id(DECODE)],
        DECODE,
        costing=COSTING,
        loads=None,
        begin_ns=10**9,
        pause_ns=0,
        chips=np.arange(2),
        queues=queues(),
    )

    assert (recording.count, recording.samples) == (1, 1)


def test_a_what_if_is_the_duration_costed_again() -> None:
    recording = recorded(DECODE, PREFILL)
    # Samples are counted through the phases in their order: prefills before decodes.
    prefill, decode = (recording.what_if(sample, 2.0) for sample in (0, 1))

    assert (prefill.phase, decode.phase) == (StepPhase.PREFILL, StepPhase.DECODE)
    assert (prefill.step, decode.step, decode.samples) == (1, 0, 2)
    assert decode.duration_ns == COSTS[id(DECODE)].duration_ns
    assert decode.what_if_ns == what_if_ns(COSTING, DECODE, factor=2.0)
    assert min(decode.what_if_ns.values()) < decode.duration_ns


def test_every_step_of_a_phase_is_sampled_as_often() -> None:
    steps, runs = 3 * SAMPLES_PER_PHASE, 60
    counts = np.zeros(steps)
    for seed in range(runs):
        recording = StepRecording(1)
        recording._rng = np.random.default_rng(seed)
        for number in range(steps):
            recording._sample(StepPhase.DECODE, number)  # type: ignore[arg-type]
        chosen = recording._sampled[StepPhase.DECODE]
        assert len(set(chosen)) == SAMPLES_PER_PHASE
        counts[chosen] += 1

    # A third of the runs has each step: 20 of 60, give or take 3.7; five sigmas hold for all 36.
    assert counts.sum() == runs * SAMPLES_PER_PHASE
    assert abs(counts - runs / 3).max() < 18.5


@pytest.mark.parametrize("steps_max", [0, -1, STEPS_MAX + 1])
def test_a_ring_of_no_size_or_any_size_is_refused(steps_max: int) -> None:
    with pytest.raises(ConfigError, match=r"^steps=-?\d+: expected 1 to 50,000$"):
        StepRecording(1, steps_max)


@pytest.mark.parametrize("sample", [-1, 2])
def test_a_sample_that_is_not_there_is_refused(sample: int) -> None:
    with pytest.raises(ConfigError, match="expected one of 2 sampled steps"):
        recorded(DECODE, PREFILL).what_if(sample, 2.0)

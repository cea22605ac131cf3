"""What is seen of thousands of running answers by looking at some of them."""

import time

import numpy as np
import pytest

from serving.admission.capacity import Capacity
from serving.admission.entry import Entry
from serving.admission.expected_wait import LOOKED_AT_MAX, Demand, ExpectedWait
from tests.serving.admission.works import work

RUNNING = 8_192
CAPACITY = Capacity(seats=RUNNING, kv_tokens=10**9, prefill_tokens_per_step=10**5)
DEMAND = Demand(
    own_tokens=100,
    own_sequences=40,
    waiting_tokens=0,
    waiting_sequences=0,
    running_sequences=RUNNING,
    sequences=RUNNING + 40,
    prompt_tokens=100,
    new_tokens_max=RUNNING * 1_000,
)


def measured(sequences: int) -> ExpectedWait:
    """Requests that came one after the other, each with as many sequences; 100 tokens a second."""
    rng = np.random.default_rng(3)
    entries = []
    for number in range(RUNNING // sequences):
        asked = work(sequences=sequences, new_tokens_max=sequences * 1_000)
        entry = Entry.of(asked, number=number, now_s=0.0)
        entry.waiting_sequences = 0
        entry.made_tokens = sequences * int(800 * (1 - number * sequences / RUNNING))
        entries.append(entry)
    expected = ExpectedWait(2.0, {entry.number: entry for entry in entries}.values)
    for tokens in rng.exponential(300, 2_000).astype(int):
        expected.ended(int(tokens) + 1, by_itself=True)
    expected.spend(1.0, running_sequences=RUNNING)
    expected.answers.add(RUNNING * 100)
    return expected


@pytest.mark.parametrize("sequences", [1, 8])
def test_a_sample_tells_what_all_would(sequences: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sampled_s = measured(sequences).wait(DEMAND, CAPACITY, 0.0).seconds
    monkeypatch.setattr("serving.admission.expected_wait.LOOKED_AT_MAX", RUNNING)
    whole_s = measured(sequences).wait(DEMAND, CAPACITY, 0.0).seconds

    assert whole_s
    assert sampled_s == pytest.approx(whole_s, rel=0.05)


def test_a_look_at_thousands_sees_some_hundreds_that_stand_for_all() -> None:
    expected = measured(1)
    answers = expected._answers(RUNNING)

    assert len(answers.weights) <= LOOKED_AT_MAX
    assert answers.weights.sum() == pytest.approx(RUNNING)

    begun_s = time.process_time()
    for moment in range(20):
        expected.wait(DEMAND, CAPACITY, float(moment))
    assert time.process_time() - begun_s < 20 * 0.010  # all of them: some 30 ms a look

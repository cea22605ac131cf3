"""Who is refused because the first token would come too late."""

from dataclasses import replace

import pytest

from serving.policy.admission.admission import Admission
from serving.policy.admission.admission_limits import AdmissionLimits
from serving.policy.admission.capacity import Capacity
from serving.policy.admission.entry import Counted, Outcome
from serving.policy.admission.refusal import RefusalReason
from serving.policy.admission.work import WorkClass
from tests.serving.policy.admission.works import CAPACITY, TIMES, refused_by, runs, work


def test_before_anything_is_measured_as_much_may_wait_as_the_cost_model_computes_in_time() -> None:
    """A step of 0.1 s takes 1,000 tokens; one is under way, and 0.9 s may be expected."""
    capacity = replace(CAPACITY, seats=100, kv_tokens=10**6)
    admission = Admission(AdmissionLimits(ttft_target_s=1.0), capacity)
    for _ in range(7):
        admission.enter(work(prompt_tokens=1_000), 0.0)
    admission.enter(work(prompt_tokens=900), 0.0)

    refused = refused_by(admission, prompt_tokens=500)

    assert refused.reason is RefusalReason.TTFT_TARGET
    assert str(refused) == (
        "the first token would take about 0.94 s: 8,400 prompt tokens with its own at 8,936 "
        "tokens/s (cost model x 1.00 measured); 1 s are promised, of which 0.9 s may be expected"
    )


def test_a_wait_beyond_the_target_is_refused_and_the_excess_is_what_to_wait() -> None:
    """A step under way and 14 more take 1.5 s, of which 0.9 s may be expected, and what waits gets
    less in steps. A second is ten on the wall.
    """
    capacity = Capacity(
        seats=100,
        kv_tokens=10**6,
        prefill_tokens_per_step=1_000,
        dilation=10.0,
        backlog_times=TIMES,
    )
    admission = Admission(AdmissionLimits(ttft_target_s=1.0), capacity)
    for _ in range(8):
        admission.enter(work(prompt_tokens=1_000), 0.0)

    refused = refused_by(admission, prompt_tokens=6_000)

    assert refused.reason is RefusalReason.TTFT_TARGET
    assert "about 1.5 s" in str(refused)
    assert refused.retry_after_s == pytest.approx(7.0)


def test_ranks_compute_prompts_side_by_side() -> None:
    capacity = replace(CAPACITY, seats=100, kv_tokens=10**6, ranks=4)
    admission = Admission(AdmissionLimits(ttft_target_s=1.0), capacity)
    for _ in range(26):
        admission.enter(work(prompt_tokens=1_000), 0.0)

    assert refused_by(admission, prompt_tokens=1_000).reason is RefusalReason.TTFT_TARGET


def test_what_the_first_prompt_has_had_of_its_time_is_not_waited_for_again() -> None:
    """Eight steps of ten are behind the first prompt after 0.8 s; it has no token yet."""
    capacity = replace(CAPACITY, seats=100, kv_tokens=10**6)
    admission = Admission(AdmissionLimits(ttft_target_s=1.0), capacity)
    admission.enter(work(prompt_tokens=8_000), 0.0)
    assert refused_by(admission, prompt_tokens=1_000)

    assert admission.enter(work(prompt_tokens=1_000), 0.4)


def test_waits_that_last_longer_than_predicted_show_before_they_are_over() -> None:
    """An engine that stands still: nobody has a first token, and nothing more is let in."""
    capacity = replace(CAPACITY, seats=100, kv_tokens=10**6)
    admission = Admission(AdmissionLimits(ttft_target_s=1.0), capacity)
    for _ in range(3):
        admission.enter(work(prompt_tokens=500), 0.0)
    admission.enter(work(prompt_tokens=500), 0.1)

    assert "those before it are 0.8 s late" in str(refused_by(admission, 1.0, prompt_tokens=500))


def test_whoever_finds_nobody_waiting_enters_whatever_was_measured() -> None:
    admission = Admission(AdmissionLimits(ttft_target_s=0.01), CAPACITY)
    runs(admission, admission.enter(work(), 0.0), 5.0)

    assert admission.enter(work(), 5.0)


def test_a_request_of_many_sequences_has_waited_when_the_last_has_its_first_token() -> None:
    """Eight prompts of 0.1 s each, one after the other, as the cost model says."""
    capacity = replace(CAPACITY, seats=100, kv_tokens=10**6)
    admission = Admission(AdmissionLimits(ttft_target_s=1.0), capacity)
    one = Counted(sequences=1, prompt_tokens=1_000, new_tokens_max=1)
    now_s = 0.0
    for _ in range(250):
        entry = admission.enter(work(prompt_tokens=8_000, new_tokens_max=8, sequences=8), now_s)
        for _ in range(8):
            admission.begin(entry, one, now_s)
        for _ in range(8):
            now_s += 0.1
            admission.first_token(entry, now_s)
        admission.leave(entry, Outcome.FINISHED, now_s)
    for _ in range(8):
        admission.enter(work(prompt_tokens=1_000), now_s)

    refused = refused_by(admission, now_s, prompt_tokens=3_000)

    assert "cost model x 0.89 measured" in str(refused)  # a step under way is foreseen as well


def test_prompts_that_another_engine_has_computed_are_not_waited_for() -> None:
    """Of each the last token is computed here; its KV is held all the same."""
    capacity = replace(CAPACITY, seats=100, kv_tokens=19_000)
    admission = Admission(AdmissionLimits(ttft_target_s=1.0), capacity)
    entries = [admission.enter(work(prompt_tokens=900, is_prefilled=True), 0.0) for _ in range(20)]
    assert admission.class_state(WorkClass.INTERACTIVE).waiting_tokens == 20
    assert "no seat is sure" in str(refused_by(admission, prompt_tokens=900, is_prefilled=True))

    for entry in entries[:10]:
        runs(admission, entry, 0.1)
        admission.check()
    assert admission.class_state(WorkClass.INTERACTIVE).waiting_tokens == 10
    for entry in entries:
        admission.leave(entry, Outcome.FINISHED, 0.2)
        admission.check()
    assert admission.class_state(WorkClass.INTERACTIVE).waiting_tokens == 0
    for _ in range(7):
        admission.enter(work(prompt_tokens=1_000), 0.3)
    assert admission.enter(work(prompt_tokens=4_000, is_prefilled=True), 0.3)
    assert refused_by(admission, 0.3, prompt_tokens=4_000)

"""What a request turns out to ask for is its key's to pay, or is refused and costs nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.policy.admission.admission import Admission
from serving.policy.admission.admission_limits import AdmissionLimits
from serving.policy.admission.entry import Counted, Outcome
from serving.policy.admission.refusal import RefusalReason, Refused
from serving.policy.admission.work import WorkClass
from tests.serving.policy.admission.works import CAPACITY, client, work

ALICE = client("alice", tokens_per_minute=1_000, concurrent=8)


def counted(sequences: int = 1, prompt_tokens: int = 10, new_tokens_max: int = 10) -> Counted:
    return Counted(sequences=sequences, prompt_tokens=prompt_tokens, new_tokens_max=new_tokens_max)


def admission() -> Admission:
    return Admission(AdmissionLimits(), CAPACITY)


def left_tokens(made: Admission) -> int | None:
    return made.rate(ALICE, 0.0).remaining_tokens


def test_within_the_estimate_nothing_more_is_charged() -> None:
    made = admission()
    entry = made.enter(work(ALICE, sequences=2, prompt_tokens=100, new_tokens_max=100), 0.0)
    assert left_tokens(made) == 800

    made.declare(entry, counted(1, 50, 50), 0.0)
    made.declare(entry, counted(1, 50, 50), 0.0)

    assert left_tokens(made) == 800


def test_beyond_it_the_excess_is_charged_and_comes_back_when_it_was_not_used() -> None:
    made = admission()
    entry = made.enter(work(ALICE, prompt_tokens=10, new_tokens_max=10), 0.0)

    made.declare(entry, counted(4, 100, 300), 0.0)
    assert left_tokens(made) == 600
    with pytest.raises(Refused) as refused:
        made.enter(work(ALICE, sequences=5, prompt_tokens=1, new_tokens_max=1), 0.0)
    assert refused.value.reason is RefusalReason.CONCURRENT

    made.leave(entry, Outcome.ABORTED, 0.0)
    assert left_tokens(made) == 1_000
    made.enter(work(ALICE, sequences=8, prompt_tokens=1, new_tokens_max=1), 0.0)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (counted(60, 10, 990), RefusalReason.CONCURRENT),
        (counted(6, 10, 6_000), RefusalReason.TOKENS_PER_MINUTE),
    ],
)
def test_what_the_key_does_not_allow_is_refused_counted_and_not_charged(
    asked: Counted, reason: RefusalReason
) -> None:
    made = admission()
    entry = made.enter(work(ALICE, prompt_tokens=10, new_tokens_max=10), 0.0)
    with pytest.raises(Refused) as refused:
        made.declare(entry, asked, 0.0)

    assert refused.value.reason is reason
    assert refused.value.retry_after_s > 0
    made.leave(entry, Outcome.REFUSED, 0.0)
    assert left_tokens(made) == 1_000
    state = made.class_state(WorkClass.INTERACTIVE)
    assert state.refused[reason] == 1
    assert state.left[Outcome.REFUSED] == 1
    made.check()


calls = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 300), st.integers(1, 300)), max_size=6)


@given(st.integers(1, 8), st.integers(2, 900), calls)
def test_no_order_of_calls_passes_a_limit(sequences: int, tokens: int, asked: list[tuple]) -> None:
    """What was let through is never more than the key has, whatever was estimated."""
    made = admission()
    first = work(ALICE, sequences=sequences, prompt_tokens=tokens // 2, new_tokens_max=tokens // 2)
    entry = made.enter(first, 0.0)
    through_tokens = through_sequences = 0
    for sequences_asked, prompt_tokens, new_tokens in asked:
        try:
            made.declare(entry, counted(sequences_asked, prompt_tokens, new_tokens), 0.0)
        except Refused:
            break
        through_tokens += prompt_tokens + new_tokens
        through_sequences += sequences_asked
    assert through_tokens <= 1_000
    assert through_sequences <= 8
    made.leave(entry, Outcome.FINISHED, 0.0)
    assert left_tokens(made) == 1_000
    made.check()


def test_a_request_across_a_change_of_its_key_s_limits_leaves_the_new_minute_as_it_is() -> None:
    """What it asks for beyond its estimate is refused by, and charged to, the limits of now."""
    made = admission()
    entry = made.enter(work(ALICE, prompt_tokens=10, new_tokens_max=10), 0.0)
    now = client("alice", tokens_per_minute=500, concurrent=8)
    made.enter(work(now, prompt_tokens=200, new_tokens_max=200), 0.0)

    with pytest.raises(Refused) as refused:
        made.declare(entry, counted(1, 10, 900), 0.0)

    assert refused.value.rate.limit_tokens == 500
    assert refused.value.rate.remaining_tokens == 100
    assert made.rate(now, 0.0).remaining_tokens == 100
    made.check()

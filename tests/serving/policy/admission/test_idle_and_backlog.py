"""What holds of every wait that is predicted, whatever engine and backlog."""

from dataclasses import replace

from hypothesis import assume, example, given
from hypothesis import strategies as st

from serving.policy.admission.admission import Admission
from serving.policy.admission.admission_limits import AdmissionLimits
from serving.policy.admission.admission_state import AdmissionState
from serving.policy.admission.capacity import BacklogTimes, Capacity
from serving.policy.admission.refusal import Refused
from tests.serving.policy.admission.works import work

TARGET_S = 1.0

engines = st.builds(
    Capacity,
    seats=st.integers(1, 512),
    kv_tokens=st.just(10**8),
    prefill_tokens_per_step=st.integers(64, 8_192),
    ranks=st.integers(1, 8),
    backlog_times=st.builds(
        BacklogTimes.linear,
        step_s=st.floats(0.0, 0.05),
        token_s=st.floats(1e-6, 1e-4),
        step_tokens=st.integers(64, 8_192),
    ),
)
prompts = st.lists(st.integers(1, 4_000), max_size=40)


def waits_s(capacity: Capacity, tokens: list[int], own: int) -> float:
    """Of a prompt behind so many others."""
    inside = AdmissionState(limits=AdmissionLimits(ttft_target_s=TARGET_S), capacity=capacity)
    load = next(iter(inside.loads.values()))
    load.waiting_tokens, load.waiting_sequences = sum(tokens), len(tokens)
    load.prompt_tokens, load.sequences, load.new_tokens_max = sum(tokens), len(tokens), len(tokens)
    return inside.expected.wait(inside.demand(work(prompt_tokens=own)), capacity, 0.0).seconds


@given(engines, st.integers(1, 100_000))
def test_an_idle_server_refuses_nobody(capacity: Capacity, tokens: int) -> None:
    admission = Admission(AdmissionLimits(ttft_target_s=TARGET_S), capacity)

    assert admission.enter(work(prompt_tokens=tokens), 0.0)


@given(engines, prompts, st.integers(1, 4_000))
@example(
    Capacity(
        seats=3,
        kv_tokens=10**8,
        prefill_tokens_per_step=64,
        ranks=3,
        backlog_times=BacklogTimes.linear(
            step_s=0.03125, token_s=8.327339842094106e-05, step_tokens=89
        ),
    ),
    [663, 1320],
    1,
)
def test_nobody_is_refused_whose_wait_is_predicted_within_the_bound(
    capacity: Capacity, tokens: list[int], own: int
) -> None:
    assume(len(tokens) < capacity.seats)
    admission = Admission(AdmissionLimits(ttft_target_s=TARGET_S), capacity)
    longest = max(tokens, default=0)  # on one rank a prompt more than on the average may wait
    # Each that comes: the longest is behind what came before it, as the last one is.
    rank_tokens = sum(tokens) / capacity.ranks + longest + max(own, longest)
    curve = capacity.backlog_times.beside(decodes=1.0, context_tokens=0.0, prompt_tokens=0.0)
    assume(curve.wait_s(rank_tokens) <= 0.9 * TARGET_S)
    for each in tokens:
        admission.enter(work(prompt_tokens=each), 0.0)

    assert admission.enter(work(prompt_tokens=own), 0.0)


@given(engines, prompts, st.integers(1, 4_000), st.integers(1, 4_000))
def test_more_before_it_is_never_a_shorter_wait(
    capacity: Capacity, tokens: list[int], own: int, more: int
) -> None:
    assume(more * len(tokens) >= sum(tokens))  # ranks are uneven by a prompt of the mean length
    roomy = replace(capacity, seats=512)

    assert waits_s(roomy, [*tokens, more], own) >= waits_s(roomy, tokens, own) - 1e-9


@given(engines, prompts)
def test_with_free_seats_a_refusal_says_when_to_come_back(
    capacity: Capacity, tokens: list[int]
) -> None:
    """And what the bound was, and what of the wait is due to prompts; never `no seat`."""
    admission = Admission(AdmissionLimits(ttft_target_s=TARGET_S), replace(capacity, seats=512))
    refusals: list[Refused] = []
    for each in tokens:
        try:
            admission.enter(work(prompt_tokens=each), 0.0)
        except Refused as refused:
            refusals.append(refused)

    for refused in refusals:
        assert "prompt tokens with its own at" in str(refused)
        assert "of which 0.9 s may be expected" in str(refused)
        assert 0.0 < refused.retry_after_s < 1e4

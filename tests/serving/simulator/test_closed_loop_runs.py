"""A closed loop with steps of given times: by hand, and laws that hold whatever the times."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.simulator.closed_loop import LoopRun, TimedPool, run_loop
from serving.simulator.closed_loop_kernel import ClientTimes, StackRules, StepTable

MS = 1_000_000
USUAL = StackRules(take_steps=0, together_steps=0, prompts_first=False, ahead=False)


def table() -> StepTable:
    """A prompt of 100 tokens takes 5 ms, two 8 ms; decoding 1 takes 2 ms, and 9 take 4 ms."""
    return StepTable(
        batches=np.array([1.0, 9.0]),
        decode_ns=np.array([2.0, 4.0]) * MS,
        prompt_tokens=100.0,
        full_prompts=2.0,
        solo_ns=5.0 * MS,
        full_ns=8.0 * MS,
        solo_added_ns=5.0 * MS,
        full_added_ns=8.0 * MS,
    )


def pool(**other: object) -> TimedPool:
    usual = {
        "engines": 1,
        "ranks": 1,
        "seats": 64,
        "step_tokens": 200,
        "kv_blocks": 10_000,
        "block_tokens": 16,
        "acceptance": (),
        "table": table(),
        "rules": USUAL,
    }
    return TimedPool(**(usual | other))  # type: ignore[arg-type]


def run(
    own: TimedPool, prefill: TimedPool | None = None, *, users: int, requests: int, output: int = 4
) -> LoopRun:
    times = ClientTimes(users=users, request_ns=10 * MS, token_ns=MS, transfer_ns=3 * MS)
    return run_loop(
        own,
        prefill,
        times,
        prompt_tokens=np.full(requests, 100),
        output_tokens=np.full(requests, output),
    )


def test_one_user_has_a_prompt_and_then_its_tokens_by_hand() -> None:
    found = run(pool(), users=1, requests=3)

    assert found.ttft_s == pytest.approx([0.016] * 3)  # 10 in, 5 of the prompt, 1 out
    assert found.tpot_s == pytest.approx([0.002] * 3)
    assert found.length_s == pytest.approx(3 * (0.016 + 3 * 0.002))


def test_two_pools_add_the_way_between_them_and_a_step() -> None:
    found = run(pool(), pool(), users=1, requests=2)

    assert found.ttft_s == pytest.approx([0.021] * 2)  # and 3 on the way, 2 of a decode step


def test_prompts_that_begin_together_share_a_step_and_the_third_waits_for_it() -> None:
    found = run(pool(), users=3, requests=3, output=1)

    # Two prompts take 8 ms, the third 5 ms more: none decodes.
    assert np.sort(found.ttft_s) == pytest.approx([0.019, 0.019, 0.024])


def test_a_full_batch_lets_the_next_user_wait_for_a_whole_request() -> None:
    found = run(pool(seats=1), users=2, requests=2)

    assert found.ttft_s == pytest.approx([0.016, 0.016 + 3 * 0.002 + 0.005])


def test_a_request_is_seen_after_some_decode_steps() -> None:
    rules = StackRules(take_steps=10, together_steps=0, prompts_first=False, ahead=False)
    early, late = (
        run(pool(rules=each), users=2, requests=40, output=21).ttft_s for each in (USUAL, rules)
    )

    # The first two find an idle engine; then one comes while the other decodes, or both at once.
    assert late[2:].mean() >= early[2:].mean()
    assert late.max() <= early.max() + 10 * 0.0023


def test_prompts_wait_until_every_rank_has_one_or_time_is_up() -> None:
    rules = StackRules(take_steps=0, together_steps=5, prompts_first=False, ahead=False)
    outputs = np.array([50, 10, 10])
    times = ClientTimes(users=2, request_ns=0, token_ns=0, transfer_ns=0)
    found = [
        run_loop(
            pool(ranks=2, rules=each),
            None,
            times,
            prompt_tokens=np.full(3, 100),
            output_tokens=outputs,
        )
        for each in (USUAL, rules)
    ]

    # The third comes to an empty rank: nothing decodes there, so that nothing is waited for.
    assert found[0].ttft_s == pytest.approx(found[1].ttft_s)


@pytest.mark.parametrize("first", [False, True])
def test_prompts_first_have_their_tokens_before_the_decodes(first: bool) -> None:
    rules = StackRules(take_steps=0, together_steps=0, prompts_first=first, ahead=False)
    outputs = np.array([40, 2, 2])
    found = run_loop(
        pool(rules=rules),
        None,
        ClientTimes(users=2, request_ns=0, token_ns=0, transfer_ns=0),
        prompt_tokens=np.full(3, 100),
        output_tokens=outputs,
    )

    # The third shares its step with one decode, of 2 ms.
    assert found.ttft_s[2] == pytest.approx(0.005 + (0 if first else 0.002))


@given(
    users=st.integers(1, 9),
    rounds=st.integers(1, 4),
    seats=st.integers(1, 4),
    ranks=st.integers(1, 3),
    engines=st.integers(1, 3),
    apart=st.booleans(),
    drafts=st.integers(0, 2),
    seed=st.integers(0, 99),
)
def test_users_have_one_request_at_a_time_whatever_the_pools(
    users: int,
    rounds: int,
    seats: int,
    ranks: int,
    engines: int,
    apart: bool,
    drafts: int,
    seed: int,
) -> None:
    rng, requests = np.random.default_rng(seed), users * rounds
    own = pool(seats=seats, ranks=ranks, engines=engines, acceptance=(0.5,) * drafts)
    outputs = rng.integers(1, 12, requests)
    found = run_loop(
        own,
        pool(engines=2) if apart else None,
        ClientTimes(users=users, request_ns=MS, token_ns=MS, transfer_ns=MS),
        prompt_tokens=rng.integers(80, 101, requests),
        output_tokens=outputs,
        seed=seed,
    )

    times_s = found.ttft_s + found.tpot_s * np.maximum(outputs - 1, 0)
    assert (found.ttft_s > 0).all()
    # Little's law: users' time adds up to what requests take; the last round alone ends early.
    assert times_s.sum() <= users * found.length_s * (1 + 1e-9)
    assert times_s.sum() >= users * (found.length_s - times_s.max()) - 1e-9


@pytest.mark.parametrize("ahead", [False, True])
def test_a_step_that_is_decided_ahead_has_nothing_that_came_since(ahead: bool) -> None:
    rules = StackRules(take_steps=0, together_steps=0, prompts_first=False, ahead=ahead)
    found = run_loop(
        pool(rules=rules),
        None,
        # The third is sent when the second ends, and comes 1 ms into a step of the first.
        ClientTimes(users=2, request_ns=MS, token_ns=0, transfer_ns=0),
        prompt_tokens=np.full(3, 100),
        output_tokens=np.array([40, 2, 2]),
    )

    # It waits for the rest of the step, 1 ms, and ahead for one of 2 ms more.
    assert found.ttft_s[2] == pytest.approx(0.001 + 0.001 + (0.002 if ahead else 0) + 0.007)


@given(output=st.integers(1, 30), pools=st.integers(1, 2))
def test_alone_a_request_waits_for_no_step_that_was_decided_ahead(output: int, pools: int) -> None:
    rules = StackRules(take_steps=0, together_steps=0, prompts_first=False, ahead=True)
    early, late = (
        run(own, own if pools == 2 else None, users=1, requests=4, output=output)
        for own in (pool(), pool(rules=rules))
    )

    assert late.ttft_s.tolist() == early.ttft_s.tolist()
    assert late.length_s == early.length_s

"""Prefill policies, imposed on vLLM's own schedulers."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm.v1.core.sched.output import SchedulerOutput

from serving.plugin.merge import LockstepOutput
from serving.plugin.rank_policies import rank_demand
from tests.serving.plugin.lockstep_machine import Machine, expected_tokens, long_arrival
from tests.serving.plugin.lockstep_workload import random_workload

BATCHED_TOKENS = 64  # of the engine config of these tests


def decoding(machine: Machine, *names: str) -> Machine:
    """Bring short requests to where they decode, one on each of the first ranks."""
    for name in names:
        machine.scheduler.add_request(long_arrival(name, 4, max_tokens=100).request())
    machine.step()
    return machine


def prefilled(output: SchedulerOutput, *names: str) -> list[int]:
    return [output.num_scheduled_tokens.get(name, 0) for name in names]


def test_a_cap_cuts_a_long_prompt_on_another_rank_into_chunks() -> None:
    machine = decoding(Machine(2, prefill_policy="capped:10"), "short")
    machine.scheduler.add_request(long_arrival("long", 45).request())

    chunks = [machine.step().num_scheduled_tokens for _ in range(6)]

    assert [chunk["short"] for chunk in chunks] == [1] * 6
    assert [chunk["long"] for chunk in chunks] == [10, 10, 10, 10, 5, 1]


def test_without_a_decode_anywhere_a_prompt_is_not_cut() -> None:
    machine = Machine(2, prefill_policy="capped:10")
    machine.scheduler.add_request(long_arrival("long", 45).request())

    assert prefilled(machine.step(), "long") == [45]


def test_the_prompts_of_one_rank_share_its_budget_in_their_order() -> None:
    machine = decoding(Machine(1, prefill_policy="capped:10"), "short")
    for name in "abc":
        machine.scheduler.add_request(long_arrival(name, 7).request())

    chunks = [prefilled(machine.step(), *"abc", "short") for _ in range(3)]

    assert chunks == [[7, 3, 0, 1], [1, 4, 6, 1], [1, 1, 1, 1]]


def test_staggered_ranks_prefill_one_after_the_other_while_one_decodes() -> None:
    machine = decoding(Machine(3, prefill_policy="staggered:1"), "x", "y", "z")
    for name in "abc":
        machine.scheduler.add_request(long_arrival(name, 90).request())
    prompts = [prefilled(machine.step(), *"abc") for _ in range(7)]

    # 63 tokens fit beside a decode, 27 are left for the rank's second turn.
    assert prompts == [
        [63, 0, 0],
        [0, 63, 0],
        [0, 0, 63],
        [27, 0, 0],
        [1, 27, 0],
        [1, 1, 27],
        [1, 1, 1],
    ]


@pytest.mark.parametrize(
    ("policy", "counts"),
    [
        ("staggered:1", [[20, 4, 20, 4], [20, 1, 0, 1], [0, 1, 20, 1], [20, 1, 0, 1]]),
        ("capped:10", [[20, 4, 20, 4], [10, 1, 10, 1], [10, 1, 10, 1], [10, 1, 10, 1]]),
    ],
)
@pytest.mark.parametrize("waiting", ["", "ch"])
def test_a_chunk_leaves_the_decodes_behind_it_their_tokens(
    policy: str, counts: list[list[int]], waiting: str
) -> None:
    machine = Machine(2, prefill_policy=policy, long_prefill_token_threshold=20, max_num_seqs=2)
    for name, tokens in (("a", 100), ("f", 100), ("b", 4), ("g", 4), *((n, 3) for n in waiting)):
        machine.scheduler.add_request(long_arrival(name, tokens).request())

    assert [prefilled(machine.step(), *"abfg") for _ in counts] == counts


def test_balanced_ranks_get_the_level_of_the_longest_backlog() -> None:
    machine = decoding(Machine(2, prefill_policy="balanced:4:5:20"), "x", "y")
    for name, tokens in (("a", 50), ("b", 30)):
        machine.scheduler.add_request(long_arrival(name, tokens).request())

    chunks = [prefilled(machine.step(), "a", "b") for _ in range(4)]

    # 50 in 4 steps are 13; then 37, 27 and 20 are left, the most of either rank.
    assert chunks == [[13, 13], [10, 10], [7, 7], [5, 1]]


def test_what_a_user_set_is_kept_and_holds_again_without_a_budget() -> None:
    machine = Machine(2, prefill_policy="capped:10", long_prefill_token_threshold=30)
    machine.scheduler.add_request(long_arrival("a", 100).request())
    machine.scheduler.add_request(long_arrival("b", 2, max_tokens=4).request())
    rank = machine.scheduler.ranks[0]
    for _ in range(12):
        machine.step()

    assert rank.max_num_scheduled_tokens == BATCHED_TOKENS
    assert rank.scheduler_config.long_prefill_token_threshold == 30
    assert rank.scheduler_config is not machine.scheduler.ranks[1].scheduler_config


def test_prompts_that_vllm_may_not_cut_are_let_through_whole_or_held_up() -> None:
    machine = Machine(
        1,
        prefill_policy="capped:10",
        enable_chunked_prefill=False,
        max_num_batched_tokens=512,
    )
    decoding(machine, "short")
    machine.scheduler.add_request(long_arrival("whole", 45).request())

    assert prefilled(machine.step(), "short", "whole") == [1, 45]


def test_what_cannot_start_does_not_count_as_pending() -> None:
    machine = Machine(1, 8, max_num_seqs=2)
    rank = machine.scheduler.ranks[0]
    assert rank_demand(rank, 10_000) == (0, 0)
    for name, tokens in (("a", 16 * 5 - 2), ("b", 16 * 4), ("c", 3)):
        machine.scheduler.add_request(long_arrival(name, tokens).request())
    assert rank_demand(rank, 10_000) == (7 * 16, 0)  # KV for seven blocks, seats for two
    assert rank_demand(rank, 50) == (50, 0)
    machine.step()  # 64 of a's 78 tokens, in four blocks
    assert rank_demand(rank, 10_000) == (14 + 3 * 16, 0)
    machine.step()
    pending, decodes = rank_demand(rank, 10_000)
    assert decodes == 1
    assert pending <= 3 * 16
    machine.finish()


POLICY_TEXTS = ["staggered:1", "staggered:2", "capped:1", "capped:9", "balanced:4:3:30"]


@pytest.mark.long
@given(
    seed=st.integers(0, 2**32 - 1),
    ranks=st.integers(1, 4),
    policy=st.sampled_from(POLICY_TEXTS),
    rate=st.sampled_from([0.5, 1.5]),
    blocks=st.sampled_from([40, 300]),
    user=st.sampled_from([{}, {"long_prefill_token_threshold": 20}]),
)
def test_no_policy_changes_a_text_or_starves_a_request(
    seed: int, ranks: int, policy: str, rate: float, blocks: int, user: dict[str, Any]
) -> None:
    machine = Machine(ranks, blocks, prefill_policy=policy, **user)
    arrivals = {}
    for turn in random_workload(seed, turns=20, rate=rate):
        for arrival in turn.arrivals:
            machine.scheduler.add_request(arrival.request())
            arrivals[arrival.name] = arrival
        check_step(machine, policy, blocks == 300 and not user)
    machine.finish()

    for name, arrival in arrivals.items():
        assert machine.received[name] == expected_tokens(arrival)


def check_step(machine: Machine, policy: str, every_decode: bool) -> LockstepOutput:
    """Step; with ample KV every decode gets its token, and prefills keep within the policy.

    (Where KV is short, the token of a decode that is preempted may go to a prefill.)
    """
    ready = [
        {request.request_id for request in rank.running if not request.is_prefill_chunk}
        for rank in machine.scheduler.ranks
    ]
    output = machine.step()
    kind, *numbers = policy.split(":")
    prefills = [
        sum(n for name, n in part.num_scheduled_tokens.items() if name not in decodes)
        for part, decodes in zip(output.by_rank, ready, strict=True)
    ]
    if not every_decode:
        return output
    assert set().union(*ready) <= output.num_scheduled_tokens.keys()
    if any(ready):
        if kind == "staggered":
            assert sum(tokens > 0 for tokens in prefills) <= int(numbers[0])
        else:
            assert max(prefills) <= int(numbers[-1])
    return output


@pytest.mark.parametrize("policy", POLICY_TEXTS)
def test_a_prompt_is_done_within_the_steps_that_its_policy_promises(policy: str) -> None:
    ranks, prompt = 3, 60
    machine = decoding(Machine(ranks, 300, prefill_policy=policy), "x", "y", "z")
    for name in "abc":
        machine.scheduler.add_request(long_arrival(name, prompt).request())
    bound = {
        "staggered:1": 3 * 1,
        "staggered:2": 2 * 1,
        "capped:1": 60,
        "capped:9": 7,
        "balanced:4:3:30": 4 + 60 // 3,
    }[policy]
    for _ in range(bound):
        machine.step()

    assert all(machine.received[name] for name in "abc")

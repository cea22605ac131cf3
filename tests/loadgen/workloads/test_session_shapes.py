from itertools import pairwise
from typing import Any

from loadgen.workloads.lengths import parse_lengths
from loadgen.workloads.plan import plan_workload
from tests.loadgen.workloads.made_plans import (
    check,
    keys,
    shapes,
    synthetic,
)


def test_a_conversation_carries_all_that_was_said_before() -> None:
    spec = synthetic(
        "10", "5", turns=parse_lengths("3"), think_s=1.5, shared_prefix_tokens=100, sessions=2
    )

    plan = plan_workload(spec, sessions=None, seed=0)

    first, second = plan.sessions
    assert shapes(first) == [
        ([100, 10], 5, ()),
        ([100, 10, 5, 10], 5, (0,)),
        ([100, 10, 5, 10, 5, 10], 5, (1,)),
    ]
    last = first[2].segments
    assert [segment.role for segment in last] == [
        *("system", "user", "assistant", "user", "assistant", "user")
    ]
    assert [segment.reply_of for segment in last] == [None, None, 0, None, 1, None]
    assert [call.think_ns for call in first] == [0, 1_500_000_000, 1_500_000_000]
    assert len(set(keys(first[2]))) == len(keys(first[2]))  # each piece is a text of its own
    for before, after in pairwise(first):
        assert after.segments[: len(before.segments)] == before.segments
    # the system prompt is shared by the sessions, and nothing else is
    assert set(keys(first[2])) & set(keys(second[2])) == {first[0].segments[0].key}
    assert "a shared system prompt of 100 tokens before each session; turns 3; 1.5 s" in plan.words
    check(plan)


def test_a_fan_out_is_a_plan_then_parallel_calls_that_are_joined_level_by_level() -> None:
    plan = plan_workload(synthetic("10", "3", fan_out=(2, 2)), sessions=1, seed=0)

    (calls,) = plan.sessions
    history = [10, 3]
    joined = [10, 3, 3, 3, 10, 3]
    assert shapes(calls) == [
        ([10], 3, ()),
        ([*history, 10], 3, (0,)),
        ([*history, 10], 3, (0,)),
        ([*history, 3, 3, 10], 3, (1, 2)),
        ([*joined, 10], 3, (3,)),
        ([*joined, 10], 3, (3,)),
        ([*joined, 3, 3, 10], 3, (4, 5)),
    ]
    left, right, join = calls[1:4]
    assert left.segments[:2] == right.segments[:2] == join.segments[:2]
    assert left.segments[2].key != right.segments[2].key
    assert len({key for call in calls for key in keys(call)}) == 7 + 6  # own, replies
    assert [segment.reply_of for segment in join.segments] == [None, 0, 1, 2, None]
    assert [segment.role for segment in join.segments] == [
        *("user", "assistant", "user", "user", "user")
    ]
    assert "a fan-out of 2 calls at once, 2 levels" in plan.words
    check(plan)


def test_each_call_has_the_next_lengths_that_were_drawn_whatever_the_shape() -> None:
    def own(**shape: Any) -> list[tuple[int, int]]:
        spec = synthetic("uniform:1-9999", "uniform:1-9999", **shape)
        (calls,) = plan_workload(spec, sessions=1, seed=3).sessions
        return [(call.segments[-1].tokens, call.output_tokens) for call in calls]

    conversation = own(turns=parse_lengths("7"))
    assert len(set(conversation)) == 7
    assert own(fan_out=(2, 2)) == conversation


def test_a_prompt_is_cut_at_its_end_and_a_full_history_ends_the_session() -> None:
    spec = synthetic("10", "4", turns=parse_lengths("4"), max_input_tokens=27, max_output_tokens=3)

    plan = plan_workload(spec, sessions=1, seed=0)

    # 10; 10+3+10; 10+3+10+3 leaves one token of ten; then the history is 30 with its reply
    assert shapes(plan.sessions[0]) == [
        ([10], 3, ()),
        ([10, 3, 10], 3, (0,)),
        ([10, 3, 10, 3, 1], 3, (1,)),
    ]
    assert plan.cuts.input_tokens_cut == 9
    assert plan.cuts.output_tokens_cut == 3
    assert plan.notes == (
        "1 calls are left out: what was said before them fills the 27 tokens of --max-input-tokens",
    )

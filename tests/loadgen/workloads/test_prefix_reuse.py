from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loadgen.workloads.lengths import parse_lengths
from loadgen.workloads.plan import plan_workload
from loadgen.workloads.prefix_reuse import prefix_reuse
from loadgen.workloads.session_plan import CallPlan, PromptSegment
from loadgen.workloads.workload_spec import WorkloadSpec


def call(*pieces: tuple[int, int], reply_of: int | None = None) -> CallPlan:
    """Pieces by key and tokens; with `reply_of` the second stands for a reply."""
    return CallPlan(
        segments=tuple(
            PromptSegment(key=key, tokens=tokens, reply_of=reply_of if at == 1 else None)
            for at, (key, tokens) in enumerate(pieces)
        ),
        output_tokens=1,
    )


def reused(*calls: CallPlan) -> int:
    return prefix_reuse([(each,) for each in calls]).reused_tokens


def test_what_an_earlier_prompt_begins_with_is_reused() -> None:
    first = call((0, 100), (1, 20))

    assert reused(first) == 0
    assert reused(first, call((2, 100), (1, 20))) == 0  # another beginning
    assert reused(first, call((0, 100), (2, 50))) == 100
    assert reused(first, first) == 120
    assert reused(first, call((0, 60))) == 60  # the shorter is the beginning of the longer
    assert reused(call((0, 60), (1, 20)), call((0, 100), (1, 20))) == 60
    assert prefix_reuse([(first, first)]).input_tokens == 240


def test_a_reply_that_the_server_made_counts_as_found_and_what_was_said_to_it_does_not() -> None:
    turns = (call((0, 100)), call((0, 100), (1, 30), (2, 7), reply_of=0))

    assert prefix_reuse([turns]).reused_tokens == 130


def test_a_workload_that_shares_nothing_reuses_nothing_and_a_shared_prefix_all_but_its_first() -> (
    None
):
    lengths = {"input_lengths": parse_lengths("64"), "output_lengths": parse_lengths("8")}
    alone = plan_workload(WorkloadSpec(**lengths), sessions=50, seed=0)
    shared = plan_workload(WorkloadSpec(**lengths, shared_prefix_tokens=32), sessions=50, seed=0)

    assert prefix_reuse(alone.sessions).reused_tokens == 0
    assert prefix_reuse(shared.sessions).reused_tokens == 49 * 32


def texts(calls: Sequence[CallPlan]) -> list[tuple[tuple[int, int], ...]]:
    """Each token by its piece's key and its place in it: a text that a cache could look up."""
    return [
        tuple((each.key, place) for each in plan.segments for place in range(each.tokens))
        for plan in calls
    ]


@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(0, 2), st.integers(1, 3)),
            min_size=1,
            max_size=3,
            unique_by=lambda piece: piece[0],
        ),
        min_size=1,
        max_size=6,
    )
)
def test_it_is_what_a_slow_look_at_every_pair_of_prompts_finds(
    drawn: list[list[tuple[int, int]]],
) -> None:
    calls = [call(*pieces) for pieces in drawn]
    slow = 0
    said = texts(calls)
    for at, prompt in enumerate(said):
        common = [
            int(np.cumprod([a == b for a, b in zip(prompt, earlier, strict=False)]).sum())
            for earlier in said[:at]
        ]
        slow += max(common, default=0)

    assert reused(*calls) == slow

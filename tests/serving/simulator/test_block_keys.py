"""Equal keys where a trace says that content is equal, and nowhere else."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.arrivals.arrival_spec import ArrivalSpec
from loadgen.arrivals.make_pacer import make_pacer
from loadgen.workloads.lengths import parse_lengths
from loadgen.workloads.plan import plan_workload
from loadgen.workloads.planned_traffic import planned_traffic
from loadgen.workloads.session_plan import CallPlan
from loadgen.workloads.traffic import PromptBlocks, Traffic
from loadgen.workloads.workload_spec import WorkloadSpec
from serving.simulator.block_keys import block_keys


def traffic(*requests: tuple[int, int, tuple[int, ...]], tokens: int) -> Traffic:
    """Requests of prompt tokens, output tokens and names of blocks of `tokens`."""
    prompt, output, names = zip(*requests, strict=True)
    return Traffic(
        arrival_s=np.zeros(len(requests)),
        prompt_tokens=np.array(prompt, dtype=np.int64),
        output_tokens=np.array(output, dtype=np.int64),
        blocks=PromptBlocks.of(
            names, tokens=tokens, prompt_tokens=np.array(prompt, dtype=np.int64)
        ),
    )


def test_what_a_name_covers_is_shared_and_the_rest_is_not() -> None:
    # 40 and 36 tokens of prompt: names of 32 tokens, the second one of 8 and of 4.
    asked = traffic((40, 8, (7, 8)), (36, 12, (7, 9)), tokens=32)

    first, second = block_keys(asked, 16).reshape(2, 3)
    assert first[:2].tolist() == second[:2].tolist()
    assert first[2] != second[2]
    assert len(set(first) | set(second)) == 4


def test_a_named_reply_has_no_keys_where_it_is_not_computed() -> None:
    """An engine for prompts makes one token, of a reply that the next turn sends back."""
    asked = Traffic(
        arrival_s=np.zeros(2),
        prompt_tokens=np.array([64, 32]),
        output_tokens=np.array([1, 1]),
        blocks=PromptBlocks(
            names=np.array([5, 6, 5, 6]),
            end_tokens=np.array([32, 64, 32, 64]),
            begin=np.array([0, 2, 4]),
        ),
    )
    keys = block_keys(asked, 16)
    assert len(keys) == 6
    assert keys[:2].tolist() == keys[4:].tolist()


def test_without_names_nothing_is_shared() -> None:
    asked = traffic((40, 8, ()), (36, 12, ()), tokens=32)

    assert len(set(block_keys(asked, 16))) == 6


@st.composite
def asked(draw: st.DrawFn) -> tuple[Traffic, int, list[tuple[int, ...]]]:
    """Requests whose prompts are paths in a tree of blocks, the blocks' tokens, each's content."""
    tokens = draw(st.sampled_from([8, 16, 64]))
    requests, contents = [], []
    for number in range(draw(st.integers(1, 5))):
        path = draw(st.lists(st.integers(0, 1), max_size=4))
        prompt = len(path) * tokens or draw(st.integers(1, 40))
        output = draw(st.integers(1, 40))
        # A name is of its block and all before it.
        names = tuple(int("1" + "".join(map(str, path[: end + 1]))) for end in range(len(path)))
        content = [bit for bit in path for _ in range(tokens)]
        own = prompt + output - len(content)
        requests.append((prompt, output, names))
        contents.append((*content, *[1_000 + number] * own))
    return traffic(*requests, tokens=tokens), tokens, contents


@given(asked=asked(), block_tokens=st.sampled_from([4, 16, 32]))
def test_keys_are_equal_just_where_contents_are_to_the_end_of_a_named_block(
    asked: tuple[Traffic, int, list[tuple[int, ...]]], block_tokens: int
) -> None:
    sent, tokens, contents = asked
    keys = iter(block_keys(sent, block_tokens).tolist())
    of_content: dict[tuple[int, ...], int] = {}
    for content in contents:
        for end in range(block_tokens, len(content) + 1, block_tokens):
            key = next(keys)
            # What is equal within a name's block, but not to its end, has no equal name.
            named = -(-end // tokens) * tokens
            assert of_content.setdefault((end, *content[:named]), key) == key
    assert len(set(of_content.values())) == len(of_content)
    assert next(keys, None) is None


def test_chosen_requests_keep_their_names() -> None:
    every = traffic((40, 8, (7, 8)), (9, 1, ()), (36, 12, (7, 9)), tokens=32)
    for which in (np.array([0, 2]), np.array([True, False, True])):
        some = every.chosen(which)
        assert some.blocks is not None
        assert some.blocks.names.tolist() == [7, 8, 7, 9]
        assert some.blocks.begin.tolist() == [0, 2, 4]


@pytest.mark.parametrize("empty", [np.array([], dtype=np.int64), np.zeros(2, dtype=np.bool_)])
def test_no_request_has_no_names(empty: np.ndarray) -> None:
    some = traffic((40, 8, (7, 8)), (9, 1, ()), tokens=32).chosen(empty)
    assert some.blocks is not None
    assert some.blocks.names.tolist() == []


def said(calls: Sequence[CallPlan], position: int, session: int, *, served: bool) -> list[object]:
    """The tokens of a call's prompt and reply, each by its piece of text and its place in it."""
    call = calls[position]
    replies = {
        segment.reply_of: segment.key for each in calls for segment in each.segments if served
    }
    reply = replies.get(position, f"reply {session} {position}")
    pieces = [(segment.key, segment.tokens) for segment in call.segments]
    return [
        (key, place)
        for key, tokens in [*pieces, (reply, call.output_tokens)]
        for place in range(tokens)
    ]


@given(
    data=st.data(),
    block_tokens=st.sampled_from([1, 4, 16]),
    served=st.booleans(),
    prefix=st.sampled_from([(0, 1), (5, 1), (12, 2)]),
)
def test_keys_of_a_plan_are_equal_just_where_a_server_would_find_the_same_tokens(
    data: st.DataObject, block_tokens: int, served: bool, prefix: tuple[int, int]
) -> None:
    spec = WorkloadSpec(
        input_lengths=parse_lengths("uniform:1-20"),
        output_lengths=parse_lengths("uniform:1-12"),
        shared_prefix_tokens=prefix[0],
        shared_prefix_groups=prefix[1],
        **data.draw(
            st.sampled_from([{}, {"turns": parse_lengths("uniform:1-4")}, {"fan_out": (2, 2)}])
        ),
        max_input_tokens=data.draw(st.sampled_from([None, 16, 40])),
    )
    sessions = data.draw(st.integers(1, 4))
    plan = plan_workload(spec, sessions=sessions, seed=data.draw(st.integers(0, 99)))
    pacer = make_pacer(ArrivalSpec(rate="1"), sessions=sessions, recorded_ns=None, seed=0)
    traffic = planned_traffic(plan, pacer, served_history=served)

    keys = iter(block_keys(traffic, block_tokens).tolist())
    of_content: dict[tuple[object, ...], int] = {}
    for session, calls in enumerate(plan.sessions):
        for position in range(len(calls)):
            tokens = said(calls, position, session, served=served)
            for end in range(block_tokens, len(tokens) + 1, block_tokens):
                key = next(keys)
                assert of_content.setdefault(tuple(tokens[:end]), key) == key
    assert len(set(of_content.values())) == len(of_content)
    assert next(keys, None) is None

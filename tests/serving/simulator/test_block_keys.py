"""Equal keys where a trace says that content is equal, and nowhere else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.workloads.traffic import PromptBlocks, Traffic
from serving.simulator.block_keys import block_keys


def traffic(*requests: tuple[int, int, tuple[int, ...]], tokens: int) -> Traffic:
    """Requests of prompt tokens, output tokens and names of blocks of `tokens`."""
    prompt, output, names = zip(*requests, strict=True)
    return Traffic(
        arrival_s=np.zeros(len(requests)),
        prompt_tokens=np.array(prompt, dtype=np.int64),
        output_tokens=np.array(output, dtype=np.int64),
        blocks=PromptBlocks.of(names, tokens),
    )


def test_what_a_name_covers_is_shared_and_the_rest_is_not() -> None:
    # 40 and 36 tokens of prompt: names of 32 tokens, the second one of 8 and of 4.
    asked = traffic((40, 8, (7, 8)), (36, 12, (7, 9)), tokens=32)

    first, second = block_keys(asked, 16).reshape(2, 3)
    assert first[:2].tolist() == second[:2].tolist()
    assert first[2] != second[2]
    assert len(set(first) | set(second)) == 4


def test_without_names_nothing_is_shared() -> None:
    asked = traffic((40, 8, ()), (36, 12, ()), tokens=32)

    assert len(set(block_keys(asked, 16))) == 6


@st.composite
def asked(draw: st.DrawFn) -> tuple[Traffic, list[tuple[int, ...]]]:
    """Requests whose prompts are paths in a tree of blocks, and the content of each."""
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
    return traffic(*requests, tokens=tokens), contents


@given(asked=asked(), block_tokens=st.sampled_from([4, 16, 32]))
def test_keys_are_equal_just_where_contents_are_to_the_end_of_a_named_block(
    asked: tuple[Traffic, list[tuple[int, ...]]], block_tokens: int
) -> None:
    sent, contents = asked
    keys = iter(block_keys(sent, block_tokens).tolist())
    of_content: dict[tuple[int, ...], int] = {}
    for content in contents:
        for end in range(block_tokens, len(content) + 1, block_tokens):
            key = next(keys)
            assert sent.blocks is not None
            # What is equal within a name's block, but not to its end, has no equal name.
            named = -(-end // sent.blocks.tokens) * sent.blocks.tokens
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
